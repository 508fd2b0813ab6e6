"""``workbench runs``: the store as a table, filtered and sorted, or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.progress import status_line
from workbench.cli.tables import JsonOption, print_json, runs_table
from workbench.cli.terminal import StoreOption, console, errors
from workbench.compare import export, index
from workbench.compare.filters import choose
from workbench.observe.rows import LISTED

_WHERE = "Filter the runs, for example 'strategy=ddp outcome=failed tag=x loss<2 name~gpt'."
_SORT = "Sort by a field: loss_last, or -loss_last for largest first [default: newest first]."
_FIRST = 1000
_MORE = ("resumed_from", "resumed_step", "rerun_of", "sweep", "trial", "tags", "note", "archived")


def runs(
    *,
    where: Annotated[str, typer.Option(metavar="CONDITIONS", help=_WHERE)] = "",
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    sort: Annotated[str | None, typer.Option(metavar="FIELD", help=_SORT)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include archived runs.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the runs as CSV.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the runs as Parquet.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs of the store, newest first."""
    place = wb.Store(store)
    files = export.files_asked_for(csv, parquet)
    with status_line() as show:

        def on_progress(done: int, of: int) -> None:
            if show is not None:
                show(f"{done:,} of {of:,} runs read")

        all_runs = index.table(place, on_progress)
    matching = choose(all_runs, where=where, tag=tag, archived=everything, sort=sort)
    for path in files:
        export.write(path, export.table_rows(matching), export.TABLE_COLUMNS)
        errors.print(f"{len(matching):,} runs written to {path}", markup=False)
    if as_json:
        print_json([{key: row[key] for key in (*LISTED, *_MORE)} for row in matching])
    elif not all_runs:
        console.print(f"No runs in {place.root} yet. Start one: workbench launch gpt", markup=False)
    else:
        if matching:
            console.print(runs_table(matching[:_FIRST], as_trees=sort is None))
            _say_who_is_not_watched(matching)
        _say_the_rest(len(all_runs), len(matching), filtered=bool(where or tag))


def _say_who_is_not_watched(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["state"] == "unsupervised":
            console.print(f"{row['run']}: {row['message']}", markup=False, soft_wrap=True)


def _say_the_rest(total: int, matching: int, *, filtered: bool) -> None:
    if matching > _FIRST:
        errors.print(f"{matching - _FIRST:,} more; filter with --where, write all with --csv")
    if matching < total:
        hidden = "do not match the filter" if filtered else "are archived (--all shows them)"
        errors.print(f"{total - matching:,} of {total:,} runs {hidden}")
