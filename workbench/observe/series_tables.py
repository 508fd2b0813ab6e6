"""Logged numbers thinned as they come: what the supervisor holds of them, and shows in the view."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from workbench.observe.logged import LoggedRow
from workbench.observe.series_names import figures
from workbench.observe.thinning import Number, Rule, ThinnedTable, merge, round_significant

SERIES_SHOWN = 40
"""Series in the view; the others are named there and read from the files."""
_NAMED_BYTES = 8_000  # names of those, a hundred of usual length
_ROWS = 240
_NUMBERS = 2200  # in the view's tables
_FEWEST_ROWS = 12
_WITH_RANGE = 12  # series that have room for the lowest and highest of each point
_TEXT_BYTES = 20_000
_FOLD = 256  # rows that a table holds before it merges them
_PLANS = 512
_TEXT_SECONDS = 2.0  # between two texts of curves that continue


class _Facts:
    """What is known exactly of a name, however long the run."""

    __slots__ = (
        *("count", "last", "last_step", "min", "min_step", "max", "max_step"),
        *("nonfinite", "nonfinite_step", "nonfinite_end"),
    )

    def __init__(self) -> None:
        self.count = self.nonfinite = 0
        self.nonfinite_end: bool | None = None  # None = no; then it takes no room
        self.last: float | None = None
        self.min: float | None = None
        self.max: float | None = None
        self.last_step = self.min_step = self.max_step = self.nonfinite_step = None

    def add(self, value: float, step: int) -> None:
        """Take one value into account."""
        self.count += 1
        if value - value != 0:  # NaN or infinite
            self.nonfinite += 1
            self.nonfinite_end = True
            if self.nonfinite_step is None:
                self.nonfinite_step = step
            return
        self.last, self.last_step, self.nonfinite_end = value, step, None
        if self.min is None or value < self.min:
            self.min, self.min_step = value, step
        if self.max is None or value > self.max:
            self.max, self.max_step = value, step

    @property
    def size(self) -> float:
        """The largest magnitude of a number."""
        return max(abs(self.min or 0.0), abs(self.max or 0.0))

    def document(self) -> dict[str, Any]:
        """All that is known."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


class _Table:
    """Names that are logged together: a row has the mean, lowest and highest of each."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names = tuple(names)
        self.facts = {name: _Facts() for name in names}
        rules: dict[str, Rule] = {"step": "last", "time": "last"}
        self.marks = "=<>" if len(names) <= _WITH_RANGE else "="
        for name in names:
            rules |= {mark + name: _rule(mark) for mark in self.marks}
        rows = max(2 * _FEWEST_ROWS, min(most, most * _WITH_RANGE // len(names)))
        self._thinned = ThinnedTable(rules, rows)
        self._step = -1
        self._unfolded = 0

    def add(self, row: LoggedRow, names: Sequence[str]) -> None:
        """Take those values of a row."""
        step = row.step
        if step < self._step:
            self._go_back(step)
        self._step, facts = step, self.facts
        cells: dict[str, Number] = {"step": step, "time": round(row.time, 1)}
        for name in names:
            value = row.values[name]
            facts[name].add(value, step)
            for mark in self.marks:
                cells[mark + name] = value
        self._thinned.append(cells)
        self._unfolded += 1
        if self._unfolded >= _FOLD:
            self._unfolded = 0
            self._thinned.unfinished()

    def _go_back(self, step: int) -> None:
        """What was logged from that step on is logged again: extremes of it no longer count."""
        self._thinned.drop_beyond(step - 1)
        columns = self._thinned.columns()
        for name, facts in self.facts.items():
            old = {name: getattr(facts, name) for name in ("count", "last", "last_step")}
            self.facts[name] = again = _Facts()
            for end in self.marks[1:] or "=":
                for value, at in zip(columns[end + name], columns["step"], strict=True):
                    if value is not None and at is not None:
                        again.add(value, int(at))
            for field_name, old_value in old.items():
                setattr(again, field_name, old_value)
            if facts.nonfinite_step is not None and facts.nonfinite_step < step:
                again.nonfinite, again.nonfinite_step = facts.nonfinite, facts.nonfinite_step

    def columns(self, rows: int, names: Collection[str]) -> tuple[dict[str, list[Number]], int]:
        """At most about `rows` rows of those names, the last one as it is, and a row's stride."""
        columns, stride = self._thinned.columns(), self._thinned.stride
        columns = {
            name: values
            for name, values in columns.items()
            if name in {"step", "time"} or name[1:] in names
        }
        while len(columns["step"]) > rows + 1:
            columns = {name: _halved(_rule(name), values) for name, values in columns.items()}
            stride *= 2
        return columns, stride


