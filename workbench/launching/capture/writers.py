"""Files written by a rank: they wait while a disk refuses, and never cost the script anything."""

from __future__ import annotations

import collections
import contextlib
import errno
import faulthandler
import io
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_MAX_PENDING_BYTES = 1 << 20
_MAX_PENDING_LINES = 100_000  # lines kept in memory while the disk refuses them (about 20 MB)
_LINES_AT_ONCE = 512
# Not of a disk: the script has closed the descriptor, or put a pipe there that no one reads.
_SCRIPTS_OWN = {errno.EBADF, errno.EPIPE}
_LOOK_SECONDS = 0.25
_FLUSH_LOOK_SECONDS = 0.001


def current_rss_peak() -> int | None:
    """Peak resident memory of this program (VmHWM: ru_maxrss would count the launcher's too)."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def open_lines(path: str, mode: int = 0o644) -> int:
    """Open a file of lines for appending; a last line that someone left torn is ended first.

    Of a rank that was killed, or a machine that lost its power: the next line would be glued to it,
    and both be lost.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, mode)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")
    except OSError:
        os.close(handle)
        raise
    return handle


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor leads to; None where it is closed.

    A script may close all descriptors (as daemons do), and its own files then get their numbers.
    """
    try:
        stat = os.fstat(descriptor)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


class LineWriter:
    """Appends lines; a full disk keeps them waiting, a torn write is continued where it tore."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._opened: tuple[int, int] | None = None
        self._pending: collections.deque[bytes] = collections.deque()
        self._torn = False  # the first line that waits is the rest of one
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Append `line` (newline included), or keep it for the next call."""
        self.keep(line)
        self.flush()

    def keep(self, line: bytes) -> None:
        """Take `line` for the next `flush`."""
        self._pending.append(line)
        if len(self._pending) > _MAX_PENDING_LINES:
            # The first one may be the rest of a torn line, which must stay.
            del self._pending[1]
            self.dropped += 1

    def flush(self) -> bool:
        """Write what waits; whether nothing waits any more."""
        with contextlib.suppress(OSError):
            if self._file is None or file_of(self._file) != self._opened:
                self._file = self._open()
                self._opened = file_of(self._file)
            while self._pending:
                some = list(itertools.islice(self._pending, _LINES_AT_ONCE))
                data = b"".join(some)
                unwritten = data[os.write(self._file, data) :]
                for _ in some:
                    self._pending.popleft()
                self._torn = bool(unwritten)
                if unwritten:
                    self._pending.appendleft(unwritten)
        return not self._pending

    def _open(self) -> int:
        if not self._torn:
            return open_lines(self._path)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        """Give the descriptor back; a later `write` opens the file again."""
        if self._file is not None and file_of(self._file) == self._opened:
            os.close(self._file)
        self._file = None


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # dumps() would make one per line


class LaterLines:
    """Lines of JSON, made and written by a thread: a disk that stalls does not hold up training.

    A line that comes 250 ms after the one before and later is written at once. Where they come
    faster, the thread writes all that there are every 250 ms: it costs less than a system call per
    line, and is what a SIGKILL may lose. So a save of a checkpoint, from which a resume continues,
    has the lines before it written first. While none come, the thread sleeps.
    """

    def __init__(
        self, path: str, as_line: Callable[[Any], dict[str, Any]], attend: Callable[[], None]
    ) -> None:
        self.path = path
        self._as_line = as_line  # makes a line of what was handed over
        self._attend = attend  # called whenever the thread looks for lines
        self._lines: collections.deque[Any] = collections.deque()
        self._handed = self._done = 0  # each counted by one thread alone
        self.idle = True
        """Whether the thread sleeps until it is roused."""
        self._thread: threading.Thread | None = None
        self._wake = threading.Lock()  # held while the thread may sleep

    def rouse(self) -> None:
        """Start the thread, or wake it: a line or a beat of the pulse has come. Call it if idle."""
        self.idle = False  # once is enough, however long the thread takes to come
        if self._thread is not None:
            self.wake()
            return
        self._wake.acquire(blocking=False)
        self._thread = threading.Thread(target=self._carry, name="workbench-lines", daemon=True)
        self._thread.start()

    def write(self, line: Any) -> None:
        """Hand over what makes one line, which must not change from now on; returns at once."""
        if len(self._lines) < _MAX_PENDING_LINES:  # else no one has taken one for very long
            self._handed += 1
            self._lines.append(line)
        if self.idle:
            self.rouse()

    def flush(self, seconds: float) -> bool:
        """Wait until all is written, but no longer than `seconds`; whether it is."""
        deadline = time.monotonic() + seconds
        while self._done < self._handed and time.monotonic() < deadline:
            self.wake()
            time.sleep(_FLUSH_LOOK_SECONDS)
        return self._done == self._handed

    def wake(self) -> None:
        """Let the thread write what waits now; returns at once."""
        if self._wake.locked():
            with contextlib.suppress(RuntimeError):  # another thread was first
                self._wake.release()

    def _carry(self) -> None:
        writer, written = LineWriter(self.path), 0
        while True:
            before = written
            while self._lines:
                with contextlib.suppress(TypeError, ValueError):
                    line = self._as_line(self._lines.popleft())
                    writer.keep(_ENCODE(line).encode() + b"\n")
                written += 1
            if writer.flush():
                self._done = written
            # From here on a caller with new lines sees that it has to wake us.
            self.idle = self._done == written == before
            self._attend()
            if not self.idle:
                self._wake.acquire(timeout=_LOOK_SECONDS)
            elif not self._lines:
                self._wake.acquire()
            self.idle = False


class PatientFile(io.RawIOBase):
    """A file descriptor for logs: while the disk refuses, output waits, the oldest is given up."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__()
        self.name = name
        self.mode = "wb"
        self._descriptor = descriptor
        # Threads print at once, signal handlers within a print, and a fork may come in between: so
        # no lock, and each piece is written by whoever took it.
        self._pending: collections.deque[bytes] = collections.deque()

    def fileno(self) -> int:
        """The descriptor itself, for programs that the script starts."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Take all of `data`; what the disk refuses is tried again with the next call.

        Raises OSError as Python's own file does, where the script has taken the descriptor away.
        """
        self._pending.append(bytes(data))
        while (piece := self._take()) is not None:
            try:
                while piece:
                    piece = piece[os.write(self._descriptor, piece) :]
            except OSError as error:
                if error.errno in _SCRIPTS_OWN:
                    raise
                pieces = [piece, *iter(self._take, None)]
                self._pending.appendleft(b"".join(pieces)[-_MAX_PENDING_BYTES:])
                break
        return len(data)

    def _take(self) -> bytes | None:
        """The first piece that waits; None when another thread took the last one."""
        try:
            return self._pending.popleft()
        except IndexError:
            return None


