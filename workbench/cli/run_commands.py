"""The commands around one run: show, metrics, logs, attach, stop; and doctor."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from functools import partial
from itertools import islice
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.progress import busy
from workbench.cli.step_files import CsvOption, ParquetOption, write_steps
from workbench.cli.tables import (
    JsonOption,
    clock,
    number,
    print_json,
    print_json_rows,
    series_table,
    summary_table,
)
from workbench.cli.terminal import RunArgument, StoreOption, console, errors
from workbench.cli.waiting import stay
from workbench.compare import export
from workbench.compare.lineage import origin
from workbench.engines.slurm_run import cancel_waiting, settle
from workbench.observe.series import Series, leading_series
from workbench.storage.mirror_state import read_mirror
from workbench.store.actions import outcome, read_actions
from workbench.store.commands import command_for
from workbench.store.labels import read_labels
from workbench.store.layout import RunPaths
from workbench.store.printable import printable

_TABLE_ROWS = 1000
_SERIES_SHOWN = 20
_ACTIONS_SHOWN = 10


def show(
    run: RunArgument = "last", *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show one run: outcome, losses, speed, measured and predicted memory."""
    handle = wb.attach(run, store)
    sentence = settle(handle) if handle.document.get("engine") else None
    summary, actions = handle.summary(), read_actions(RunPaths(handle.directory))
    mirror = read_mirror(RunPaths(handle.directory))
    if sentence is not None and not as_json:
        errors.print(sentence, markup=False)
    if as_json:
        record = handle.document
        more = {"provenance": record.get("provenance"), "actions": actions}
        more["mirror"] = mirror.document() if mirror else None
        print_json({**summary, **origin(record), **more})
    else:
        labels = read_labels(RunPaths(handle.directory))
        console.print(summary_table(summary, labels, handle.document))
        _show_series(handle)
        if mirror is not None:
            console.print(printable(mirror.sentence(time.time())), markup=False, soft_wrap=True)
        _show_actions(actions)


def _show_actions(actions: list[dict[str, Any]]) -> None:
    """What programs did with the run, and who asked."""
    for action in actions[-_ACTIONS_SHOWN:]:
        words = " ".join(map(str, action.get("arguments") or []))
        at = action.get("time")
        when = clock(at) if isinstance(at, int | float) else "n/a"
        action_text = f"{action.get('action')} {words}".rstrip()
        line = f"{when}  {action.get('by')}: {action_text}{outcome(action)}"
        console.print(printable(line), markup=False, soft_wrap=True)


def _show_series(handle: wb.Run) -> None:
    """Last and best of what the script logged."""
    series, left_out = leading_series(RunPaths(handle.directory))
    if series:
        console.print()
        console.print(series_table(series[:_SERIES_SHOWN]))
    if (others := max(0, len(series) - _SERIES_SHOWN) + left_out) > 0:
        line = command_for(handle.directory, "metrics", "--list")
        more = f"{others} more: {line}"
        console.print(more, markup=False, soft_wrap=True)


