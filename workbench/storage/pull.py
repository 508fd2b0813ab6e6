"""`pull`: bring a run from an address into a store of this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from workbench.errors import StorageError, StoreError, UsageError
from workbench.recover.checkpoints import list_checkpoints, manifest_path
from workbench.storage.earlier_push import goes_on_from
from workbench.storage.manifest import (
    PIECES,
    RemoteCheckpoint,
    RemoteFile,
    RemoteRun,
    read_remote_run,
)
from workbench.storage.push import OnProgress
from workbench.storage.remote import Remote
from workbench.store.commands import command_for
from workbench.store.files import append_line
from workbench.store.layout import RunPaths
from workbench.store.ownership import foreign_folder
from workbench.store.record import read_run
from workbench.store.room import is_full
from workbench.store.runs import Store
from workbench.store.starts import attempts_of
from workbench.units import format_bytes

_THREADS = 4
_AHEAD = 6  # pieces fetched before they are written: at most 200 MB
_LIVE = (
    "It was still training when it was pushed. If it still does, stop it there first: else two "
    "copies of it train."
)
_TRIES = 3  # of a piece that arrives damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """What a pull brought."""

    run: str
    """Run id."""
    directory: Path
    """Where it lies now."""
    url: str
    """Where it came from."""
    files: int
    """Files of the run."""
    bytes: int
    """Their size together."""
    received_bytes: int
    """What was fetched for it."""
    checkpoints: list[str]
    """Names of its checkpoints, newest first."""
    step: int | None
    """Furthest step of them."""
    notes: list[str]
    """What someone should know, each one sentence."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**asdict(self), "directory": str(self.directory)}


class Settle(Protocol):
    """Fits the files of a run that has arrived to this machine."""

    def __call__(self, arrived: RunPaths, final: Path, *, is_ours: bool) -> list[str]:
        """`final`: the directory it gets; `is_ours`: this user's key wrote it. Returns notes."""
        ...


def pull(
    url: str | Remote,
    store: Store,
    *,
    settle: Settle,
    on_progress: OnProgress | None = None,
) -> PullResult:
    """Bring the run at ``URL/RUN`` into `store`; it appears there when all of it has arrived.

    Nothing that arrives is started or followed: only plain files are made, inside of the run's
    directory, each checked against its SHA-256. What has arrived stays for the next attempt.

    Args:
        url: The run's own folder.
        store: Where it goes.
        settle: Fits what has arrived to this machine.
        on_progress: Told how far it is.

    Raises:
        UsageError: there is no run at the address, or it is in the store already.
        StorageError: it cannot be read, is damaged, or holds what no run holds.
        StoreError: the store cannot be written, or its disk is too small.
    """
    remote = Remote(url) if isinstance(url, str) else url
    run = read_remote_run(remote)
    if run is None:
        raise UsageError(_no_run(remote))
    paths = RunPaths(store.root / run.run)
    if paths.directory.exists() or paths.directory.is_symlink():
        return _here_already(paths, remote, run)
    try:
        with _claimed(store.root, run.run) as partial:
            _remove_others(partial, run)
            received = _fetch_all(remote, run, partial, on_progress or _silent)
            arrived = RunPaths(partial)
            arrived.make_folders()
            _register(arrived, paths, run)
            notes = settle(arrived, paths.directory, is_ours=run.is_ours)
            partial.rename(paths.directory)
    except StorageError:
        raise
    except OSError as error:
        raise StoreError(_cannot_store(store.root, run, error)) from error
    return _pulled(paths, remote, run, received, notes)


def _pulled(
    paths: RunPaths, remote: Remote, run: RemoteRun, received: int, notes: list[str]
) -> PullResult:
    if run.live:
        notes = [*notes, _LIVE]
    return PullResult(
        run=run.run,
        directory=paths.directory,
        url=remote.url,
        files=len(run.files),
        bytes=run.bytes,
        received_bytes=received,
        checkpoints=[checkpoint.path.rpartition("/")[2] for checkpoint in run.checkpoints],
        step=run.step,
        notes=notes,
    )


def _silent(_done: int, _total: int, _path: str) -> None:
    """No one looks."""


def _no_run(remote: Remote) -> str:
    there = [name for name in remote.folders() if not name.startswith(".")][:8]
    if there == [PIECES]:
        return f"No push to {remote.url} has ended yet. Push the run again: what is there is kept."
    named = f" There are: {', '.join(there)}." if there else ""
    return f"There is no pushed run at {remote.url}. Give the run's own folder: URL/RUN.{named}"


def _here_already(paths: RunPaths, remote: Remote, run: RemoteRun) -> PullResult:
    """The same run, at least as far as what is pushed, is used as it is.

    Raises:
        UsageError: it is another run, or what is pushed is further.
    """
    here = read_run(paths)
    same = here is not None and here.marker == run.marker
    goes_on = same and goes_on_from(paths, run)
    if goes_on and run.attempts <= attempts_of(paths) and not _is_further(run, paths):
        note = f"{run.run} is in the store already and was not resumed elsewhere: it is kept."
        return _pulled(paths, remote, run, 0, [note])
    older = "an older copy of it" + ("" if goes_on else ", or one that was resumed here")
    content = older if same else "another run of that name"
    raise UsageError(
        f"{paths.directory} holds {content}. Pull into another store (--store DIR), or remove that "
        f"one first: {command_for(paths.directory, 'delete')}"
    )


