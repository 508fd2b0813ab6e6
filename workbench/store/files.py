"""Reading and writing run files so that a crash, a full disk or a torn line loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, cast

MAX_LINE_BYTES = 1 << 20  # a metric line is ~200 bytes; past a megabyte it is not one of ours
CHUNK_BYTES = 1 << 20  # read per call, so that catching up never starves the heartbeat


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


def write_bytes_atomic(path: Path, data: bytes) -> int:
    """Replace `path` by `data` in one step. Returns the bytes written; raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return len(data)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where the file is absent, unreadable or not an object."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


class LineReader:
    """Reads a growing file of JSON lines from where it stopped; never the same byte twice.

    A last line without its newline is not yet written: it waits. A line that does not parse, is
    not an object, or is longer than `MAX_LINE_BYTES` is counted in `skipped`, and the rest is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        self.at_end = False  # whether the last read reached what was written so far
        self._offset = 0
        self._rest = b""
        self._discarding = False

    def read(self) -> list[dict[str, Any]]:
        """Return the objects that have been completed since the last call (at most one chunk)."""
        try:
            with self.path.open("rb", buffering=0) as file:
                if self._offset:
                    file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            data = b""
        self.at_end = len(data) < CHUNK_BYTES
        if not data:
            return []
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._discarding and lines:
            self._discarding = False
            lines.pop(0)
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self.skipped += not self._discarding
            self._discarding = True
        return self._parse_all([line for line in lines if line])

    def _parse_all(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """All at once, twice as fast as line by line; one by one where one of them is broken."""
        try:
            documents: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
        except ValueError:
            documents = []
        if len(documents) == len(lines) and all(type(one) is dict for one in documents):
            return documents
        return [parsed for line in lines if (parsed := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            self.skipped += 1
            return None
        return cast("dict[str, Any]", document)


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the last `max_bytes` of a text file, decoded with replacement, whole lines if any."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return ""
    if size > max_bytes and b"\n" in data[:-1]:
        data = data[data.index(b"\n") + 1 :]
    return data.decode("utf-8", errors="replace")
