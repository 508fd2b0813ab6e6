"""view.json as text: within its size, and no row of a table is encoded twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from workbench.observe.thinning import Number, ThinnedTable
from workbench.store.schema import VIEW_MAX_BYTES

_EXTREME_RANKS = 16  # shown where there is no room for all
_FEW_ROWS = 16
_MAX_PEAKS = 512  # of more ranks only the fullest one's

_NUMBERS = (int, float)

Row = dict[str, Number]


class TableText:
    """JSON of a table's columns. Only the rows since the last look are encoded."""

    def __init__(self, table: ThinnedTable, projection: Callable[[Row], Row] = dict) -> None:
        """`projection`: what is shown of a row."""
        self._table, self._projection = table, projection
        self._forget()

    def _forget(self) -> None:
        self._rewritten = self._table.rewritten
        self._rows = 0
        unknown = self._projection(dict.fromkeys(self._table.names))
        self._columns: dict[str, list[str]] = {name: [] for name in unknown}
        self._valued: set[str] = set()

    def text(self, hidden: Collection[str] = (), *, required: Collection[str] | None = None) -> str:
        """The object of all columns but `hidden` ones.

        `required`: the only columns that are there without a value; None = all of them.
        """
        self._add_finished()
        row = self._table.unfinished()
        last = {} if row is None else self._projection(row)
        columns: list[str] = []
        for name, texts in self._columns.items():
            valued = name in self._valued or last.get(name) is not None
            if name not in hidden and (required is None or name in required or valued):
                entries = [*texts, _text(last[name])] if last else texts
                columns.append(f'"{name}":[{",".join(entries)}]')
        return f"{{{','.join(columns)}}}"

    def _add_finished(self) -> None:
        if self._table.rewritten != self._rewritten:
            self._forget()
        for row in self._table.finished(self._rows):
            self._rows += 1
            for name, value in self._projection(row).items():
                self._columns[name].append(_text(value))
                if value is not None:
                    self._valued.add(name)


def _text(value: Number) -> str:
    """JSON of a table's value, which is finite."""
    if value is None:
        return "null"
    return repr(value) if type(value) in _NUMBERS else json.dumps(value, allow_nan=False)


def encode_parts(document: dict[str, Any], texts: Mapping[str, str]) -> bytes:
    """Strict JSON of `document` with members that are JSON already, whatever its size."""
    more = "".join(f',"{name}":{text}' for name, text in texts.items())
    return dumps(document)[:-1] + more.encode() + b"}"


def encode(document: dict[str, Any]) -> bytes:
    """Strict JSON within the size limit: log tails give way first, then every second row."""
    data = dumps(document)
    while len(data) > VIEW_MAX_BYTES:
        tails = [rank for rank in document["ranks"] if len(rank["log_tail"]) > 2]
        for rank in tails:
            rank["log_tail"] = rank["log_tail"][len(rank["log_tail"]) // 2 :]
        if not tails and not _thin(document):
            _drop_ranks(document)
            return dumps(document)
        data = dumps(document)
    return data


def _drop_ranks(document: dict[str, Any]) -> None:
    """Keep the ranks that one would look for: gone, behind, late, fullest. Says how many go."""
    ranks, hidden = document["ranks"], document.get("ranks_hidden", 0)
    document["timeline"] = {"step": [], "ranks": []}
    document["ranks"] = extreme_ranks(ranks)
    document["ranks_hidden"] = hidden + len(ranks) - len(document["ranks"])


def shown_peaks(peaks: list[int | None]) -> list[int | None]:
    """The peaks of all ranks; of very many the highest alone."""
    if len(peaks) <= _MAX_PEAKS:
        return peaks
    return [max((peak for peak in peaks if peak), default=None)]


def extreme_ranks(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that one would look for: gone, behind, late, fullest."""
    extremes = sorted(ranks, key=_unremarkable)[:_EXTREME_RANKS]
    return sorted(extremes, key=lambda rank: rank["rank"])


def _unremarkable(rank: dict[str, Any]) -> tuple[Any, ...]:
    ended, alive = rank.get("ended"), rank.get("alive")
    failed = ended not in {None, "ok"} or alive is False
    return (
        not failed,
        rank.get("step") or 0,
        -(rank.get("late_seconds") or 0.0),
        -(rank.get("peak_memory_bytes") or 0),
    )


def dumps(document: dict[str, Any]) -> bytes:
    """Strict JSON."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # rare: a NaN outside the tables
        return json.dumps(finite(document), allow_nan=False, separators=(",", ":")).encode()


def _thin(document: dict[str, Any]) -> bool:
    """Drop every second row of all tables; False when they are short already."""
    tables = [device["series"] for device in document["devices"]]
    tables += [document["series"], document["host"]["series"], document.get("device_spread", {})]
    long = [table for table in tables if len(table.get("time", [])) > _FEW_ROWS]
    for table in long:
        for name, values in table.items():
            table[name] = values[:-1:2] + values[-1:]
    return _thin_logged(document.get("logged") or {}) or bool(long)


def _thin_logged(logged: dict[str, Any]) -> bool:
    """The same of what was logged by name, whose series share the tables' steps."""
    tables: list[dict[str, Any]] = logged.get("tables") or []
    series: list[dict[str, Any]] = logged.get("series") or []
    long = {at for at, table in enumerate(tables) if len(table["step"]) > _FEW_ROWS}
    columns = [tables[at] for at in long]
    columns += [entry for entry in series if entry["table"] in long]
    for column in columns:
        for name, values in column.items():
            if type(values) is list:
                column[name] = values[:-1:2] + values[-1:]
    return bool(long)


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, all the way down (strict JSON knows neither)."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return value
