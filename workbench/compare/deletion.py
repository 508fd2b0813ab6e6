"""Deleting a run: only one that has ended, only what lies in its own folder, and for good.

The folder is first renamed into ``<store>/.workbench-trash``, so that no list ever shows half a
run, and is then removed from there; what an interrupted deletion left is removed by the next one.
Nothing is followed: a link in a run is removed, never what it leads to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import StoreError, UsageError
from workbench.storage.mirror_state import mirror_lock
from workbench.store import processes
from workbench.store.commands import command_for
from workbench.store.detached import is_locked
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store
from workbench.store.status import read_status

TRASH = ".workbench-trash"
_OURS = re.compile(r".+-[0-9a-f]{8}")  # whatever else lies there was put there by someone


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a run's folder holds."""

    run: str
    """Its id."""
    files: int
    """Plain files, links not counted."""
    bytes: int
    """On disk; of a file that has another name elsewhere nothing is freed, so it is not counted."""
    checkpoints: int
    """Folders and files directly in ``checkpoints/``: what could no longer be resumed from."""


def size(paths: RunPaths) -> Size:
    """What deleting the run would free. Follows no link; cannot fail on what vanishes meanwhile."""
    files = on_disk = 0
    for folder, _, names in os.walk(paths.directory, followlinks=False):
        for name in names:
            try:
                about = os.lstat(os.path.join(folder, name))  # noqa: PTH118  (thousands of files)
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode):
                files += 1
                on_disk += about.st_blocks * 512 if about.st_nlink == 1 else 0
    try:
        saved = [name for name in os.listdir(paths.checkpoints) if not name.startswith(".")]
    except OSError:
        saved = []
    return Size(run=paths.directory.name, files=files, bytes=on_disk, checkpoints=len(saved))


def check_deletable(store: Store, run: str) -> RunPaths:
    """The paths of a run that may be deleted: by its exact id or path, no prefix and no "last".

    Raises:
        RunNotFoundError: there is none of that name.
        UsageError: it still runs or is still mirrored, or `run` is not the whole id.
        ForeignRunError: it is another user's, or others can write to it.
        StoreError: it is a link.
    """
    paths = store.locate(run)
    is_exact = run == paths.directory.name or Path(run).absolute() == paths.directory
    if not is_exact:
        raise UsageError(
            f"{run!r} refers to {paths.directory.name}. To delete it, give its full id."
        )
    check_own(paths, "deleted", own_links=True)  # a link goes, never what it leads to
    status = read_status(paths)
    marker = (read_run(paths) or RunRecord()).marker
    if status.live or (marker and processes.find_marked(marker, paths.directory)):
        raise UsageError(
            f"{run} is {status.state}, or a process of it still runs. Stop it first: workbench "
            f"stop {run}"
        )
    if is_locked(mirror_lock(paths)):
        raise UsageError(
            f"The mirror of {run} still sends the last of it. Wait for it, at most 15 minutes "
            f"where the address does not answer: {command_for(paths.directory, 'show')}"
        )
    return paths


def delete(store: Store, run: str) -> Size:
    """Delete an ended run for good and return what that freed.

    Raises:
        UsageError: see `check_deletable`.
        StoreError: it cannot be removed; what remains lies in `TRASH` of the store.
    """
    freed = size(check_deletable(store, run))
    paths = check_deletable(store, run)  # it may have been resumed while its files were counted
    try:
        trash = _trash(paths.directory.parent)
        gone = trash / f"{paths.directory.name}-{uuid.uuid4().hex[:8]}"
        paths.directory.rename(gone)
        try:
            shutil.rmtree(gone)
        except FileNotFoundError:  # another deletion emptied the folder meanwhile
            shutil.rmtree(gone, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"{run} cannot be deleted: {error.strerror or error}") from error
    _empty(trash)
    return freed


def _trash(root: Path) -> Path:
    trash = root / TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    about = os.lstat(trash)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(f"{trash} was not created by workbench; remove it first")
    return trash


def _empty(trash: Path) -> None:
    """Remove what interrupted deletions left, as far as no other one is at work on it."""
    with contextlib.suppress(OSError):
        for name in filter(_OURS.fullmatch, os.listdir(trash)):
            shutil.rmtree(trash / name, ignore_errors=True)
        trash.rmdir()
