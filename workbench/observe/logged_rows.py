"""Logged names as columns: every value, beside those of the optimizer steps."""

from __future__ import annotations

import contextlib
import heapq
import json
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from workbench.describe.option import several
from workbench.errors import StoreError, UnknownNameError
from workbench.observe.events import iterate_metrics
from workbench.observe.logged import LoggedRow, LoggedStream, matches_any
from workbench.store.layout import RunPaths

_COLUMNS = ("loss", "lr", "grad_norm", "step_seconds")  # of every step
_LARGEST = (1 << 63) - 1  # number that SQLite sorts by


class LoggedRows:
    """Everything that was logged, a row per step in order, in two passes and bounded memory."""

    def __init__(
        self, paths: RunPaths, ranks: int, patterns: Sequence[str] = (), rank: int | None = None
    ) -> None:
        """`patterns`: of the names that are wanted; `rank`: its own values, of every name.

        Iterating raises StoreError where rows have to be sorted and there is no room for that.
        """
        self._paths, self._followed = paths, range(ranks) if rank is None else [rank]
        self._replaced, self._in_order = _Replaced(), True
        self._owners: dict[str, int] = {}
        for stream in self._streams():  # from the lowest rank on, which owns what it logs
            last = 0
            for row in _all(stream):
                self._replaced.note(row)
                self._in_order = self._in_order and row.step >= last
                last = row.step
        self.names = tuple(name for name in self._owners if matches_any(name, patterns))
        """Those that were logged, in the order of their first values."""

    def __iter__(self) -> Iterator[LoggedRow]:
        """The rows; to be called once."""
        rows = self._matching_rows()
        last: LoggedRow | None = None
        for row in rows if self._in_order else _sorted(rows):
            if last is not None and row.step == last.step:
                last.values.update(row.values)
            else:
                if last is not None:
                    yield last
                last = row
        if last is not None:
            yield last

    def _matching_rows(self) -> Iterator[LoggedRow]:
        """What is wanted and not replaced; of each rank in the order in which it was logged."""
        names = set(self.names)
        for row in self._beside_each_other():
            remaining = self._replaced.left(row)
            values = {name: value for name, value in remaining.items() if name in names}
            if values:
                yield LoggedRow(step=row.step, time=row.time, values=values)

    def _beside_each_other(self) -> Iterator[LoggedRow]:
        """The rows of each rank in their order, those of equal steps together."""
        return heapq.merge(*map(_all, self._streams()), key=lambda row: row.step)

    def _streams(self) -> Iterator[LoggedStream]:
        """One of each rank; they share what is known of the names' owners."""
        for rank in self._followed:
            stream = LoggedStream(self._paths, [rank])
            stream.owners = self._owners
            yield stream


def column_of(name: str, used_names: Container[str]) -> str:
    """A logged name's column beside those of every step.

    >>> column_of("eval/loss", {"loss"}), column_of("loss", {"loss"})
    ('eval/loss', 'logged/loss')
    """
    return f"logged/{name}" if name in used_names else name


def joined(
    steps: Iterable[dict[str, Any]],
    logged: LoggedRows,
    other: Callable[[LoggedRow], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Rows of steps with what was logged at them; `other`: of a row of a step that there is not."""
    logged_rows = iter(logged)
    logged_row = next(logged_rows, None) if logged.names else None
    for row in steps:
        while logged_row is not None and logged_row.step < row["step"]:
            yield _with_columns(other(logged_row), logged_row, logged.names)
            logged_row = next(logged_rows, None)
        here = logged_row if logged_row is not None and logged_row.step == row["step"] else None
        yield _with_columns(row, here, logged.names)
        if here is not None:
            logged_row = next(logged_rows, None)
    while logged_row is not None:
        yield _with_columns(other(logged_row), logged_row, logged.names)
        logged_row = next(logged_rows, None)


def _with_columns(
    row: dict[str, Any], logged: LoggedRow | None, names: Iterable[str]
) -> dict[str, Any]:
    values = {} if logged is None else logged.values
    return row | {column_of(name, row): values.get(name) for name in names}


def _sorted(rows: Iterable[LoggedRow]) -> Iterator[LoggedRow]:
    """By their steps: a script may give some values another step than it has come to.

    Those of one step stay in their order. Sorted in a temporary file: there may be millions.
    """
    try:
        with contextlib.closing(sqlite3.connect("")) as table:
            table.execute("CREATE TABLE rows (step INTEGER, row TEXT)")
            table.executemany("INSERT INTO rows VALUES (?, ?)", map(_packed, rows))
            for (text,) in table.execute("SELECT row FROM rows ORDER BY step, rowid"):
                step, time, values = json.loads(text)
                yield LoggedRow(step=step, time=time, values=values)
    except sqlite3.Error as error:
        raise StoreError(
            f"What was logged cannot be sorted in a temporary file: {error}"
        ) from error


def _packed(row: LoggedRow) -> tuple[int, str]:
    step = max(-_LARGEST, min(_LARGEST, row.step))
    return step, json.dumps([row.step, row.time, row.values])


def _all(stream: LoggedStream) -> Iterator[LoggedRow]:
    while not stream.at_end:
        yield from stream.read()


class _Replaced:
    """Which values are replaced later: `note` all rows, then ask `left` for each."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._noted: dict[str, int] = {}
        self._checked: dict[str, int] = {}
        self._back: dict[str, list[tuple[int, int]]] = {}

    def note(self, row: LoggedRow) -> None:
        for name in row.values:
            number = self._noted[name] = self._noted.get(name, 0) + 1
            if row.step < self._last.get(name, 0):
                back = self._back.setdefault(name, [])
                while back and back[-1][1] >= row.step:  # the later one says more
                    back.pop()
                back.append((number, row.step))
            self._last[name] = row.step

    def left(self, row: LoggedRow) -> dict[str, float]:
        """The values of a row that nothing replaces."""
        if not self._back:
            return row.values
        values = dict[str, float]()
        for name, value in row.values.items():
            number = self._checked[name] = self._checked.get(name, 0) + 1
            back = self._back.get(name, ())
            if not any(number < at and row.step >= step for at, step in back):
                values[name] = value
        return values


def iterate_keys(
    paths: RunPaths, ranks: int, keys: Sequence[str], rank: int | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of the columns that match one of `keys`: those of every step and what was logged.

    Keys: step, rank, time, and the columns; None where nothing was logged at a row's step.

    Raises:
        UnknownNameError: one of `keys` matches nothing.
    """
    keys = several(keys)
    logged = LoggedRows(paths, ranks, keys, rank)
    columns = [name for name in _COLUMNS if matches_any(name, keys)]
    for key in keys:
        if not any(matches_any(name, [key]) for name in (*columns, *logged.names)):
            allowed = [*_COLUMNS, *LoggedRows(paths, ranks, (), rank).names]
            raise UnknownNameError.near("metric", key, allowed)

    def other(row: LoggedRow) -> dict[str, Any]:
        return {"step": row.step, "rank": rank, "time": row.time, **dict.fromkeys(columns)}

    steps = iterate_metrics(paths, ranks, rank) if columns else ()
    row_keys = ("step", "rank", "time", *columns)
    return joined(({name: row[name] for name in row_keys} for row in steps), logged, other)
