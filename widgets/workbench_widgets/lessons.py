"""``Lessons``: the notebooks that teach, as a list in the tab Learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.lessons import FOLDER, copy_lessons, lesson_files, lessons_folder
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import face_config
from workbench_widgets.jupyter_files import served_path

_NO_LESSONS = (
    "The lessons are notebooks of the repository, in its folder notebooks/. This installation has "
    "none: clone the repository to work through them."
)


def lesson_titles(folder: Path | None = None) -> dict[str, str]:
    """File name -> title of each lesson, in order; the title is the notebook's first heading."""
    folder = folder or lessons_folder()
    return {} if folder is None else {path.name: _title(path) for path in lesson_files(folder)}


def _title(path: Path) -> str:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = (line for cell in cells for line in "".join(cell["source"]).splitlines())
        return next(line.lstrip("# ") for line in lines if line.startswith("#"))
    except (OSError, ValueError, KeyError, StopIteration):
        return path.stem


class Lessons(Face):
    """The lessons, to open with a click where the Jupyter server has them.

    Where it has not, a button copies them to ``lessons/`` of the working directory.

    Args:
        folder: Where the notebooks are; those of the repository or the installation if None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or lessons_folder()
        self._copy = Path(FOLDER).absolute()
        self._face = face_config(face="lessons.js")
        super().__init__({**self._face, **self._listed()})

    def _listed(self, problem: str = "") -> dict[str, Any]:
        folder = self._folder
        if folder and served_path(folder) is None and lesson_files(self._copy):
            folder = self._copy
        titles, served = lesson_titles(folder), folder and served_path(folder)
        lessons = [
            {
                "path": None if served is None else f"{served}/{name}".lstrip("/"),
                "name": name,
                "title": title,
            }
            for name, title in titles.items()
        ]
        self._hint = "" if lessons else _NO_LESSONS
        if lessons and served is None:
            self._hint = problem or f"The lessons are in {folder}."
        copied = folder == self._copy
        offer = f"Copy them to {FOLDER}/" if lessons and served is None and not copied else ""
        return {"hint": self._hint, "lessons": lessons, "copy": offer}

    def _receive(self, kind: str, message: dict[str, Any]) -> None:  # noqa: ARG002
        if kind == "copy":
            problem = ""
            try:
                copy_lessons(self._copy)
            except wb.WorkbenchError as error:
                problem = str(error)
            self.config = {**self._face, **self._listed(problem)}

    def __repr__(self) -> str:
        titles = ((lesson["name"], lesson["title"]) for lesson in self.config["lessons"])
        lines = [self._hint, *(f"{name}: {title}" for name, title in titles)]
        return "\n".join(filter(None, lines))
