"""What scripts and frameworks logged by name, read from the ranks' files at full resolution.

A name's values are those of the lowest rank that logs it; the others' are read by `rank`. Where a
name is logged for an earlier step again (the run went back), its later values replace the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from workbench.observe.text_samples import TextSamples, named_values
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

MAX_NAMES = 200
"""Names that are followed live; more are counted and stay in the files."""
RECORDED_NAMES = 10_000
"""Names that are read from the files: the hook writes at most 1,000 of a rank."""


@dataclass(slots=True, kw_only=True)
class LoggedRow:
    """What was logged in one line."""

    step: int
    """The script's optimizer steps so far, or the step that it gave."""
    time: float
    """Unix seconds."""
    values: dict[str, float]
    """Numbers by name; NaN and infinities too."""


def read_row(line: Mapping[str, Any], step: int) -> LoggedRow | None:
    """A line's numbers; `step`: of the line before, where this one has none."""
    named = named_values(line)
    values = {name: float(value) for name, value in named.items() if type(value) in {int, float}}
    at = line.get("time")
    if not values or not isinstance(at, int | float):
        return None
    own = line.get("step")
    return LoggedRow(step=own if type(own) is int else step, time=at, values=values)


class LoggedStream:
    """Follows what all ranks log. Call `read` as often as wanted; it never blocks."""

    def __init__(
        self, paths: RunPaths, ranks: Iterable[int], names_max: int = RECORDED_NAMES
    ) -> None:
        self._names_max = names_max
        self._readers = {rank: LineReader(paths.rank_said(rank)) for rank in ranks}
        self._steps = dict.fromkeys(self._readers, 0)
        self._sizes = dict.fromkeys(self._readers, -1)
        self.owners: dict[str, int] = {}
        """Name -> the rank whose values count."""
        self.samples = TextSamples()
        self.left_out = 0
        """Names beyond `names_max`."""
        self._left_out: set[str] = set()
        self.at_end = False

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read each rank's file from there on; to be called before the first `read`."""
        for rank, offset in offsets.items():
            self._readers[rank] = LineReader(self._readers[rank].path, offset)

    def add_ranks(self, paths: RunPaths, ranks: int) -> None:
        """Follow more ranks, up to `ranks` in all."""
        for rank in range(len(self._readers), ranks):
            self._readers[rank] = LineReader(paths.rank_said(rank))
            self._steps[rank], self._sizes[rank] = 0, -1

    def read(self) -> list[LoggedRow]:
        """Rows written since the last call, at most one chunk of each rank's file."""
        rows: list[LoggedRow] = []
        self.at_end = True
        for rank, reader in self._readers.items():
            if not self._grown(rank, reader):
                continue
            for line in reader.read():
                self.samples.add(rank, line, self._steps[rank])
                row = read_row(line, self._steps[rank])
                if row is not None:
                    self._steps[rank] = row.step
                    self._keep_own(rank, row)
                    if row.values:
                        rows.append(row)
            self.at_end = self.at_end and reader.at_end
        return rows

    def _grown(self, rank: int, reader: LineReader) -> bool:
        """Most ranks log nothing: one look at the file's size, no opening."""
        try:
            size = os.lstat(reader.path).st_size
        except OSError:
            return False
        grown = size != self._sizes[rank] or not reader.at_end
        self._sizes[rank] = size
        return grown

    def _keep_own(self, rank: int, row: LoggedRow) -> None:
        owners = self.owners
        for name in list(row.values):
            owner = owners.get(name)
            if owner == rank:
                continue
            if owner is None and len(owners) >= self._names_max:
                if len(self._left_out) < 10 * self._names_max:
                    self._left_out.add(name)
                    self.left_out = len(self._left_out)
                del row.values[name]
            elif owner is None or rank < owner:
                owners[name] = rank
            else:
                del row.values[name]


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the shell-style patterns names it.

    >>> matches_any("eval/loss", ["eval/*"]), matches_any("eval_loss", ["eval/*"])
    (True, False)
    """
    pattern_list = list(patterns)
    return not pattern_list or any(fnmatchcase(name, pattern) for pattern in pattern_list)