@with_options
def metrics(
    run: RunArgument = "last",
    *,
    rank: Annotated[
        int | None,
        typer.Option(help="One rank, not the mean of all (of gradient norms: the highest)."),
    ] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="The last N steps.")] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(help="Columns, by name or pattern: loss,'eval/*'.", metavar="K,K"),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List what was logged by name, with last and best.")
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="Print the model's answers to fixed prompts.")
    ] = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print loss, lr, grad norm and step time of every optimizer step, or the keys asked for."""
    handle = wb.attach(run, store)
    if files := export.files_asked_for(csv, parquet):
        selects = {"--rank": rank is not None, "--tail": tail, "--keys": keys}
        selects |= {"--list": listing, "--samples": samples, "--json": as_json}
        if selecting := [name for name, is_given in selects.items() if is_given]:
            raise wb.UsageError(f"A file holds every step: leave out {' and '.join(selecting)}.")
        for path in files:
            write_steps([RunPaths(handle.directory)], path)
        return
    patterns = [key for word in keys or () for key in word.split(",") if key]
    if listing:
        _list_series(handle.series(*patterns).values(), as_json=as_json)
        return
    if samples:
        _list_samples(handle.samples(), tail, as_json=as_json)
        return
    rows = handle.iterate_metrics(rank, tail, keys=patterns)
    if as_json:
        print_json_rows(rows)
        return
    show_rows, header = _keys_table if patterns else _metrics_table, True
    while part := list(islice(rows, _TABLE_ROWS)):
        console.print(show_rows(part, header=header))
        header = False
    if header:
        errors.print(f"{handle.id} has recorded no step yet.", markup=False)


def _list_series(series: Collection[Series], *, as_json: bool) -> None:
    if as_json:
        print_json([entry.document() for entry in series])
    elif series:
        console.print(series_table(series))
    else:
        errors.print("Nothing was logged by name. Log from the script: workbench.log(key=value)")


def _list_samples(rows: list[dict[str, Any]], tail: int | None, *, as_json: bool) -> None:
    """`tail`: of the last N steps that have any."""
    if tail is not None:
        last = sorted({row["step"] for row in rows})[-tail:]
        rows = [row for row in rows if row["step"] in last]
    if as_json:
        print_json(rows)
        return
    if not rows:
        errors.print("No samples. Ask for them: --sample-every N --sample-prompts TEXT")
    before = None
    for row in rows:
        if row["step"] != before:
            console.print(f"step {row['step']:,}", style="bold")
            before = row["step"]
        console.print(f"  {printable(row['prompt'])}", markup=False, style="dim", soft_wrap=True)
        console.print(f"  {printable(row['answer'])}", markup=False, soft_wrap=True)


def _keys_table(rows: list[dict[str, Any]], *, header: bool) -> Table:
    """The columns that were asked for; empty where nothing was logged."""
    names = [name for name in rows[0] if name not in {"step", "rank", "time"}]
    table = Table(box=None, pad_edge=False, show_header=header)
    for name in ("step", *names):
        width = max(8, min(len(name), 24))
        table.add_column(escape(printable(name)), min_width=width, overflow="fold")
    for row in rows:
        cells = ("" if row[name] is None else number(row[name], 5) for name in names)
        table.add_row(str(row["step"]), *cells)
    return table


def _metrics_table(rows: list[dict[str, Any]], *, header: bool) -> Table:
    """Some steps; a long run is printed in several tables of the same columns."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for name, width in (("step", 8), ("loss", 10), ("lr", 10), ("grad norm", 10), ("s/step", 10)):
        table.add_column(name, min_width=width)
    for row in rows:
        values = (row["loss"], row["lr"], row["grad_norm"], row["step_seconds"])
        table.add_row(str(row["step"]), *(number(value, 5) for value in values))
    return table


@with_options
def logs(
    run: RunArgument = "last",
    *,
    rank: Annotated[int | None, typer.Option(help="One rank only.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last N lines.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Include every state of progress bars.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Print the ranks' logs."""
    handle = wb.attach(run, store)
    text = handle.logs(rank, tail)
    if not text.strip() and tail != 0:
        subject = "Nothing" if rank is None else f"Rank {rank}"
        missing = "has printed nothing" if rank is not None else "has been printed"
        status = handle.status
        waits = status.message if status.state in {"queued", "starting"} else None
        why = f" {waits}" if waits else ""
        errors.print(f"{subject} {missing} in {handle.id}.{why}", markup=False)
    if not raw:
        text = without_bars(text)
        text = printable(text, colours=sys.stdout.isatty(), max_line=None)
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    if text and not text.endswith("\n"):
        sys.stdout.buffer.write(b"\n")


def without_bars(text: str) -> str:
    r"""Of each line what stood there last; a pattern that begins anywhere would take forever.

    >>> without_bars("10%\r20%\ndone")
    '20%\ndone'
    """
    return re.sub(r"(?m)^[^\n]*\r(?![\n\r]|$)", "", text)


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
        try:
            on_message = None if as_json else partial(console.print, markup=False, soft_wrap=True)
            result = handle.stop(now=now, on_message=on_message)
        except KeyboardInterrupt:
            line = command_for(handle.directory, "show")
            hint = f"{handle.id} was asked to stop and is stopping: {line}"
            errors.print(hint, markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
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
            cells = (check["name"], check["found"], check["fix"] or "")
            table.add_row(mark, *map(escape, cells))
        console.print(table)
    raise typer.Exit(0 if result["ok"] else 1)
