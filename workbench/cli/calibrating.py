"""``workbench calibrate``: measure this host, beside the catalog; estimates then use it."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import StoreOption, console
from workbench.compare.calibration.calibrate import QUICK_SECONDS, USUAL_SECONDS, kept
from workbench.compare.calibration.calibrate import calibrate as measure
from workbench.estimate.calibration import Calibration
from workbench.estimate.calibration_check import amount, lines, troubles
from workbench.store.calibrations import folder
from workbench.units import format_ratio, format_seconds

_CPU_HELP = "Measure the CPU of a machine with GPUs."


def calibrate(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take a third of the time, for a first estimate.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help=_CPU_HELP)] = False,
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Show the latest measurements only; exit code 1 if there are none."
        ),
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this host in a minute: matmul, memory, collectives, disk, loader, real steps."""
    if show:
        calibration = kept(store, cpu=cpu)
        if calibration is None:
            hint = "This host is not calibrated yet. Next: workbench calibrate"
            print_json(None) if as_json else console.print(hint, markup=False)
            raise typer.Exit(1)
    else:
        calibration = _measured(QUICK_SECONDS if quick else USUAL_SECONDS, store, cpu=cpu)
    if as_json:
        print_json(document(calibration))
    else:
        _print(calibration, store)


def _measured(seconds: float, store: str | None, *, cpu: bool) -> Calibration:
    """Measure, with a bar on stderr; Ctrl-C ends every probe and keeps the earlier calibration."""
    columns = (TextColumn("calibrating:"), BarColumn(), TextColumn("{task.description}"))
    stderr = Console(stderr=True, highlight=False)
    try:
        with Progress(*columns, TimeElapsedColumn(), console=stderr, transient=True) as progress:
            task = progress.add_task("starting", total=1.0)

            def on_progress(share: float, text: str) -> None:
                progress.update(task, completed=share, description=text)

            return measure(store, seconds=seconds, on_progress=on_progress, cpu=cpu)
    except KeyboardInterrupt:
        stderr.print("Stopped; nothing was saved and all processes have ended.", markup=False)
        raise typer.Exit(1) from None


def document(calibration: Calibration) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    rows = [
        {
            "name": line.name,
            "measured": line.measured,
            "catalog": line.expected,
            "unit": line.unit,
            "ratio": line.ratio,
            "slow": line.is_slow,
        }
        for line in lines(calibration)
    ]
    slow = [{"what": one.what, "next": one.next} for one in troubles(calibration)]
    return {"calibration": calibration.document(), "lines": rows, "troubles": slow}


def _print(result: Calibration, store: str | os.PathLike[str] | None) -> None:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(result.measured_at))
    what = f"{result.gpus} x {result.device_name}" if result.gpus else result.device_name or "CPU"
    title = (
        f"{result.host}: {what}, {result.cores} cores, torch {result.versions.get('torch', 'n/a')}"
    )
    console.print(escape(title), style="bold")
    console.print(f"measured {when} in {format_seconds(result.seconds)}", markup=False)
    table = Table("", "measured", "catalog", "ratio", "", box=None, pad_edge=False)
    for at in (1, 2, 3):
        table.columns[at].justify = "right"
    for line in lines(result):
        mark = "[red]slow[/]" if line.is_slow else ""
        ratio = format_ratio(line.measured, line.expected)
        table.add_row(
            escape(line.name),
            amount(line.measured, line.unit),
            amount(line.expected, line.unit),
            ratio,
            mark,
        )
    console.print(table)
    for trouble in troubles(result):
        console.print(f"! {trouble.what}", style="bold red", markup=False)
        console.print(f"  {trouble.next}", markup=False)
    if result.device == "cpu":
        console.print(
            "The catalog does not list CPUs, so there is nothing to compare with.",
            markup=False,
        )
    path = folder(store) / f"{result.key}.json"
    console.print(
        f"saved in {path}; estimates of this host now use these measurements", markup=False
    )
