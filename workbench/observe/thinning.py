"""Tables that stay small however long the run: rows merge in pairs when the table is full.

Means stay means, minima and maxima survive. Appending is O(1) amortised; memory is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

Rule = Literal["last", "mean", "min", "max"]
Number = float | int | None
_REDUCE = {"mean": sum, "min": min, "max": max}


class ThinnedTable:
    """At most `capacity` rows; each stands for `stride` consecutive appended rows."""

    def __init__(self, columns: Mapping[str, Rule], capacity: int) -> None:
        self.stride = 1
        self.rewritten = 0
        """How often rows that were there before have changed or gone."""
        self._rules = dict(columns)
        self._capacity = max(4, capacity - capacity % 2)
        self._columns: dict[str, list[Number]] = {name: [] for name in columns}
        # The row that is not full yet: what was merged at the last look, and what came since.
        self._merged: dict[str, MergedValues] | None = None
        self._merged_rows = 0
        self._new: list[tuple[Number, ...]] = []

    @property
    def names(self) -> Collection[str]:
        """Its columns."""
        return self._rules.keys()

    def append(self, row: Mapping[str, Number]) -> None:
        """Add a row; missing columns are unknown (None)."""
        values = tuple(map(row.get, self._rules))
        if self.stride == 1:  # the first minutes: each row stands for itself
            self._add_row(map(round_significant, values))
            return
        self._new.append(values)
        if self._merged_rows + len(self._new) >= self.stride:
            self._add_row(self._full_row())
            self._forget_unfinished()

    def _add_row(self, values: Iterable[Number]) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        if len(next(iter(self._columns.values()))) >= self._capacity:
            self._halve()

    def _forget_unfinished(self) -> None:
        self._merged = None
        self._merged_rows = 0
        self._new.clear()

    def _halve(self) -> None:
        for name, values in self._columns.items():
            rule = self._rules[name]
            self._columns[name] = [
                round_significant(merge(rule, values[index : index + 2]))
                for index in range(0, len(values), 2)
            ]
        self.stride *= 2
        self.rewritten += 1

    def drop_beyond(self, step: float) -> None:
        """Take back the rows at the end whose `step` is later.

        A row that stands for several goes as a whole.
        """
        values = self._columns["step"]
        length = len(values)
        while length and (values[length - 1] or 0) > step:
            length -= 1
        for column in self._columns.values():
            del column[length:]
        place = list(self._rules).index("step")
        if self._merged is not None and (self._merged["step"].value or 0) > step:
            self._forget_unfinished()
        while self._new and (self._new[-1][place] or 0) > step:
            self._new.pop()
        self.rewritten += 1

    def columns(self) -> dict[str, list[Number]]:
        """All rows by column, the unfinished last one included."""
        last = [] if (row := self.unfinished()) is None else [row]
        return {
            name: [*values, *(row[name] for row in last)] for name, values in self._columns.items()
        }

    def finished(self, since: int) -> Iterator[dict[str, Number]]:
        """The rows that are full, from number `since` on; they stay until `rewritten` changes."""
        columns = [values[since:] for values in self._columns.values()]
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True))

    def unfinished(self) -> dict[str, Number] | None:
        """The last row, to which more will be added; None where there is none."""
        if self._new:
            if self._merged is None:
                self._merged = {name: MergedValues(rule) for name, rule in self._rules.items()}
            for merged, values in zip(
                self._merged.values(), zip(*self._new, strict=True), strict=True
            ):
                merged.add(values)
            self._merged_rows += len(self._new)
            self._new.clear()
        if self._merged is None:
            return None
        return {name: round_significant(merged.value) for name, merged in self._merged.items()}

    def _full_row(self) -> Iterable[Number]:
        """The values of the row that is full now."""
        if self._merged is not None:
            return (self.unfinished() or {}).values()
        columns = zip(self._rules.values(), zip(*self._new, strict=True), strict=True)
        return [round_significant(merge(rule, values)) for rule, values in columns]


class MergedValues:
    """Values that become one, taken in bit by bit."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._value: Number = None
        self._count = 0

    def add(self, values: Sequence[Number]) -> None:
        """Take in more, of which there is at least one."""
        if self._rule == "last":
            self._value = values[-1]
            return
        finite = _finite(values)
        if not finite:
            return
        self._count += len(finite)
        before = [] if self._value is None else [self._value]
        self._value = _REDUCE[self._rule]([*before, *finite])

    @property
    def value(self) -> Number:
        """What they are together; None when none is known."""
        if self._rule != "mean" or self._value is None:
            return self._value
        return self._value / self._count


def merge(rule: Rule, values: Sequence[Number]) -> Number:
    """Combine values by `rule`, leaving unknown and non-finite ones out; None when none is left."""
    if rule == "last":
        return values[-1]
    finite = _finite(values)
    if not finite:
        return None
    return sum(finite) / len(finite) if rule == "mean" else _REDUCE[rule](finite)


def _finite(values: Sequence[Number]) -> list[float | int]:
    return [value for value in values if value is not None and math.isfinite(value)]


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
