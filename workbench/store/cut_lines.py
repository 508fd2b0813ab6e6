"""Takes the lines of later steps from the end of a file of metrics."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.store.files import append_line, parse_line

_BLOCK_BYTES = 1 << 16


def cut_after(path: Path, step: int, lost: Path) -> int:
    """Move the lines of steps beyond `step` from the end of `path` to the end of `lost`.

    For a run that continues from a checkpoint of `step`: what came after it happens again. Reads
    backwards from the end, so that it costs what it moves. Returns how many lines were moved.

    Raises:
        OSError: a file cannot be written.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return 0
    with file:
        end = file.seek(0, os.SEEK_END)
        cut, tail = end, b""
        while cut > 0:
            begin = max(0, cut - _BLOCK_BYTES)
            file.seek(begin)
            tail = file.read(cut - begin) + tail
            kept_size = _kept_bytes(tail, step, from_start=begin == 0)
            if kept_size is not None:
                cut, tail = begin + kept_size, tail[kept_size:]
                break
            cut = begin
        if tail:
            append_line(lost, tail.removesuffix(b"\n"))
            file.truncate(cut)
    return tail.count(b"\n")


def _kept_bytes(block: bytes, step: int, *, from_start: bool) -> int | None:
    """Where in the block the lines up to `step` end; None when they lie before it."""
    position = len(block)
    while position > 0:
        start = block.rfind(b"\n", 0, position - 1) + 1
        if start == 0 and not from_start:
            return None  # the line may begin in the block before
        number = (parse_line(block[start:position])[0] or {}).get("step")
        if type(number) is int and number <= step:
            return position  # also where a full disk took its newline: who appends ends it first
        position = start
    return 0
