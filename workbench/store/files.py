"""Reading and writing run files so that a crash, a full disk or a torn line loses nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, cast

from workbench.store import secrets, shapes

_T = TypeVar("_T")
MAX_LINE_BYTES = 1 << 20  # a metric line is ~200 bytes; past a megabyte it is not one of ours
MAX_JSON_BYTES = 8 << 20  # run.json of a large search is ~100 kB
MAX_TRACE_BYTES = 1 << 30  # what ranks write of each parameter or operator of some steps
_MAX_GLUED = 8  # records in one broken line that are tried
CHUNK_BYTES = 1 << 20  # read per call, so that catching up never starves the heartbeat
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_INTEGER = b"0" * 40  # far from what a float can hold; the search for it costs next to nothing


def write_json_atomic(path: Path, document: object, *, indent: int | None = None) -> int:
    """Replace `path` by `document` as strict JSON; readers see the old or the new one, whole.

    Returns:
        The number of bytes written.

    Raises:
        OSError: the disk refused (full, read-only); the old file is untouched.
        ValueError: the document holds NaN or an infinity.
    """
    text = json.dumps(
        document, allow_nan=False, indent=indent, separators=None if indent else (",", ":")
    )
    return write_text_atomic(path, text)


def write_text_atomic(path: Path, text: str) -> int:
    """Replace `path` by `text` in one step. Returns the bytes written; raises OSError."""
    return write_bytes_atomic(path, text.encode())


def write_bytes_atomic(path: Path, data: bytes, *, hide: bool = True) -> int:
    """Replace `path` by `data` in one step, readable by us only. Returns the bytes written.

    What has the shape of a key, or is one that this process holds in its environment, is hidden;
    with ``hide=False`` the caller has done that: in a library's own code it would break the code.

    Raises:
        OSError: the disk refused; the old file is untouched.
    """
    data = secrets.hide_bytes(data) if hide else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(_create(temporary), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return len(data)


def reserve(path: Path, size: int) -> None:
    """Make a file that holds an inode and `size` bytes of the disk; raises OSError.

    Where there is no room for all of it nothing is held: it would be the last that there is.
    """
    try:
        with os.fdopen(_create(path), "wb") as file:
            file.write(b"\0" * size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def write_json_reserved(reserved: Path, path: Path, document: object) -> int:
    """As `write_json_atomic`, into the file that `reserve` made: needs neither inode nor space.

    Where the reserved file is gone, or has another owner or name, a new one is made.

    Raises:
        OSError: the disk refused; the old file is untouched.
    """
    data = secrets.hide_bytes(json.dumps(document, allow_nan=False, indent=2).encode())
    try:
        handle = os.open(reserved, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return write_bytes_atomic(path, data)
    with os.fdopen(handle, "wb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_uid != os.geteuid():
            return write_bytes_atomic(path, data)
        file.write(data)
        file.truncate(len(data))
    reserved.replace(path)
    return len(data)


def _create(path: Path) -> int:
    """A new file of ours; what lies there already is removed, never followed and written to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:  # left by a process that had our number and died, or planted
        path.unlink()
        return os.open(path, flags, 0o600)


def open_file(path: Path) -> int:
    """Open a file of a run for reading: a plain one, in its own folder, that leads nowhere else.

    A link planted in a shared store must not show what only its reader may read, and a pipe must
    not block its reader forever.

    Raises:
        OSError: it cannot be opened, or is a link, a pipe, a device, or a second name of a file
            that belongs to someone else.
    """
    here = os.open(path.parent, _FOLDER_FLAGS)
    try:
        handle = os.open(path.name, _FILE_FLAGS, dir_fd=here)
        about, owner = os.fstat(handle), os.fstat(here).st_uid
    finally:
        os.close(here)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    if about.st_nlink > 1 and about.st_uid != owner:
        os.close(handle)
        raise OSError(errno.EPERM, "a hard link to the file of another user", str(path))
    return handle


_READ: ContextVar[dict[Path, tuple[dict[str, Any] | None, str | None]] | None] = ContextVar(
    "documents read within reading_once", default=None
)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Content, opened as `open_file` does. Raises OSError: also of more than `max_bytes`."""
    with os.fdopen(open_file(path), "rb") as file:
        data = file.read(CHUNK_BYTES // 16)  # most are small, and a read's buffer is as large
        if len(data) == CHUNK_BYTES // 16:
            data += file.read(max_bytes + 1 - len(data))
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return data


def read_texts(folder: Path, max_bytes: int) -> dict[str, str]:
    """Path -> text of each file in a folder of a run; links and what is no text are left out."""
    texts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            with contextlib.suppress(OSError, ValueError):
                texts[str(path)] = read_file(path, max_bytes).decode()
    return texts


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where the file is absent, unreadable or not an object.

    Values that the schema does not allow in a file of that name are left out, see `shapes`.
    """
    return read_json_or_why(path)[0]


def read_as(_kind: type[_T], path: Path) -> _T | None:
    """`read_json` of a file that holds a document of that kind, a TypedDict of the schema."""
    return cast("_T | None", read_json(path))


