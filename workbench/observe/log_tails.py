"""The ends of the ranks' logs, made fit for a screen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workbench.store.files import read_file, read_tail
from workbench.store.printable import MAX_LINE, is_printable, printable
from workbench.units import format_bytes

_FULL_BYTES = 256 << 20  # of a log that is shown in full, or read for its last lines


class LogTail:
    """The end of one growing log; read again only when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._lines: list[str] = []

    def lines(self, budget: int) -> list[str]:
        """Its last lines, of `budget` characters together."""
        try:
            about = os.lstat(self._path)
        except OSError:
            return []
        stamp = (about.st_ino, about.st_size, about.st_mtime_ns, budget)
        if stamp != self._stamp:
            self._lines = log_lines(read_tail(self._path, budget), budget)
            self._stamp = stamp
        return self._lines


def log_lines(text: str, budget: int = 12_000, most: int = 200) -> list[str]:
    r"""Printable lines of a log's end: escapes gone, a progress bar's ``\r`` states collapsed.

    >>> log_lines("10%\r50%\r100%\nok \x1b[31mred\x1b[0m")
    ['100%', 'ok red']
    """
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    if max(map(len, lines)) > MAX_LINE or not is_printable("\n".join(lines)):  # seldom
        lines = [printable(line) for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    lines = lines[-most:]
    while len(lines) > 1 and sum(map(len, lines)) > budget:
        lines.pop(0)
    return lines


def log_text(path: Path, tail: int | None) -> str:
    """A whole log, or its last `tail` lines with progress bars collapsed.

    Of one that is too large for a screen, or whose last lines are, the end, below a line that
    says so.
    """
    if tail is None:
        try:
            return read_file(path, _FULL_BYTES).decode("utf-8", errors="replace")
        except OSError:  # not there, a link to elsewhere, or beyond what a screen is for
            end, is_cut = read_tail(path, _FULL_BYTES), _size(path) > _FULL_BYTES
        said = f"… only the last {format_bytes(_FULL_BYTES)} of {path}:\n"
        return said + end if end and is_cut else end
    if tail <= 0:
        return ""
    budget = min(_FULL_BYTES, 400 * tail)
    while True:
        text, size = read_tail(path, budget), _size(path)
        lines = log_lines(text, sys.maxsize, tail + 1)  # the first may be cut
        if len(lines) > tail or budget >= size:
            return "\n".join(lines[-tail:])
        if budget >= _FULL_BYTES:
            said = f"… only the last {format_bytes(_FULL_BYTES)} of {path}:"
            return "\n".join([said, *lines[-tail:]])
        budget = min(_FULL_BYTES, 4 * budget)  # the states of a progress bar are one long line


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
