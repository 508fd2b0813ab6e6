"""``workbench compare``: runs beside each other, and their curves as files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import workbench as wb
from workbench.cli.completion import run_names
from workbench.cli.describing import with_options
from workbench.cli.step_files import CsvOption, ParquetOption, write_steps
from workbench.cli.tables import JsonOption, badge, number, print_json
from workbench.cli.terminal import StoreOption, console
from workbench.compare import export
from workbench.compare.alignment import AXES
from workbench.compare.differences import RESULTS
from workbench.compare.runs import Comparison, find
from workbench.compare.runs import compare as set_beside
from workbench.observe.energy import JOULES_PER_KWH
from workbench.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_grams,
    format_hours,
    format_joules,
    format_seconds,
    format_usd,
)

_AXIS_TEXT = {
    "step": format_count,
    "tokens": format_count,
    "time": format_seconds,
    "usd": format_usd,
}
_RESULT_NAMES = {
    "loss_last": "loss, last step",
    "loss_best": "best loss, mean of some steps",
    "nonfinite_step": "first NaN or infinite loss at step",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "step_seconds_median": "step, median",
    "memory_bytes": "peak memory",
    "hours": "running time",
    "usd": "cost",
    "kwh": "energy",
    "tokens_per_joule": "tokens per joule",
    "co2e_grams": "CO2e",
    "step_ratio": "step ÷ predicted",
    "memory_ratio": "memory ÷ predicted",
}


@with_options
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="2 to 10 ids, unique prefixes or names.",
            autocompletion=run_names,
        ),
    ],
    *,
    by: Annotated[str, typer.Option(help=f"Axis to align losses by: {', '.join(AXES)}.")] = "step",
    loss: Annotated[
        float | None,
        typer.Option(help="Cost to reach this loss [default: the highest of the last losses]."),
    ] = None,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: differing settings, results, and cost to reach a loss."""
    place = wb.Store(store)
    files = export.files_asked_for(csv, parquet)
    comparison = set_beside(place, runs)
    document = comparison.document(by=by, loss=loss)
    for path in files:
        write_steps(find(place, list(comparison.rows)), path)
    if as_json:
        print_json(document | {"files": [str(path) for path in files]})
        return
    _show_lineage(document["lineage"], document["runs"])
    for title, table in _tables(document, comparison.rows):
        if table.row_count:
            console.print(f"[bold]{title}[/]")
            console.print(table)
            console.print()
    for line in (*_begun(document), *_not_aligned(comparison, document["aligned"])):
        console.print(line, markup=False, soft_wrap=True)


def _show_lineage(lineage: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> None:
    """The trees of runs, where one began from another."""
    if not any(entry["origin"] for entry in lineage):
        return
    console.print("[bold]Lineage[/]")
    for row in lineage:
        name = escape(row["run"])
        name = name if row["run"] in runs else f"[dim]{name} (not compared)[/]"
        origin = f"  [dim]{escape(row['origin'])}[/]" if row["origin"] else ""
        console.print(f"[dim]{row['prefix']}[/]{name}{origin}", soft_wrap=True)
    console.print()


def _begun(document: Mapping[str, Any]) -> Generator[str]:
    """What the figures of a run that began from a checkpoint of another leave out."""
    for entry in document["lineage"]:
        run, step = entry["run"], entry["resumed_step"]
        if run in document["runs"] and step and not entry["rerun_of"]:
            yield (
                f"{run} began at step {step} of {entry['resumed_from']}: its steps and tokens "
                "include those, its time, cost and energy do not."
            )


def _not_aligned(comparison: Comparison, aligned: Mapping[str, Any]) -> Generator[str]:
    """Why runs cannot be laid beside each other by what was asked for."""
    by = aligned["by"]
    unpriced = [
        run for run, curve in comparison.curves.items() if not any(map(_is_known, curve.usd))
    ]
    if by == "usd" and unpriced:
        yield (
            f"The price of {', '.join(unpriced)} is unknown. Set it before a run starts: "
            "WORKBENCH_USD_PER_HOUR=2.50 workbench launch … (dollars per hour of the whole host)."
        )
    elif not aligned["at"]:
        yield f"The runs do not overlap when aligned by {by}."


def _is_known(value: object) -> bool:
    return value is not None


def _tables(
    document: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, Table]]:
    runs = list(rows)  # ids head the columns: a run's name may be the id of another
    heads = [f"{run} (rehearsal)" if rows[run].get("rehearsal") else run for run in runs]
    settings = _table("", heads)
    for row in document["configuration"]:
        settings.add_row(escape(row["what"]), *(_value(row["values"][run]) for run in runs))
    results = _table("", heads)
    for row in document["results"]:
        key = row["what"]
        label = _RESULT_NAMES.get(key, key)
        if key == "nonfinite_step":
            cells = [_value(row["values"][run]) for run in runs]
        elif key == "outcome":
            cells = [badge(str(rows[run]["state"]), row["values"][run]) for run in runs]
        else:
            cells = [result_text(key, row["values"][run]) for run in runs]
        results.add_row(label, *cells)
    logged = _table("", heads)
    for row in document["logged"]:
        cells = [_last_and_best(row["last"][run], row["best"][run]) for run in runs]
        logged.add_row(escape(row["name"]), *cells)
    aligned, target = document["aligned"], document["reach"]
    by = aligned["by"]
    losses = _table("seconds" if by == "time" else by, heads)
    for index, at in enumerate(aligned["at"]):
        cells = [number(aligned["loss"][run][index]) for run in runs]
        losses.add_row(_AXIS_TEXT[by](at), *cells)
    return [
        ("Different settings", settings),
        ("Results", results),
        ("Logged by the scripts, last (best)", logged),
        (f"Smoothed loss, aligned by {by}", losses),
        (f"To a loss of {number(target['loss'])} ({target['chosen']})", _reached(target, runs)),
    ]


def _last_and_best(last: float | None, best: float | None) -> str:
    return number(last) + ("" if best is None else f" ({number(best)})")


def _reached(target: Mapping[str, Any], runs: Sequence[str]) -> Table:
    table = _table("", runs)
    if target["loss"] is None:
        return table
    points: dict[str, dict[str, Any]] = {run: target["runs"][run] or {} for run in runs}
    lines = {
        "step": [_step(points[run]) for run in runs],
        "tokens": [format_count(points[run].get("tokens")) for run in runs],
        "time": [format_seconds(points[run].get("seconds")) for run in runs],
        "cost": [format_usd(points[run].get("usd")) for run in runs],
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


def _table(first: str, runs: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, style="dim", no_wrap=True)
    for run in runs:
        table.add_column(escape(run), overflow="fold")
    return table


def _value(value: Any) -> str:
    if value is None:
        return "[dim]-[/]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(str(value))


def result_text(key: str, value: Any) -> str:
    """A result of a row for people."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):  # whether the run trained or was a rehearsal
        return escape(value)
    unit = RESULTS[key]
    if unit in _UNIT_TEXT:
        return _UNIT_TEXT[unit](value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _kwh(kwh: float) -> str:
    return format_joules(JOULES_PER_KWH * kwh)


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}x"


_UNIT_TEXT: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "s": format_seconds,
    "h": format_hours,
    "USD": format_usd,
    "kWh": _kwh,
    "g": format_grams,
    "tokens": format_count,
    "tokens/s": format_count,
    "x predicted": _ratio,
}