def _is_further(run: RemoteRun, paths: RunPaths) -> bool:
    """Whether the same attempt has saved a later step there than lies here.

    Checkpoints of the script's own way are left out: here they may be called otherwise.
    """
    if run.attempts < attempts_of(paths):
        return False
    there = [
        checkpoint.step
        for checkpoint in run.checkpoints
        if checkpoint.step is not None
        and (checkpoint.reported or checkpoint.path.rpartition("/")[2].startswith("step-"))
    ]
    here = [saved.step for saved in list_checkpoints(paths) if saved.step is not None]
    return max(there, default=-1) > max(here, default=-1)


@contextlib.contextmanager
def _claimed(root: Path, run: str) -> Generator[Path]:
    """A folder that no list shows, for one pull of this run at a time."""
    root.mkdir(parents=True, exist_ok=True)
    partial = root / f".pulling-{run}"
    partial.mkdir(mode=0o700, exist_ok=True)
    reason = foreign_folder(partial)
    if reason is not None:
        raise StoreError(f"{partial} cannot be used: {reason}. Remove it, then pull again.")
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"Another process pulls {run} into {root}. Wait for it.") from None
    else:
        yield partial
    finally:
        os.close(handle)


def _remove_others(partial: Path, run: RemoteRun) -> None:
    """Remove what an earlier attempt left and this push lacks, such as an end that is past."""
    files = {file.path for file in run.files}
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}

    def clean(folder: Path, inside: str) -> None:
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            name = f"{inside}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                if name not in files:
                    Path(entry.path).unlink()
            elif name in folders:
                clean(Path(entry.path), f"{name}/")
            else:
                shutil.rmtree(entry.path)

    clean(partial, "")


def _fetch_all(remote: Remote, run: RemoteRun, partial: Path, tell: OnProgress) -> int:
    """Fetch what is not there yet; returns the bytes fetched."""
    missing = [file for file in run.files if not _is_there(partial / file.path, file)]
    needed, free = sum(file.bytes for file in missing), shutil.disk_usage(partial).free
    if needed > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    done = run.bytes - needed
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = _ahead(pool, remote, missing)
        for file in missing:
            with _created(partial, file) as handle:
                for _ in file.pieces:
                    data = next(waiting).result()
                    _write(handle, data)
                    done += len(data)
                    tell(done, run.bytes, file.path)
            os.utime(partial / file.path, ns=(file.mtime_ns, file.mtime_ns))
    return needed


def _ahead(
    pool: ThreadPoolExecutor, remote: Remote, files: list[RemoteFile]
) -> Iterator[Future[bytes]]:
    """The pieces of all files in order, some of them fetched before they are asked for."""
    pieces = ((digest, size) for file in files for digest, size in file.pieces)
    futures = [pool.submit(_piece, remote, *piece) for piece in islice(pieces, _AHEAD)]
    while futures:
        yield futures.pop(0)
        futures += [pool.submit(_piece, remote, *piece) for piece in islice(pieces, 1)]


def _piece(remote: Remote, digest: str, size: int) -> bytes:
    """A piece with the content that its name says; raises StorageError."""
    problem = ""
    for _ in range(_TRIES):
        try:
            data = remote.read(f"{PIECES}/{digest}", size)
        except FileNotFoundError:
            problem = "it is missing (a later push may have removed it: pull again)"
            continue
        if len(data) == size and hashlib.sha256(data).hexdigest() == digest:
            return data
        problem = f"it has {len(data):,} bytes instead of {size:,}"
        problem = "its SHA-256 differs" if len(data) == size else problem
    raise StorageError(
        f"{remote.url}/{PIECES}/{digest} is damaged: {problem}. Remove it there if it is, then "
        "push the run again from where it is."
    )


def _is_there(path: Path, file: RemoteFile) -> bool:
    """Whether an earlier attempt brought this file whole."""
    try:
        if path.lstat().st_size != file.bytes or path.is_symlink():
            return False
        with path.open("rb") as source:
            return all(
                hashlib.sha256(source.read(size)).hexdigest() == digest
                for digest, size in file.pieces
            )
    except OSError:
        return False


@contextlib.contextmanager
def _created(partial: Path, file: RemoteFile) -> Generator[int]:
    """A new plain file of ours; what an earlier attempt left there is removed."""
    path = partial / file.path
    folder = partial
    for part in file.path.split("/")[:-1]:
        folder = folder / part
        folder.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _register(arrived: RunPaths, final: RunPaths, run: RemoteRun) -> None:
    """Make checkpoints that lay elsewhere known at the place that they have now."""
    for checkpoint in reversed(run.checkpoints):  # the latest word on each is the last
        place = final.directory / checkpoint.path
        manifest = arrived.directory / checkpoint.manifest if checkpoint.manifest else None
        if manifest is not None and manifest.is_file():
            manifest.replace(arrived.manifests / manifest_path(final, place).name)
        if checkpoint.reported:
            append_line(arrived.saved, json.dumps(_saved_line(checkpoint, place)).encode())


def _saved_line(checkpoint: RemoteCheckpoint, place: Path) -> dict[str, Any]:
    return {
        "path": str(place),
        "step": checkpoint.step,
        "kind": checkpoint.kind,
        "time": checkpoint.saved_at,
        "world_size": checkpoint.world_size,
    }


def _cannot_store(root: Path, run: RemoteRun, error: OSError) -> str:
    if isinstance(error, StoreError):
        return str(error)
    if is_full(error):
        return (
            f"{run.run} has {format_bytes(run.bytes)}, and {root} has not so much room left. Free "
            "some and pull again (what has arrived is kept), or pull into another store with "
            "--store DIR."
        )
    return f"{root} cannot be written: {error}. Pull into another store with --store DIR."
