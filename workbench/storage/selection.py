"""Which files of a run are sent: its records, its code, and the checkpoints asked for."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import UsageError
from workbench.recover.checkpoints import Checkpoint, list_checkpoints
from workbench.recover.script_checkpoints import every_checkpoint
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.status import read_status

CODE_FOLDER = "code"
"""The script's own files, in a folder from which they start."""
_NOT_SENT = {"control", "checkpoints", "mirror.json"}
_OF_PROCESSES = ("waits-",)
_NEWEST = "newest"
_SETTLED_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file to send."""

    path: str
    """Where it lies in the run, relative, with slashes."""
    place: Path
    """Where it is read."""
    checkpoint: Checkpoint | None = None
    """The one that it is part of."""


def chosen_checkpoints(paths: RunPaths, which: str) -> list[Checkpoint]:
    """The checkpoints that `which` asks for, newest first; none is read yet.

    Args:
        paths: The run.
        which: "newest", "all", "none", or how many of the newest.

    Raises:
        UsageError: it is none of these.
    """
    if which == "none":
        return []
    if which not in {"all", _NEWEST} and not which.isdecimal():
        raise UsageError(f"--checkpoints {which!r}: give newest, all, none, or a number.")
    live = read_status(paths).live
    usable = [
        checkpoint
        for checkpoint in list_checkpoints(paths)
        if checkpoint.usable
        and (checkpoint.sealed or not live)  # else it may still be being written
    ]
    if usable:
        return usable
    return [
        checkpoint
        for checkpoint in every_checkpoint(paths)
        if checkpoint.usable and (not live or _is_settled(checkpoint))
    ]


def _is_settled(checkpoint: Checkpoint) -> bool:
    """Whether a script is no longer writing what it saves its own way; a push reads all of it."""
    saved_at = checkpoint.saved_at or time.time()
    return checkpoint.by_script and time.time() - saved_at >= _SETTLED_SECONDS


def most_of(which: str) -> int:
    """How many checkpoints `which` asks for at most."""
    return {"all": 1 << 30, _NEWEST: 1, "none": 0}.get(which) or int(
        which if which.isdecimal() else 0
    )


def of_the_run(paths: RunPaths) -> Iterator[LocalFile]:
    """Record, metrics, logs, config, source: all but checkpoints and what is of the moment."""
    for path in _plain_files(paths.directory):
        inside = path.relative_to(paths.directory)
        temporary = inside.name.startswith(".") or inside.name.endswith((".tmp", ".lock", ".pulse"))
        if inside.parts[0] in _NOT_SENT or temporary or inside.name.startswith(_OF_PROCESSES):
            continue
        yield LocalFile(path=inside.as_posix(), place=path)
    yield from _code(paths)


def of_checkpoint(paths: RunPaths, checkpoint: Checkpoint) -> list[LocalFile]:
    """Its files, and its manifest where that lies outside of it."""
    base = place_of(paths, checkpoint)
    if checkpoint.path.is_file():
        return [LocalFile(path=base, place=checkpoint.path, checkpoint=checkpoint)]
    files = [
        LocalFile(
            path=f"{base}/{path.relative_to(checkpoint.path).as_posix()}",
            place=path,
            checkpoint=checkpoint,
        )
        for path in _plain_files(checkpoint.path)
    ]
    destination = manifest_place(checkpoint)
    if destination is not None and checkpoint.manifest is not None:
        files.append(LocalFile(path=destination, place=checkpoint.manifest, checkpoint=checkpoint))
    return files


def place_of(paths: RunPaths, checkpoint: Checkpoint) -> str:
    """Where it lies in what is sent; one from elsewhere gets a place among the run's own."""
    if checkpoint.path.is_relative_to(paths.checkpoints):
        return f"checkpoints/{checkpoint.path.relative_to(paths.checkpoints).as_posix()}"
    mark = hashlib.sha256(str(checkpoint.path.parent).encode(errors="surrogateescape")).hexdigest()
    return f"checkpoints/outside-{mark[:8]}/{checkpoint.name}"


def manifest_place(checkpoint: Checkpoint) -> str | None:
    """Where its manifest is sent, if that does not lie inside of it."""
    manifest = checkpoint.manifest
    if manifest is None or manifest.is_relative_to(checkpoint.path):
        return None
    return f"checkpoints/.manifests/{manifest.name}"


def _code(paths: RunPaths) -> Iterator[LocalFile]:
    """The script's own files as they were started: the run's copies, else the very same ones."""
    run = read_run(paths) or RunRecord()
    about = run.provenance or {}
    copied = set(about.get("copied") or ())
    for name, digest in (about.get("files") or {}).items():
        if run.recipe or ".." in Path(name).parts or Path(name).is_absolute():
            continue
        place = paths.source / name if name in copied else Path(run.script).parent / name
        with contextlib.suppress(OSError):
            same = hashlib.sha256(place.read_bytes()).hexdigest() == digest
            if name in copied or (same and not place.is_symlink()):
                yield LocalFile(path=f"{CODE_FOLDER}/{name}", place=place)


def _plain_files(folder: Path) -> Iterator[Path]:
    """Regular files below, links are not followed; in order of their names."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _plain_files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
