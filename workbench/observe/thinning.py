"""Tables that stay small however long the run: rows merge in pairs when the table is full.

Means stay means, minima and maxima survive. Appending is O(1) amortised; memory is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

Rule = Literal["last", "mean", "min", "max"]
Number = float | int | None


class ThinnedTable:
    """At most `capacity` rows; each stands for `stride` consecutive appended rows."""

    def __init__(self, columns: Mapping[str, Rule], capacity: int) -> None:
        self.stride = 1
        self._rules = dict(columns)
        self._capacity = max(4, capacity - capacity % 2)
        self._columns: dict[str, list[Number]] = {name: [] for name in columns}
        self._open: dict[str, list[Number]] = {name: [] for name in columns}
        self._open_rows = 0

    def append(self, row: Mapping[str, Number]) -> None:
        """Add a row; missing columns are unknown (None)."""
        for name, values in self._open.items():
            values.append(row.get(name))
        self._open_rows += 1
        if self._open_rows >= self.stride:
            self._close()

    def _close(self) -> None:
        for name, values in self._open.items():
            self._columns[name].append(round_significant(merge(self._rules[name], values)))
            values.clear()
        self._open_rows = 0
        if len(next(iter(self._columns.values()))) >= self._capacity:
            self._halve()

    def _halve(self) -> None:
        for name, values in self._columns.items():
            rule = self._rules[name]
            self._columns[name] = [
                round_significant(merge(rule, values[index : index + 2]))
                for index in range(0, len(values), 2)
            ]
        self.stride *= 2

    def drop_beyond(self, name: str, limit: float) -> None:
        """Take back the rows at the end whose value in column `name` is over `limit`.

        A row that stands for several goes as a whole.
        """
        for table in (self._columns, self._open):
            values = table[name]
            kept = len(values)
            while kept and (values[kept - 1] or 0) > limit:
                kept -= 1
            for column in table.values():
                del column[kept:]
        self._open_rows = len(self._open[name])

    def columns(self) -> dict[str, list[Number]]:
        """All rows by column, the unfinished last one included."""
        if not self._open_rows:
            return {name: list(values) for name, values in self._columns.items()}
        return {
            name: [*values, round_significant(merge(self._rules[name], self._open[name]))]
            for name, values in self._columns.items()
        }


def merge(rule: Rule, values: Sequence[Number]) -> Number:
    """Combine values by `rule`, leaving unknown and non-finite ones out; None when none is left."""
    if rule == "last":
        return values[-1]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    if rule == "mean":
        return sum(known) / len(known)
    return min(known) if rule == "min" else max(known)


def round_significant(value: Number) -> Number:
    """Six significant digits, so that a row costs few bytes; integers and times stay exact.

    >>> round_significant(3.14159265), round_significant(1763700000.123), round_significant(12)
    (3.14159, 1763700000.123, 12)
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    if abs(value) > 1e8:
        return round(value, 3)
    return float(f"{value:.6g}")