@contextlib.contextmanager
def reading_once() -> Generator[None]:
    """Within it each document is read once, as it was at first: for lists of thousands of runs.

    Every reader gets the same object; none may change it.
    """
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def read_json_or_why(
    path: Path, max_bytes: int = MAX_JSON_BYTES
) -> tuple[dict[str, Any] | None, str | None]:
    """Like `read_json`, and why there is nothing; no reason is given for a file that is absent.

    `max_bytes`: a larger file is not read; give `MAX_TRACE_BYTES` for what grows with the model.
    """
    read = _READ.get()
    if read is None or max_bytes != MAX_JSON_BYTES:
        return _read_json_or_why(path, max_bytes)
    if path not in read:
        read[path] = _read_json_or_why(path, max_bytes)
    return read[path]


def _read_json_or_why(path: Path, max_bytes: int) -> tuple[dict[str, Any] | None, str | None]:
    try:
        data = read_file(path, max_bytes)
        document = _parse(data)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, _why(error)
    except (ValueError, RecursionError, MemoryError):
        return None, "not JSON"
    if not isinstance(document, dict):
        return None, "no JSON object"
    return shapes.fit(path.name, cast("dict[str, Any]", document)), None


def _why(error: OSError) -> str:
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return "a symbolic link"
    return (error.strerror or str(error)).lower()


def _parse(data: bytes) -> Any:
    """JSON of anyone: half a surrogate pair, which nothing could print, becomes "?"."""
    document = json.loads(data)
    if _SURROGATE.search(data):
        text = json.dumps(document, ensure_ascii=False)
        document = json.loads(text.encode("utf-8", errors="replace"))
    return document


def append_line(path: Path, line: bytes) -> None:
    """Append a line (without its newline) to a file of lines, in one call of the system.

    A last line that was left torn is ended first: neither of them is lost.

    Raises:
        OSError: the disk refused.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        written = os.write(handle, data)
        if written < len(data):  # the disk is full: leave nothing of it, it may be tried again
            if os.fstat(handle).st_size == size + written:
                os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def parse_line(line: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The object of a JSON line, and whether all of the line was one.

    Of a line that was torn, and to which the next one was glued (a version without `append_line`,
    or blocks of zeros after a loss of power), the whole record at its end is given.
    """
    document = _object(line)
    if document is not None:
        return document, True
    head = line[: line.find(b":") + 1]
    begins = head[max(0, head.rfind(b'{"')) :]  # as each record of its kind does
    at = line.find(begins, 1) if begins else -1
    for _ in range(_MAX_GLUED):
        if at < 0 or document is not None:
            break
        document, at = _object(line[at:]), line.find(begins, at + 1)
    return document, False


def _object(data: bytes) -> dict[str, Any] | None:
    document: Any = None
    with contextlib.suppress(ValueError, RecursionError, MemoryError):
        document = _parse(data)
    if not isinstance(document, dict) or not shapes.line_fits(cast("dict[str, Any]", document)):
        return None
    return cast("dict[str, Any]", document)


class LineReader:
    """Reads a growing file of JSON lines from where it stopped; never the same byte twice.

    A last line without its newline is not yet written: it waits. A line that does not parse, is
    not an object, or is longer than `MAX_LINE_BYTES` is counted in `skipped`, and the rest is read.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        """`offset`: where a line begins, to read from there on."""
        self.path = path
        self.skipped = 0
        self.at_end = False  # whether the last read reached what was written so far
        self._offset = offset
        self._partial_line = b""
        self._discarding = False

    def read(self) -> list[dict[str, Any]]:
        """Return the objects that have been completed since the last call (at most one chunk)."""
        try:
            with os.fdopen(open_file(self.path), "rb", buffering=0) as file:
                if self._offset:
                    file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            data = b""
        self.at_end = len(data) < CHUNK_BYTES
        if not data:
            return []
        self._offset += len(data)
        lines = (self._partial_line + data).split(b"\n")
        self._partial_line = lines.pop()
        if self._discarding and lines:
            self._discarding = False
            lines.pop(0)
        if len(self._partial_line) > MAX_LINE_BYTES:
            self._partial_line = b""
            self.skipped += not self._discarding
            self._discarding = True
        return self._parse_all([line for line in lines if line])

    def read_unfinished(self) -> list[dict[str, Any]]:
        """The last line where only its newline is missing: of a file that no one writes to."""
        line, self._partial_line = self._partial_line, b""
        document, is_whole = parse_line(line)
        return [document] if document is not None and is_whole else []

    def _parse_all(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """All at once, twice as fast as line by line; one by one where one of them is broken."""
        array = b"[" + b",".join(lines) + b"]"
        documents: list[Any] = []
        if _LONG_INTEGER not in array.translate(_TO_ZERO) and not _SURROGATE.search(array):
            with contextlib.suppress(ValueError, RecursionError, MemoryError):
                documents = json.loads(array)
        if len(documents) == len(lines) and all(type(document) is dict for document in documents):
            return documents
        return [parsed for line in lines if (parsed := self._parse_one(line)) is not None]

    def _parse_one(self, line: bytes) -> dict[str, Any] | None:
        document, valid = parse_line(line)
        self.skipped += not valid
        return document


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the last `max_bytes` of a text file, decoded with replacement, whole lines if any."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return ""
    if size > max_bytes and b"\n" in data[:-1]:
        data = data[data.index(b"\n") + 1 :]
    return data.decode("utf-8", errors="replace")
