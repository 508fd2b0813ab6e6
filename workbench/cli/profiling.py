"""``workbench profile``: where each rank's time goes, and the traces for Perfetto."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

import workbench as wb
from workbench.cli.describing import option, with_options
from workbench.cli.profile_view import show_gpus, show_profile
from workbench.cli.tables import print_json
from workbench.cli.terminal import (
    CpuOption,
    JsonOption,
    NprocOption,
    ScriptArguments,
    StoreOption,
    console,
    errors,
)
from workbench.compare.profile import tracing
from workbench.compare.profile.analysis import read_profile
from workbench.compare.profile.merge import merged_trace
from workbench.compare.profile.vendor_tools import NSYS_REPORT, dcgm_sampled, nsys_wrapper
from workbench.errors import UsageError
from workbench.launching.capture.profiling import VARIABLE
from workbench.launching.prepare.targets import resolve
from workbench.recipes import recipes
from workbench.store.layout import RunPaths

_TARGET = "A run (id, prefix, name, 'last'), or a script or recipe to start under the profiler."


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to profile, and how."""

    target: Annotated[str, typer.Argument(metavar="RUN_OR_SCRIPT", help=_TARGET)]
    arguments: ScriptArguments = None
    steps: Annotated[int, option("Optimizer steps to trace.")] = 5
    first: Annotated[int, option("New run: first step to trace.", "--from")] = tracing.FIRST
    memory: Annotated[
        bool, option("Record allocations too, for the memory timeline.", "--memory")
    ] = False
    shapes: Annotated[bool, option("Record the operators' shapes too.", "--shapes")] = False
    show: Annotated[bool, option("Show the latest profile of a run; do not trace.", "--show")] = (
        False
    )
    stop: Annotated[bool, option("Stop the run after the trace.", "--stop")] = False
    strategy: Annotated[str | None, option("New run: as for launch.")] = None
    nproc: NprocOption = None
    cpu: CpuOption = False
    nsys: Annotated[bool, option("New run: also run under Nsight Systems.", "--nsys")] = False
    timeout: Annotated[float, option("Seconds to wait for the traces.")] = 600.0
    store: StoreOption = None
    as_json: JsonOption = False


@with_options
def profile(asked: Asked) -> None:
    """Trace some steps on every rank; show where time goes and which ranks wait."""
    with dcgm_sampled() as gpus:
        run, folder = _traced(asked)
    found = read_profile(RunPaths(run.directory), folder)
    merged = merged_trace(found)
    if asked.stop:
        run.stop()
    if asked.as_json:
        more = {
            "merged": str(merged),
            "state": run.state,
            "nsys": _nsys(run) if asked.nsys else None,
            "dcgm": gpus,
        }
        print_json({**found.document(), **more})
    else:
        show_profile(found, merged, console)
        show_gpus(gpus, console)
        if asked.nsys:
            console.print(f"Nsight Systems writes {_nsys(run)} when the run ends.", markup=False)
        if run.status.live:
            console.print(f"The run continues; to stop it: workbench stop {run.id}", markup=False)
    if not found.ranks:
        raise typer.Exit(1)


def _nsys(run: wb.Run) -> str:
    return str(run.directory / NSYS_REPORT)


def _traced(asked: Asked) -> tuple[wb.Run, Path | None]:
    """The run, and the folder of its new profile; None = its latest."""
    if asked.show:
        return wb.attach(asked.target, asked.store), None
    if asked.target in recipes() or Path(asked.target).is_file():
        return _launched(asked)
    if asked.arguments or asked.nsys:
        raise UsageError(
            f"{asked.target!r} is read as a run because no script or recipe has that name. "
            "Arguments and --nsys are for a new run: give a script, or a recipe of `workbench "
            "launch --help`."
        )
    run = wb.attach(asked.target, asked.store)
    with _progress(run, quiet=asked.as_json) as told:
        folder = tracing.profile(
            run,
            asked.steps,
            memory=asked.memory,
            shapes=asked.shapes,
            timeout=asked.timeout,
            on_message=told,
        )
    return run, folder


def _launched(asked: Asked) -> tuple[wb.Run, Path]:
    """Start a run that traces itself, and wait for the traces."""
    resolve(asked.target)
    wrapper = nsys_wrapper() if asked.nsys else ()
    text = tracing.request_text(asked.first, asked.steps, memory=asked.memory, shapes=asked.shapes)
    checked = wb.request(
        asked.target,
        asked.arguments or [],
        strategy=asked.strategy,
        processes=asked.nproc,
        cpu=asked.cpu,
        store=asked.store,
        environment={VARIABLE: text},
    )
    for warning in checked.warnings:
        errors.print(f"warning: {warning}", markup=False, soft_wrap=True)
    run = wb.start(replace(checked, wrapper=wrapper))
    if not asked.as_json:
        console.print(f"started {run.id} in {run.directory}", markup=False, soft_wrap=True)
    folder = tracing.folder_of(RunPaths(run.directory), asked.first)
    with _progress(run, quiet=asked.as_json) as told:
        tracing.collect(run, folder, timeout=asked.timeout, on_message=told)
    return run, folder


@contextmanager
def _progress(run: wb.Run, *, quiet: bool) -> Generator[Callable[[str], None]]:
    """A line on a terminal that says how far it is; Ctrl-C ends the waiting alone."""
    try:
        if quiet or not sys.stderr.isatty():
            yield lambda _text: None
        else:
            with errors.status("waiting for the traces") as status:
                yield lambda text: status.update(f"waiting for the traces: {text}")
    except KeyboardInterrupt:
        told = "stopped waiting; the run continues and keeps its traces. To stop it:"
        errors.print(f"{told} workbench stop {run.id}", markup=False, soft_wrap=True)
        raise typer.Exit(0) from None
