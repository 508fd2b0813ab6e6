"""A run directory that lies elsewhere than where it was started: its record with today's paths."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from workbench import recipes
from workbench.errors import StoreError, UsageError
from workbench.launching.prepare.acceptance import check_accepted, seal
from workbench.storage.selection import CODE_FOLDER
from workbench.store.files import read_texts, write_json_atomic, write_text_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import DIRECTORY
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

_MOST_BYTES = 1 << 20


def record_here(paths: RunPaths, run: RunRecord) -> tuple[RunRecord, list[str]]:
    """The accepted record of a run, fitted to where its directory lies, and what to know of it.

    Raises:
        UsageError: it lies where it did, and the folder that it was started in is gone.
    """
    if _directory_before(run, paths.directory) is not None:
        here, notes = moved(paths, paths.directory, run)
    else:
        recorded_folder(run)
        here, notes = _with_python(run)  # a volume that is mounted at the same place elsewhere
    return (replace(here, vouched=seal(here)) if here != run else run), notes


def _with_python(run: RunRecord) -> tuple[RunRecord, list[str]]:
    """The record with this Python in place of one that is not here, and a sentence on it."""
    python = run.command[0] if run.command else ""
    if not Path(python).name.startswith("python") or os.access(python, os.X_OK):
        return run, []
    note = f"{python} is not on this machine: {sys.executable} is used."
    return replace(run, command=[sys.executable, *run.command[1:]]), [note]


def recorded_folder(run: RunRecord) -> Path:
    """Where the run was started; its arguments may name files there. Raises UsageError: gone."""
    folder = Path(run.working_directory)
    if not folder.is_dir():
        raise UsageError(
            f"{run.run} was started in {folder}, which no longer exists. Make that folder, or "
            "launch the script as a new run."
        )
    return folder


def settled_here(paths: RunPaths, run: RunRecord) -> tuple[RunRecord, list[str]]:
    """As `record_here`, of any record: where the directory was moved, its files are written anew.

    Raises:
        ForeignRunError: it was moved, and no one has accepted what it starts.
        UsageError: the folder that it was started in is gone.
        StoreError: they cannot be written.
    """
    here, notes = record_here(paths, run)
    if here == run:
        return run, []
    check_accepted(paths, run)
    try:
        move_config(paths, paths.directory)
        write_json_atomic(paths.run, here.document(), indent=2)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error
    return here, notes


def move_config(paths: RunPaths, final: Path, run: RunRecord | None = None) -> None:
    """Config files name each other: put the paths of `final` in place of those that `run` has.

    Raises:
        OSError: they cannot be written.
    """
    before = _directory_before(run or read_run(paths) or RunRecord(), final)
    if before is not None:
        for path, text in read_texts(paths.config, _MOST_BYTES).items():
            write_text_atomic(Path(path), text.replace(before, str(final)))


def moved(paths: RunPaths, final: Path, run: RunRecord) -> tuple[RunRecord, list[str]]:
    """The record with the paths of this machine, and what someone should know of it.

    `paths`: where its files are now; `final`: the directory that it will have.
    """
    notes = list[str]()
    before = run.environment.get(DIRECTORY, "")
    script = _inside(run.script, before, final)
    if run.recipe is not None:
        script = str(recipes.find(run.recipe).path)
    elif (
        not Path(script).is_file() and (paths.directory / CODE_FOLDER / Path(script).name).is_file()
    ):
        script = str(final / CODE_FOLDER / Path(script).name)
        notes.append(f"{run.script} is not on this machine: the run's own copy is used, {script}.")
    elif not Path(script).is_file() and not Path(script).is_relative_to(final):
        notes.append(f"{script} is not on this machine. Put it there before you resume.")
    folder = run.working_directory
    if not Path(folder).is_dir():
        folder = str(Path.cwd())
        notes.append(f"{run.working_directory} is not on this machine: it starts in {folder}.")
    words = [_inside(word, before, final) for word in run.command]
    words = [script if word == run.script else word for word in words]
    if words and Path(words[0]).name.startswith("python"):
        words[0] = sys.executable
    environment = {**run.environment, **({DIRECTORY: str(final)} if before else {})}
    here = replace(run, command=words, script=script, working_directory=folder)
    return replace(here, environment=environment), notes


def _directory_before(run: RunRecord, final: Path) -> str | None:
    """Where the run was started, if that is another directory than `final`."""
    before = run.environment.get(DIRECTORY, "")
    if len(before) < 2:  # no record of ours
        return None
    try:
        is_same = Path(before).samefile(final)
    except (OSError, ValueError):
        is_same = before == str(final)
    return None if is_same else before


def _inside(word: str, before: str, final: Path) -> str:
    """A path in the run directory as it was, as one in the directory that it has now."""
    same = len(before) > 1 and (word == before or word.startswith(f"{before}/"))
    return f"{final}{word[len(before) :]}" if same else word
