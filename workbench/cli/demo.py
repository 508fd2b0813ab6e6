"""The main job, headless: predict, launch, watch, and set the measurement beside the prediction."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from workbench.cli.describing import with_options
from workbench.cli.live import follow
from workbench.cli.tables import JsonOption, number, print_json
from workbench.cli.terminal import console
from workbench.compare.calibration.calibrate import (
    STEP_SECONDS,
    calibrate,
    is_fresh,
    stored_calibration,
)
from workbench.describe.option import Group, Option
from workbench.errors import WorkbenchError
from workbench.launching.launch import start
from workbench.launching.prepare.build_request import Request, build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.run import Run
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.terms import RUN_TIME, PredictionTerm
from workbench.store.layout import RunPaths
from workbench.units import format_count, format_ratio


@with_options
def demo(
    *,
    minutes: Annotated[float, Option(help="Training time.", unit="min", above=0)] = 2.0,
    launch: Annotated[LaunchOptions, Group(of=LaunchOptions, only=("processes", "cpu", "store"))],
    as_json: JsonOption = False,
) -> None:
    """Predict, launch and watch the embedded recipe, then compare with the prediction."""

    def checked_request() -> Request:
        return build_request("gpt", ["--minutes", f"{minutes:g}"], replace(launch, name="demo"))

    checked = checked_request()
    if _measure_steps(checked, quiet=as_json):
        checked = checked_request()
    if not as_json:
        _show_prediction(checked)
    run = start(checked)
    try:
        if as_json:
            run.wait()
        else:
            follow(run, console)
    except KeyboardInterrupt:
        console.print("stopping …")
        run.stop()
    summary = run.summary()
    if as_json:
        print_json(summary)
    else:
        _show_result(run, summary)
    raise typer.Exit(0 if run.outcome == "succeeded" else 1)


def _measure_steps(checked: Request, *, quiet: bool) -> bool:
    """A short calibration where this host has no fresh one; True = there is a new one.

    What it cannot measure is not predicted; the run continues all the same.
    """
    root, cpu = checked.store.root, checked.device == "cpu"
    if is_fresh(stored_calibration(root, cluster=checked.cluster, cpu=cpu), time.time()):
        return False
    if not quiet:
        console.print(
            f"[bold]Calibrating[/] this host for {STEP_SECONDS:g} s to predict the step time "
            "(workbench calibrate measures more) …"
        )
    try:
        calibrate(
            root,
            cluster=checked.cluster,
            cpu=cpu,
            seconds=STEP_SECONDS,
            processes=[checked.processes],
            steps_only=True,
        )
    except WorkbenchError as error:
        console.print(f"Not measured: {error}", markup=False, style="yellow")
        return False
    return True


def _show_prediction(checked: Request) -> None:
    workload, predicted = checked.workload, checked.predicted
    assert workload is not None
    assert predicted is not None
    console.print(
        f"[bold]What[/]   {workload.model.name}: {format_count(workload.model.parameters)} "
        f"parameters, micro-batch {workload.micro_batch} x {workload.seq_len} tokens, "
        f"{workload.precision}"
    )
    console.print(f"[bold]How[/]    {checked.strategy.name}, {checked.processes} processes")
    gpus = checked.cluster.gpus
    where = (
        f"{len(gpus)} x {gpus[0].name}"
        if checked.device == "cuda"
        else (f"CPU, {checked.cluster.cpu_cores} cores")
    )
    console.print(f"[bold]Where[/]  {checked.cluster.name}: {where}", markup=True)
    console.print(f"[bold]Memory predicted per rank[/]\n{predicted}")
    if checked.predicted_time is not None:
        basis = escape(str(checked.predicted_basis))
        console.print(f"[bold]Step time predicted[/], {basis}\n{checked.predicted_time}")
    console.print("[bold]Command[/]")
    console.print(checked.shell(), markup=False, soft_wrap=True, style="dim")
    console.print()


def _with_unit(row: PredictionTerm, value: float | None) -> str:
    text = row.text(value)
    return f"{text} tokens/s" if row.unit == "tokens/s" and value is not None else text


def _show_result(run: Run, summary: dict[str, Any]) -> None:
    table = Table("", "predicted", "measured", "ratio", header_style="bold", title="The run")
    gap = read_prediction_error(RunPaths(run.directory))
    for row in gap.rows:
        values = _with_unit(row, row.predicted), _with_unit(row, row.measured)
        # The time was given: predicted is what the steps that it made would take.
        label = f"time for {summary['steps']:,} steps" if row.what == RUN_TIME else row.what
        table.add_row(label, *values, format_ratio(row.measured, row.predicted))
    # The recipe reads bytes, and its loss is a natural logarithm.
    for position in ("first", "last"):
        table.add_row(
            f"loss, {position} step", "n/a", f"{number(summary[f'loss_{position}'])} nats/byte"
        )
    table.add_row("optimizer steps", "n/a", f"{summary['steps']} steps")
    console.print()
    console.print(table)
    console.print(gap.explanation, markup=False)
    for line in run.logs(0, tail=6).splitlines():
        console.print(line, markup=False, style="dim")
    console.print(f"\n{summary['outcome']}: {summary['message']}", markup=False)
    console.print(f"Report:     {run.directory / 'report.html'}", markup=False, soft_wrap=True)
    console.print(f"JupyterLab: {_in_jupyter()}", markup=False)


def _in_jupyter() -> str:
    """What shows this run in a notebook: in a checkout of the repository, or installed alone."""
    if (Path(__file__).parents[2] / "Makefile").is_file():
        return "make lab   (opens the workbench with this run in its list)"
    return "jupyter lab, then: from workbench_widgets import Workbench; Workbench()"
