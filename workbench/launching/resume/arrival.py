"""A run that was pulled from an address: its record fitted to this machine, and then resumed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.errors import StorageError
from workbench.launching.prepare.acceptance import is_accepted, seal
from workbench.storage.pull import PullResult
from workbench.storage.pull import pull as fetch
from workbench.storage.push import OnProgress
from workbench.storage.selection import CODE_FOLDER
from workbench.store.files import read_json, read_texts, write_json_atomic, write_text_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store

_MOST_BYTES = 1 << 20
_DIRECTORY = "WORKBENCH_RUN_DIR"


def pull(url: str, store: Store, on_progress: OnProgress | None = None) -> PullResult:
    """Bring the run at ``URL/RUN`` into `store`, so that it can continue here.

    Raises:
        UsageError, StorageError, StoreError: see `storage.pull.pull`.
    """
    return fetch(url, store, settle=settle, on_progress=on_progress)


def settle(arrived: RunPaths, final: Path, *, is_ours: bool) -> list[str]:
    """Put the paths of this machine in place of those of the one that it comes from.

    A record that this user's key sealed is sealed again if all that arrived is theirs, too
    (`is_ours`); else it is accepted by no one, and `workbench adopt` comes before a resume.

    Raises:
        StorageError: its record is that of another run.
        StoreError: it lacks what a start needs.
    """
    run = read_record(arrived)
    if run.run != final.name:
        raise StorageError(f"What was pulled as {final.name} has the record of {run.run[:80]!r}.")
    accepted = is_ours and is_accepted(arrived, run)
    moved, notes = _moved(arrived, final, run)
    moved = replace(moved, vouched=run.vouched if accepted else [])
    if accepted:
        moved = replace(moved, vouched=seal(moved))
    write_json_atomic(arrived.run, moved.document(), indent=2)
    before = run.environment.get(_DIRECTORY, "")
    if len(before) > 1:
        for path, text in read_texts(arrived.config, _MOST_BYTES).items():
            write_text_atomic(Path(path), text.replace(before, str(final)))
    state = read_json(arrived.state)
    if state is not None:  # its processes are those of another machine
        nobody = dict.fromkeys(("supervisor", "watcher", "launcher"))
        gone: dict[str, Any] = {**nobody, "ranks": {}}
        write_json_atomic(arrived.state, {**state, **gone})
    return notes


def _moved(arrived: RunPaths, final: Path, run: RunRecord) -> tuple[RunRecord, list[str]]:
    """The record with the paths of this machine, and what someone should know of it."""
    notes = list[str]()
    before = run.environment.get(_DIRECTORY, "")
    script = _inside(run.script, before, final)
    if run.recipe is not None:
        script = str(recipes.find(run.recipe).path)
    elif (
        not Path(script).is_file()
        and (arrived.directory / CODE_FOLDER / Path(script).name).is_file()
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
    environment = {**run.environment, **({_DIRECTORY: str(final)} if before else {})}
    moved = replace(run, command=words, script=script, working_directory=folder)
    return replace(moved, environment=environment), notes


def _inside(word: str, before: str, final: Path) -> str:
    """A path in the run directory as it was, as one in the directory that it has now."""
    same = len(before) > 1 and (word == before or word.startswith(f"{before}/"))
    return f"{final}{word[len(before) :]}" if same else word
