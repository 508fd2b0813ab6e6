"""``workbench lessons``: the notebooks that teach multi-GPU training, copied to work in."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import console
from workbench.lessons import FOLDER, copy_lessons, lesson_files

_FOLDER_HELP = "Folder to copy them to. Files that are there already stay as they are."


def lessons(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help=_FOLDER_HELP)] = Path(FOLDER),
    *,
    as_json: JsonOption = False,
) -> None:
    """Copy the lessons, notebooks on multi-GPU training, into a folder to work in."""
    lessons_copy = copy_lessons(folder)
    first = lesson_files(lessons_copy.folder)[0]
    if as_json:
        names = {"copied": list(lessons_copy.copied), "kept": list(lessons_copy.kept)}
        print_json({"folder": str(lessons_copy.folder), **names, "first": str(first)})
        return
    text = f"{len(lesson_files(lessons_copy.folder))} lessons are in {lessons_copy.folder}."
    if lessons_copy.kept:
        text += f" {len(lessons_copy.kept)} of the files were there already and stay as they are."
    console.print(text, markup=False, soft_wrap=True)
    command = shlex.join(["jupyter", "lab", str(first)])
    console.print(f"Open the first in JupyterLab: {command}", markup=False, soft_wrap=True)
