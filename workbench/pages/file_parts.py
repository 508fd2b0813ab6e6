"""Bytes of the files of a run that pages read: logs and samples, a part at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.store.files import open_file

PART_MAX_BYTES = 1 << 20
_READABLE = re.compile(
    r"logs/(rank-\d+|launcher|launcher-node-\d+|supervisor)\.log|system\.jsonl|nodes/system-\d+\.jsonl"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Some bytes of a file."""

    data: bytes
    """At most `PART_MAX_BYTES`."""
    start: int
    """Where in the file they begin."""
    size: int
    """The whole file's, at that moment."""

    @property
    def about(self) -> dict[str, int]:
        """What is said beside the bytes."""
        return {"start": self.start, "size": self.size}


def file_part(directory: Path, request: Mapping[str, Any]) -> FilePart | None:
    """``{name, start, end}`` of one of the files that pages read; None where it cannot be read.

    A negative start counts from the file's end, as in an HTTP range; an end of None is its end.
    """
    name, start, end = request.get("name"), request.get("start"), request.get("end")
    if not isinstance(name, str) or not _READABLE.fullmatch(name) or not isinstance(start, int):
        return None
    try:
        handle = open_file(directory / name)
    except FileNotFoundError:
        return FilePart(data=b"", start=0, size=0)
    except OSError:
        return None
    try:
        size = os.fstat(handle).st_size
        first = max(0, size + start) if start < 0 else min(start, size)
        last = min(size, end) if isinstance(end, int) else size
        data = os.pread(handle, max(0, min(last - first, PART_MAX_BYTES)), first)
    except OSError:
        return None  # a file system that does not answer: the page asks again
    finally:
        os.close(handle)
    return FilePart(data=data, start=first, size=size)
