"""``workbench calibrate``: measure this host beside the catalog, or one run beside its prediction.

Estimates then use what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from workbench.cli.describing import Description, describe, option, with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import StoreOption, console
from workbench.cli.text_console import TextConsole
from workbench.compare.calibration.calibrate import QUICK_SECONDS, USUAL_SECONDS, stored_calibration
from workbench.compare.calibration.calibrate import calibrate as measure
from workbench.compare.calibration.figures import FIGURES
from workbench.compare.calibration.stack import calibrate as calibrate_stack
from workbench.describe.job import Job
from workbench.describe.option import Group
from workbench.describe.stack import NONE, StackMeasurement
from workbench.errors import UsageError
from workbench.estimate.calibration import Calibration
from workbench.estimate.calibration_check import amount, lines, troubles
from workbench.store import stack_calibrations
from workbench.store.calibrations import folder
from workbench.units import format_ratio, format_seconds


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """The options of ``workbench calibrate``."""

    quick: Annotated[bool, option("Take a third of the time, for a first estimate.", "--quick")] = (
        False
    )
    cpu: Annotated[bool, option("Measure the CPU of a machine with GPUs.", "--cpu")] = False
    show: Annotated[
        bool,
        option("Show the latest measurements only; exit code 1 if there are none.", "--show"),
    ] = False
    from_run: Annotated[
        str | None,
        option(
            "Correct the next estimates of this run's trainer by what it measured.",
            "--from",
            metavar="RUN",
        ),
    ] = None
    measured: Annotated[
        str | None,
        option(
            f"The same from figures of the job described: {', '.join(FIGURES)}.",
            "--measured",
            metavar="NAME=N,…",
        ),
    ] = None
    name: Annotated[str | None, option("What to call these figures, for --calibration.")] = None
    job: Annotated[Mapping[str, Any], Group(of=Job)] = field(default_factory=dict[str, Any])
    """What the figures are of."""
    store: StoreOption = None
    as_json: JsonOption = False


@with_options
def calibrate(options: CalibrateOptions) -> None:
    """Measure this host in a minute, or let one measured run correct the next estimates."""
    if options.from_run is not None or options.measured is not None:
        _calibrate_stack(options)
        return
    _refuse_job(options)
    stacks = stack_calibrations.read(options.store) if options.show or options.as_json else []
    if options.show:
        calibration = stored_calibration(options.store, cpu=options.cpu)
        if calibration is None and not stacks:
            hint = "This host is not calibrated yet. Next: workbench calibrate"
            print_json(None) if options.as_json else console.print(hint, markup=False)
            raise typer.Exit(1)
    else:
        seconds = QUICK_SECONDS if options.quick else USUAL_SECONDS
        calibration = _measured(seconds, options.store, cpu=options.cpu)
    if options.as_json:
        print_json(document(calibration, stacks))
        return
    if calibration is not None:
        _print(calibration, options.store)
    for stack in stacks:
        console.print(str(stack), markup=False, soft_wrap=True)


def _refuse_job(options: CalibrateOptions) -> None:
    job_options = [*options.job, *(["name"] if options.name is not None else [])]
    if job_options:
        raise UsageError(
            f"--{job_options[0].replace('_', '-')} describes a job whose figures are known. Add "
            "--measured tokens_per_second=N (workbench calibrate --help), or leave it out."
        )


def _calibrate_stack(options: CalibrateOptions) -> None:
    """Keep what a run or someone's figures say, and show what it changes."""
    if options.quick or options.show or (options.from_run is None) == (options.measured is None):
        raise UsageError("Give --from RUN or --measured FIGURES, without --quick and --show.")
    job = None
    if options.measured is not None:
        cpu = {"cpu": True} if options.cpu else {}
        job = describe(Description(job={**options.job, **cpu}, calibration=NONE))
    else:
        _refuse_job(options)
    measurement = calibrate_stack(
        job,
        run=options.from_run,
        measured=options.measured,
        name=options.name,
        store=options.store,
    )
    if options.as_json:
        print_json(stack_document(measurement))
        return
    console.print(str(measurement), markup=False, soft_wrap=True)
    console.print(
        "The next estimates of this trainer count it; choose with --calibration "
        f"{measurement.name}, switch off with --calibration none",
        markup=False,
        soft_wrap=True,
    )


def stack_document(measurement: StackMeasurement) -> dict[str, Any]:
    """The JSON form of what was measured of a stack; keys are a contract."""
    return {
        "name": measurement.name,
        "figures": measurement.figures,
        "measured_at": measurement.measured_at,
        "is_run": measurement.is_run,
        "stack": measurement.stack._asdict(),
        "gpu": measurement.gpu,
        "step_ratio": measurement.step_ratio,
        "memory_ratio": measurement.memory_ratio,
        "version": measurement.version,
    }


def _measured(seconds: float, store: str | None, *, cpu: bool) -> Calibration:
    """Measure, with a bar on stderr; Ctrl-C ends every probe and keeps the earlier calibration."""
    columns = (TextColumn("calibrating:"), BarColumn(), TextColumn("{task.description}"))
    stderr = TextConsole(stderr=True, highlight=False)
    try:
        with Progress(*columns, TimeElapsedColumn(), console=stderr, transient=True) as progress:
            task = progress.add_task("starting", total=1.0)

            def on_progress(share: float, text: str) -> None:
                progress.update(task, completed=share, description=text)

            return measure(store, seconds=seconds, on_progress=on_progress, cpu=cpu)
    except KeyboardInterrupt:
        stderr.print("Stopped; nothing was saved and all processes have ended.", markup=False)
        raise typer.Exit(1) from None


def document(
    calibration: Calibration | None, stacks: Sequence[StackMeasurement] = ()
) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    measured = {"stacks": [stack_document(stack) for stack in stacks]}
    if calibration is None:
        return {"calibration": None, "lines": [], "troubles": [], **measured}
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
    slow = [{"what": trouble.what, "next": trouble.next} for trouble in troubles(calibration)]
    return {"calibration": calibration.document(), "lines": rows, "troubles": slow, **measured}


def _print(result: Calibration, store: str | os.PathLike[str] | None) -> None:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(result.measured_at))
    gpus = f"{result.gpus} x {result.device_name}" if result.gpus else result.device_name or "CPU"
    title = (
        f"{result.host}: {gpus}, {result.cores} cores, torch {result.versions.get('torch', 'n/a')}"
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