def _rule(column: str) -> Rule:
    rules: dict[str, Rule] = {"=": "mean", "<": "min", ">": "max"}
    return rules.get(column[0], "last")


def _halved(rule: Rule, values: list[Number]) -> list[Number]:
    body = values[:-1]
    pairs = (body[at : at + 2] for at in range(0, len(body), 2))
    return [*(merge(rule, pair) for pair in pairs), *values[-1:]]


class SeriesTables:
    """All names of a run, each in the table of those that it was first logged with."""

    def __init__(self, rows: int = _ROWS) -> None:
        """`rows`: of a table's curves, at most."""
        self._rows = rows
        self._tables: list[_Table] = []
        self._table_of: dict[str, _Table] = {}
        self._plans: dict[tuple[str, ...], list[tuple[_Table, list[str]]]] = {}
        self._text = "{}"
        self._text_due = 0.0
        self._changed = False

    def add(self, row: LoggedRow) -> None:
        """Take one line of a rank."""
        self._changed = True
        names = tuple(row.values)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plan(names)
        for table, own in plan:
            table.add(row, own)

    def _plan(self, names: tuple[str, ...]) -> list[tuple[_Table, list[str]]]:
        new = [name for name in names if name not in self._table_of]
        if new:
            table = _Table(new, self._rows)
            self._tables.append(table)
            self._table_of |= dict.fromkeys(new, table)
        plan = [
            (table, own)
            for table in self._tables
            if (own := [name for name in names if self._table_of[name] is table])
        ]
        if len(self._plans) < _PLANS:
            self._plans[names] = plan
        return plan

    def text(self, left_out: int, *, latest: bool = True) -> str:
        """`document` as JSON within its size; made again only when something was logged.

        Not `latest`: a little old at most.
        """
        moment = time.monotonic()
        if self._changed and (latest or moment >= self._text_due):
            self._changed, self._text_due = False, moment + _TEXT_SECONDS
            series_max = SERIES_SHOWN
            while True:
                document = self.document(series_max=series_max, left_out=left_out)
                self._text = json.dumps(document, allow_nan=False, separators=(",", ":"))
                if len(self._text) <= _TEXT_BYTES or series_max < 2:
                    break
                series_max //= 2
        return self._text

    def document(
        self, *, series_max: int = SERIES_SHOWN, left_out: int = 0, everything: bool = False
    ) -> dict[str, Any]:
        """The view's member "logged", see `schema.ViewDoc`; {} where nothing was logged."""
        if not self._table_of:
            return {}
        every = list(self._table_of)
        # What is measured now and then is looked for more than what is logged at each step.
        names = sorted(every, key=lambda name: self._table_of[name].facts[name].count)
        chosen = set(every if everything else names[:series_max])
        tables = [table for table in self._tables if chosen.intersection(table.names)]
        width = 2 * len(tables) + len(chosen) * (3 if len(chosen) <= _WITH_RANGE else 1)
        rows = self._rows if everything else max(_FEWEST_ROWS, _NUMBERS // width)
        ranges = everything or len(chosen) <= _WITH_RANGE
        tables_shown, series = list[dict[str, Any]](), list[dict[str, Any]]()
        for number, table in enumerate(tables):
            columns, stride = table.columns(rows, chosen)
            steps = {name: columns[name] for name in ("step", "time")}
            tables_shown.append({"stride": stride, **steps})
            for name in table.names:
                if name in chosen:
                    entry = _series_entry(
                        table,
                        name,
                        columns,
                        with_range=ranges and stride > 1,
                    )
                    series.append({"name": name, "table": number, **entry})
        titles = figures({name: self._table_of[name].facts[name].size for name in every})
        order = {name: place for place, name in enumerate(every)}
        for entry in series:
            entry["figure"] = titles.get(entry["name"], "Loss")
        series.sort(key=lambda entry: order[entry["name"]])
        document: dict[str, Any] = {"tables": tables_shown, "series": series}
        hidden = [name for name in every if name not in chosen]
        if hidden or left_out:
            ends = accumulate(len(json.dumps(name)) + 1 for name in hidden)
            document["more"] = hidden[: sum(end <= _NAMED_BYTES for end in ends)]
            document["more_count"] = len(hidden) + left_out
        return document


def _series_entry(
    table: _Table, name: str, columns: dict[str, list[Number]], *, with_range: bool
) -> dict[str, Any]:
    """Facts and points of one series."""
    ranged = with_range and len(table.marks) > 1
    kinds = {"mean": "="} | ({"low": "<", "high": ">"} if ranged else {})
    points = {
        kind: [round_significant(value) for value in columns[mark + name]]
        for kind, mark in kinds.items()
    }
    return {**table.facts[name].document(), **points}
