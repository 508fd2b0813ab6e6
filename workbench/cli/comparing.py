"""``workbench compare``: runs beside each other, and their curves as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import workbench as wb
from workbench.cli.progress import status_line
from workbench.cli.tables import badge, number, print_json
from workbench.cli.terminal import JsonOption, StoreOption, console, errors
from workbench.compare import export
from workbench.compare.alignment import AXES
from workbench.compare.differences import RESULTS
from workbench.compare.runs import compare as set_beside
from workbench.compare.runs import find
from workbench.units import UNKNOWN, format_bytes, format_count, format_seconds, format_usd

_AXIS_TEXT = {
    "step": format_count,
    "tokens": format_count,
    "time": format_seconds,
    "usd": format_usd,
}
_RESULT_NAMES = {
    "loss_last": "last loss",
    "loss_best": "best loss",
    "tokens_per_second": "tokens/s",
    "step_seconds_median": "step, median",
    "memory_bytes": "peak memory",
    "hours": "time at work",
    "usd": "cost",
    "step_ratio": "step ÷ predicted",
    "memory_ratio": "memory ÷ predicted",
}


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="2 to 10 ids, unique prefixes or names.")
    ],
    *,
    by: Annotated[
        str, typer.Option(help=f"What losses are aligned by: {', '.join(AXES)}.")
    ] = "step",
    loss: Annotated[
        float | None,
        typer.Option(help="Cost to reach this loss [default: the highest of the last losses]."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every step of all of them as CSV.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same as Parquet (pip install pyarrow).")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set runs beside each other: what differs, what came of it, what a loss cost."""
    place = wb.Store(store)
    files = [path for path in (csv, parquet) if path is not None]
    if parquet is not None and parquet.suffix != ".parquet":
        raise wb.UsageError(f"--parquet {parquet}: give a file name that ends in .parquet.")
    for path in files:
        export.check(path)
    found = set_beside(place, runs)
    document = found.document(by=by, loss=loss)
    for path in files:
        _export(place, list(found.rows), path)
    if as_json:
        print_json(document | {"files": [str(path) for path in files]})
        return
    names = _names(found.rows)
    for title, table in _tables(document, found.rows, names):
        if table.row_count:
            console.print(f"[bold]{title}[/]")
            console.print(table)
            console.print()
    if not document["aligned"]["at"]:
        console.print(f"By {by} the runs have no stretch in common.", markup=False)


def _export(store: wb.Store, runs: Sequence[str], path: Path) -> None:
    paths = find(store, runs)
    rows = (row for one in paths for row in export.steps(one))
    with status_line() as show:

        def told(done: int) -> None:
            if show is not None:
                show(f"{done:,} steps written to {path}")

        done = export.write(path, rows, export.STEP_COLUMNS, told)
    errors.print(f"{done:,} steps of {len(paths)} runs written to {path}", markup=False)


def _names(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Heads of the columns: the run's name where that tells them apart, else its id."""
    names = [str(row["name"]) for row in rows.values()]
    distinct = len(set(names)) == len(names)
    return {run: str(row["name"]) if distinct else run for run, row in rows.items()}


def _tables(
    document: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
) -> list[tuple[str, Table]]:
    asked = _table("", names)
    for one in document["configuration"]:
        asked.add_row(escape(one["what"]), *(_value(one["values"][run]) for run in names))
    came = _table("", names)
    for one in document["results"]:
        what = one["what"]
        label = _RESULT_NAMES.get(what, what)
        if what == "outcome":
            cells = [badge(str(rows[run]["state"]), one["values"][run]) for run in names]
        else:
            cells = [result_text(what, one["values"][run]) for run in names]
        came.add_row(label, *cells)
    aligned, reach = document["aligned"], document["reach"]
    by = aligned["by"]
    losses = _table("seconds" if by == "time" else by, names)
    for index, at in enumerate(aligned["at"]):
        cells = [number(aligned["loss"][run][index]) for run in names]
        losses.add_row(_AXIS_TEXT[by](at), *cells)
    return [
        ("Asked for differently", asked),
        ("What came of it", came),
        (f"Smoothed loss, aligned by {by}", losses),
        (f"To a loss of {number(reach['loss'])} ({reach['chosen']})", _reached(reach, names)),
    ]


def _reached(reach: Mapping[str, Any], names: Mapping[str, str]) -> Table:
    table = _table("", names)
    if reach["loss"] is None:
        return table
    found: dict[str, dict[str, Any]] = {run: reach["runs"][run] or {} for run in names}
    lines = {
        "step": [_step(found[run]) for run in names],
        "tokens": [format_count(found[run].get("tokens")) for run in names],
        "time": [format_seconds(found[run].get("seconds")) for run in names],
        "cost": [format_usd(found[run].get("usd")) for run in names],
    }
    for name, cells in lines.items():
        if name == "step" or any(cell != UNKNOWN for cell in cells):
            table.add_row(name, *cells)
    return table


def _step(reached: Mapping[str, Any]) -> str:
    if not reached:
        return "never"
    exact = reached["resolution_steps"]
    return f"{reached['step']:,}" + (f" ± {exact}" if exact > 1 else "")


def _table(first: str, names: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, style="dim", no_wrap=True)
    for name in names.values():
        table.add_column(escape(name), overflow="fold")
    return table


def _value(value: Any) -> str:
    if value is None:
        return "[dim]-[/]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(str(value))


def result_text(what: str, value: Any) -> str:
    """A result of a row for people."""
    if value is None:
        return UNKNOWN
    unit = RESULTS[what]
    if unit in _UNIT_TEXT:
        return _UNIT_TEXT[unit](value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _hours(hours: float) -> str:
    return format_seconds(3600 * hours)


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}x"


_UNIT_TEXT: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "s": format_seconds,
    "h": _hours,
    "USD": format_usd,
    "tokens": format_count,
    "tokens/s": format_count,
    "x predicted": _ratio,
}