def write_json(path: str, document: dict[str, Any]) -> None:
    """Replace `path` by `document`, whole or not at all; a disk that refuses is passed over."""
    with contextlib.suppress(OSError, ValueError):
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, path)


def update_json(path: str, facts: dict[str, Any]) -> None:
    """Add `facts` to the document in `path`, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        write_json(path, {**document, **facts})


def redirect_output(path: str) -> None:
    """Send this process's stdout and stderr (the file descriptors) to the rank's log."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        sys.stdout = sys.__stdout__ = _patient_stream(1, "<stdout>")
        sys.stderr = sys.__stderr__ = _patient_stream(2, "<stderr>")
        faulthandler.enable()


def _patient_stream(descriptor: int, name: str) -> io.TextIOWrapper:
    """A text stream whose ``print`` survives a full disk, as on the terminal it replaces."""
    file = PatientFile(descriptor, name)  # unbuffered, as torchrun's own `python -u` is
    stream = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", write_through=True)  # pyright: ignore[reportArgumentType]
    stream.mode = "w"  # pyright: ignore[reportAttributeAccessIssue]  # as Python's own says
    return stream


def json_lines(path: str) -> Iterator[dict[str, Any]]:
    """The documents of a file of JSON lines; a line that is cut off is passed over."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for text in file:
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line
