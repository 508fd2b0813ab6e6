"""Checkpoints that a script wrote its own way, where nobody saw it: found by their content.

They are looked for where the script works and in the folders that its arguments name, if they were
written since the run began. The search is bounded; it opens tables of files, never their tensors.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench.recover import contents
from workbench.recover.checkpoints import Checkpoint, given_up, list_checkpoints, newest_first
from workbench.recover.foreign import IdentifiedCheckpoint, candidates, identify
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

_MOST = 200  # checkpoints of one script that are listed
_MOST_FILES = 20_000  # of one checkpoint that are measured


def every_checkpoint(paths: RunPaths) -> list[Checkpoint]:
    """Those that the run knows of, and those that its script wrote its own way; newest first."""
    known = list_checkpoints(paths)
    return newest_first([*known, *script_checkpoints(paths, known)])


def script_checkpoints(paths: RunPaths, known: list[Checkpoint] | None = None) -> list[Checkpoint]:
    """Those that the script wrote its own way."""
    run = read_run(paths) or RunRecord()
    listed = [
        checkpoint.path for checkpoint in (list_checkpoints(paths) if known is None else known)
    ]
    since, abandoned = run.created_at - 1.0, given_up(paths)
    checkpoints: dict[Path, Checkpoint] = {}
    for path in itertools.islice(_written(paths, run), 4 * _MOST):
        inside = any(
            path == folder or folder in path.parents or path in folder.parents for folder in listed
        )
        if path in checkpoints or inside or len(checkpoints) >= _MOST:
            continue
        size, newest = contents.measure(path, _MOST_FILES)
        if newest is None or newest < since:
            continue
        about = identify(path)
        if about is not None:
            gone = (str(path), newest) in abandoned
            checkpoints[path] = of_path(path, about, size, newest, abandoned=gone)
    return list(checkpoints.values())


def of_path(
    path: Path,
    about: IdentifiedCheckpoint,
    size: int,
    newest: float | None,
    *,
    abandoned: bool = False,
) -> Checkpoint:
    """A checkpoint of the script, as its content shows it."""
    return Checkpoint(
        path=path,
        step=about.step,
        kind=about.kind,
        bytes=size,
        saved_at=newest,
        sealed=False,
        problem=about.problem or ("" if size else "it is empty"),
        world_size=about.world_size,
        abandoned=abandoned,
        by_script=True,
    )


def named_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that someone named; of unknown content, it has no step."""
    about = identify(path) or IdentifiedCheckpoint(kind="unknown", step=None)
    return replace(
        of_path(path, about, *contents.measure(path, _MOST_FILES)), problem=about.problem
    )


def _written(paths: RunPaths, run: RunRecord) -> Iterator[Path]:
    """What may be checkpoints of the script: where its arguments point, then where it works."""
    work = Path(run.working_directory or "/nowhere")
    own = paths.directory.parent
    places = [*_named(run, work), paths.checkpoints, work]
    for place in dict.fromkeys(places):
        if place.is_file():
            yield place
        elif place.is_dir():
            for candidate in candidates(place):
                if place != work or own not in candidate.parents:
                    yield candidate


def _named(run: RunRecord, work: Path) -> Iterator[Path]:
    """Folders among the arguments that lie below the working directory or are absolute."""
    for word in run.arguments:
        text = word.rpartition("=")[2]
        if text and "\0" not in text and len(text) < 4096:
            place = Path(os.path.normpath(work / text))
            if place != work and place not in work.parents and place.exists():
                yield place
