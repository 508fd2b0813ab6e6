"""`push`: send a run to an address; what is there already is not sent again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from workbench.errors import StorageError, StoreError
from workbench.recover.checkpoints import Checkpoint
from workbench.storage.checking import checked
from workbench.storage.earlier_push import (
    check_same,
    kept_checkpoints,
    known_files,
    left_behind,
)
from workbench.storage.manifest import (
    PIECES,
    RemoteCheckpoint,
    RemoteFile,
    RemoteRun,
    read_remote_run,
    safe_path,
    write_remote_run,
)
from workbench.storage.remote import Remote
from workbench.storage.selection import (
    LocalFile,
    chosen_checkpoints,
    manifest_place,
    most_of,
    of_checkpoint,
    of_the_run,
    place_of,
)
from workbench.store.files import open_file
from workbench.store.layout import RunPaths
from workbench.store.record import read_record
from workbench.store.starts import attempts_of, start_times
from workbench.store.status import read_status

PIECE_BYTES = 32 << 20
_PIECE_OF_LINES = 1 << 20  # a file that grows is sent again from the piece on that changed
_GROWS = (".jsonl", ".log")
_THREADS = 4
_TRIES = 8  # of one push, where others publish first
OnProgress = Callable[[int, int, str], None]
"""Bytes looked at, bytes of all, and what is being sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What a push did."""

    run: str
    """Run id."""
    url: str
    """Where the run lies now; `workbench pull` and `resume` take it."""
    files: int
    """Files of the run that lie there."""
    bytes: int
    """Their size together."""
    sent_bytes: int
    """What had to be sent for it."""
    checkpoints: list[str]
    """Names of the checkpoints that lie there, newest first."""
    step: int | None
    """Furthest step of them."""
    seconds: float
    """How long it took."""
    notes: list[str]
    """What was left out, and why."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class _Push:
    """One push under way."""

    remote: Remote
    before: RemoteRun | None
    """What the push before left there."""
    there: dict[str, int]
    """Bytes of each piece that lies there."""
    known_files: dict[str, RemoteFile]
    """Files of the push before, by path."""
    total: int
    tell: OnProgress
    done: int = 0
    sent: int = 0
    under_way: deque[tuple[str, int, Future[None]]] = field(
        default_factory=deque[tuple[str, int, "Future[None]"]]
    )
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS))

    def unchanged(self, file: LocalFile) -> RemoteFile | None:
        """What was sent of it, if it has the size and time that it had then."""
        before = self.known_files.get(file.path)
        about = file.place.lstat()
        now = (about.st_size, max(0, about.st_mtime_ns))
        if before is None or (before.bytes, before.mtime_ns) != now:
            return None
        is_complete = all(self.there.get(digest) == size for digest, size in before.pieces)
        return before if is_complete else None

    def unchanged_since(self, file: LocalFile, sent: RemoteFile) -> bool:
        """Whether nothing was written into a file while it was sent."""
        about = file.place.lstat()
        return (about.st_size, max(0, about.st_mtime_ns)) == (sent.bytes, sent.mtime_ns)

    def file(self, file: LocalFile) -> RemoteFile:
        """Send what is new of a file; raises OSError where it cannot be read."""
        before = self.unchanged(file)
        if before is not None:
            self.say(before.bytes, file.path)
            return before
        pieces = list[tuple[str, int]]()
        size = PIECE_BYTES if not file.path.endswith(_GROWS) else _PIECE_OF_LINES
        with os.fdopen(open_file(file.place), "rb", buffering=0) as source:
            about = os.fstat(source.fileno())
            left = about.st_size  # what is appended meanwhile is of the next push
            while left and (data := _read(source.fileno(), min(size, left))):
                left -= len(data)
                pieces.append((self._piece(data), len(data)))
                self.say(len(data), file.path)
        return RemoteFile(
            path=file.path,
            bytes=sum(length for _, length in pieces),
            mtime_ns=max(0, about.st_mtime_ns),
            pieces=tuple(pieces),
        )

    def _piece(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if self.there.get(digest) != len(data):
            self.there[digest] = len(data)
            if len(self.under_way) >= _THREADS:
                self._wait()
            name = f"{PIECES}/{digest}"
            self.under_way.append(
                (digest, len(data), self.pool.submit(self.remote.write, name, data))
            )
        return digest

    def _wait(self) -> None:
        _, size, future = self.under_way.popleft()
        future.result()
        self.sent += size

    def finish(self) -> None:
        """Wait for what is still being sent; raises StorageError."""
        while self.under_way:
            self._wait()

    def say(self, size: int, path: str) -> None:
        """That so many bytes more were looked at."""
        self.done += size
        self.tell(self.done, max(self.total, self.done), path)


def push(
    paths: RunPaths,
    url: str | Remote,
    *,
    checkpoints: str | None = None,
    on_progress: OnProgress | None = None,
) -> PushResult:
    """Send the run to ``URL/RUN``; readers find all of it or what was there before.

    Several may push there at once, such as a mirror and a push by hand: who finds that another one
    was faster begins again, with what lies there by then.

    Args:
        paths: The run; it may be training.
        url: The folder of runs.
        checkpoints: "newest", "all", "none", or how many of the newest; those that lie there and
            were not asked for are removed, but stay where none here can be sent. None = as in the
            push before, at first the newest. Each is read and checked first; a damaged one is left
            out, and said.
        on_progress: Told how far it is.

    Raises:
        UsageError: the address cannot be used.
        StoreError: the run cannot be read.
        StorageError: the address refuses or does not answer; what was there before is untouched.
    """
    began, sent = time.monotonic(), 0
    remote = (Remote(url) if isinstance(url, str) else url).below(paths.directory.name)
    remote.check_writable()
    remote.check_outside(paths.directory)
    hashed = dict[str, RemoteFile]()
    for _ in range(_TRIES):
        notes = list[str]()
        state, pushed, names = _sent(paths, remote, checkpoints, notes, on_progress, hashed)
        sent += state.sent
        hashed = {file.path: file for file in pushed.files}  # not read a second time
        if _publish(remote, pushed, state.before):
            return _push_result(pushed, remote, sent, names, notes, began)
    raise StorageError(f"{remote.url} changes while the run is sent: others push there. Try later.")


def _sent(
    paths: RunPaths,
    remote: Remote,
    requested: str | None,
    notes: list[str],
    tell: OnProgress | None,
    hashed: dict[str, RemoteFile],
) -> tuple[_Push, RemoteRun, list[str]]:
    """Send all pieces that are not there: the push, what to publish, names of its checkpoints.

    `hashed`: files whose pieces were hashed a moment ago, by path.
    """
    run = read_record(paths, ("run", "marker"))
    before, attempts, started_at = read_remote_run(remote), attempts_of(paths), start_times(paths)
    check_same(remote, before, run.marker, paths)
    which = requested or (
        before.which if before is not None and most_of(before.which) else "newest"
    )
    chosen = chosen_checkpoints(paths, which)
    state = _Push(
        remote=remote,
        before=before,
        there=remote.sizes(PIECES),
        known_files=known_files(before) | hashed,
        total=sum(checkpoint.bytes for checkpoint in chosen[: most_of(which)]),
        tell=tell or (lambda _done, _total, _text: None),
    )
    try:
        sent = _checkpoints(state, paths, chosen, most_of(which), notes)
        described = [(_described(paths, checkpoint), files) for checkpoint, files in sent]
        if not sent and most_of(which):
            described = kept_checkpoints(paths, before, state.there)
            notes += [_stays(checkpoint) for checkpoint, _ in described]
        files = (*_files(state, paths, notes), *(file for _, files in described for file in files))
        state.finish()
    finally:
        state.pool.shutdown(wait=True, cancel_futures=True)
    if not paths.run.exists():  # without its records no one could pull it
        raise StoreError(f"{paths.directory} was removed while it was sent: what lay there stays.")
    pushed = RemoteRun(
        run=paths.directory.name,
        marker=run.marker,
        pushed_at=time.time(),
        attempts=attempts,
        started_at=started_at[-1] if started_at else None,
        live=read_status(paths).live,
        files=files,
        checkpoints=tuple(checkpoint for checkpoint, _ in described),
        which=which,
    )
    names = [checkpoint.name for checkpoint, _ in sent] or list(map(_name, pushed.checkpoints))
    return state, pushed, names


def _push_result(
    pushed: RemoteRun, remote: Remote, sent: int, names: list[str], notes: list[str], began: float
) -> PushResult:
    return PushResult(
        run=pushed.run,
        url=remote.url,
        files=len(pushed.files),
        bytes=pushed.bytes,
        sent_bytes=sent,
        checkpoints=names,
        step=pushed.step,
        seconds=round(time.monotonic() - began, 3),
        notes=notes,
    )


def _publish(remote: Remote, pushed: RemoteRun, before: RemoteRun | None) -> bool:
    """Write the manifest, and remove what neither it nor the one before it names.

    False = it was not written, for another push was: its manifest would be lost, or some of our
    pieces are removed.
    """
    there = remote.objects(PIECES)
    sizes = {digest: stored.bytes for digest, stored in there.items()}
    pieces = (piece for file in pushed.files for piece in file.pieces)
    if any(sizes.get(digest) != size for digest, size in pieces):
        return False
    if read_remote_run(remote) != before:
        return False
    older: frozenset[str] = frozenset() if before is None else before.pieces
    pushed = replace(pushed, before=tuple(sorted(older - pushed.pieces)))
    write_remote_run(remote, pushed)
    unused = set[str]() if before is None else set(before.before)
    unused |= left_behind(there)
    remote.remove(f"{PIECES}/{digest}" for digest in sorted(unused - pushed.pieces - older))
    return True


def _files(state: _Push, paths: RunPaths, notes: list[str]) -> Iterator[RemoteFile]:
    """All but checkpoints; a file that goes while it is looked at is left out."""
    used_names = set[str]()
    for file in of_the_run(paths):
        if _unfit([file], used_names):
            notes.append(f"{file.path!a} is left out: its name cannot be kept there.")
            continue
        with contextlib.suppress(FileNotFoundError):
            yield state.file(file)


def _unfit(files: list[LocalFile], used_names: set[str]) -> str:
    """Why a reader would refuse these names after the `used_names`; "" = it would not."""
    for file in files:
        try:
            name = safe_path(file.path).lower()
        except ValueError:
            name = ""
        if not name or name in used_names:
            return f"the name {file.path!a} cannot be kept there"
        used_names.add(name)
    return ""


def _checkpoints(
    state: _Push,
    paths: RunPaths,
    chosen: list[Checkpoint],
    most: int,
    notes: list[str],
) -> list[tuple[Checkpoint, list[RemoteFile]]]:
    """Send the first `most` of them that are whole."""
    sent = list[tuple[Checkpoint, list[RemoteFile]]]()
    for checkpoint in chosen:
        if len(sent) >= most:
            break
        try:
            local = of_checkpoint(paths, checkpoint)
            is_unchanged = local and all(map(state.unchanged, local))
            problem = (
                "" if is_unchanged else checked(checkpoint, partial(state.say, 0, checkpoint.name))
            )
            problem = problem or _unfit(local, set())
            if not problem:
                files = [state.file(file) for file in local]
                if all(map(state.unchanged_since, local, files)):
                    sent.append((checkpoint, files))
                else:
                    problem = "it was written again meanwhile"
        except FileNotFoundError:
            problem = "it was removed meanwhile"
        except StorageError:
            raise
        except OSError as error:
            raise StoreError(f"{checkpoint.path} cannot be read: {error}") from error
        if problem:
            notes.append(f"Checkpoint {checkpoint.name} is left out: {problem}.")
    return sent


def _name(checkpoint: RemoteCheckpoint) -> str:
    return checkpoint.path.rpartition("/")[2]


def _stays(checkpoint: RemoteCheckpoint) -> str:
    return f"None here could be sent, so {_name(checkpoint)} of the push before stays there."


def _described(paths: RunPaths, checkpoint: Checkpoint) -> RemoteCheckpoint:
    own = checkpoint.path.parent == paths.checkpoints and checkpoint.name.startswith("step-")
    return RemoteCheckpoint(
        path=place_of(paths, checkpoint),
        step=checkpoint.step,
        kind=checkpoint.kind,
        saved_at=checkpoint.saved_at,
        world_size=checkpoint.world_size,
        reported=not own and not checkpoint.by_script,
        manifest=manifest_place(checkpoint),
    )


def _read(handle: int, size: int) -> bytes:
    """`size` bytes, or what there is."""
    parts, left = list[bytes](), size
    while left and (data := os.read(handle, left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
