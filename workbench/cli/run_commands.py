"""The commands around one run: show, metrics, logs, attach, stop; and doctor."""

from __future__ import annotations

import re
import sys
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table

import workbench as wb
from workbench.cli.progress import busy
from workbench.cli.tables import JsonOption, number, print_json, print_json_rows, summary_table
from workbench.cli.terminal import (
    RunArgument,
    StoreOption,
    console,
    errors,
    stay,
)
from workbench.compare.lineage import origin
from workbench.engines.slurm_run import cancel_waiting, settle
from workbench.store.labels import read_labels
from workbench.store.layout import RunPaths
from workbench.store.printable import printable

_TABLE_ROWS = 1000


def show(
    run: RunArgument = "last", *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show one run: outcome, losses, speed, measured and predicted memory."""
    handle = wb.attach(run, store)
    sentence = settle(handle) if handle.document.get("engine") else None
    summary = handle.summary()
    if sentence is not None and not as_json:
        errors.print(sentence, markup=False)
    if as_json:
        record = handle.document
        print_json({**summary, **origin(record), "provenance": record.get("provenance")})
    else:
        labels = read_labels(RunPaths(handle.directory))
        console.print(summary_table(summary, labels, handle.document))


def metrics(
    run: RunArgument = "last",
    *,
    rank: Annotated[
        int | None, typer.Option(help="One rank instead of the mean over ranks.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="The last N steps.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print loss, lr, grad norm and step time of every optimizer step."""
    rows = wb.attach(run, store).iterate_metrics(rank, tail)
    if as_json:
        print_json_rows(rows)
        return
    part = list(islice(rows, _TABLE_ROWS))
    console.print(_metrics_table(part, header=True))
    while part := list(islice(rows, _TABLE_ROWS)):
        console.print(_metrics_table(part, header=False))


def _metrics_table(rows: list[dict[str, Any]], *, header: bool) -> Table:
    """Some steps; a long run is printed in several tables of the same columns."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for name, width in (("step", 8), ("loss", 10), ("lr", 10), ("grad norm", 10), ("step s", 10)):
        table.add_column(name, min_width=width)
    for row in rows:
        values = (row["loss"], row["lr"], row["grad_norm"], row["step_seconds"])
        table.add_row(str(row["step"]), *(number(value, 5) for value in values))
    return table


def logs(
    run: RunArgument = "last",
    *,
    rank: Annotated[int | None, typer.Option(help="One rank only.")] = None,
    tail: Annotated[int | None, typer.Option(help="The last N lines.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Include every state of progress bars.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Print the ranks' logs."""
    handle = wb.attach(run, store)
    text = handle.logs(rank, tail)
    if not text.strip() and tail != 0:
        who = "Nothing" if rank is None else f"Rank {rank}"
        missing = "has printed nothing" if rank is not None else "has been printed"
        errors.print(f"{who} {missing} in {handle.id}.", markup=False)
    if not raw:
        text = re.sub(r"[^\n]*\r(?![\n\r]|$)", "", text)
        text = printable(text, colours=sys.stdout.isatty(), max_line=None)
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    if text and not text.endswith("\n"):
        sys.stdout.buffer.write(b"\n")


def attach(run: RunArgument = "last", *, store: StoreOption = None) -> None:
    """Watch a run live in this terminal; Ctrl-C leaves it running."""
    handle = wb.attach(run, store)
    stay(handle, quiet=False)


def stop(
    run: RunArgument = "last",
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Stop immediately, without a checkpoint.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a run gracefully with a checkpoint, then by signals; confirm that no process remains."""
    handle = wb.attach(run, store)
    if not as_json and handle.status.live:
        console.print(f"stopping {handle.id} …", markup=False)
    engine = handle.document.get("engine")
    if engine:
        settle(handle)  # a job that Slurm has lost ends its run
    if engine and cancel_waiting(handle):
        result: dict[str, Any] = {"run": handle.id, "outcome": handle.outcome, "processes_left": 0}
    else:
        result = handle.stop(now=now)
    if as_json:
        print_json(result)
    else:
        left = result["processes_left"]
        sentence = f"{result['outcome']}: {handle.status.message}"
        console.print(sentence, markup=False, soft_wrap=True)
        count = (
            f"Remaining processes of the run: {left}" if left else "No process of the run remains"
        )
        console.print(f"{count}.", markup=False)
    if result["processes_left"]:
        raise typer.Exit(1)


def doctor(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check this host; show each problem and its fix."""
    with busy("checking this host …"):
        result = wb.doctor(store)
    if as_json:
        print_json(result)
    else:
        table = Table("", "check", "found", "fix", box=None, pad_edge=False)
        for check in result["checks"]:
            mark = "[green]ok[/]" if check["ok"] else "[red]no[/]"
            table.add_row(mark, check["name"], check["found"], check["fix"] or "")
        console.print(table)
    raise typer.Exit(0 if result["ok"] else 1)
