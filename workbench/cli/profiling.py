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
from workbench.cli.completion import run_names
from workbench.cli.describing import option, with_options
from workbench.cli.profile_view import show_gpus, show_profile
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import (
    ScriptArguments,
    StoreOption,
    console,
    errors,
)
from workbench.compare.profile import tracing
from workbench.compare.profile.analysis import read_profile
from workbench.compare.profile.merge import merged_trace
from workbench.compare.profile.vendor_tools import NSYS_REPORT, dcgm_sampled, nsys_wrapper
from workbench.compare.studies.bench import LAUNCHED
from workbench.describe.option import Group, Option
from workbench.errors import UsageError
from workbench.launching.capture.profiling import VARIABLE
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import resolve
from workbench.recipes import recipes
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths

_TARGET = "A run (id, prefix, name, 'last'), or a script or recipe to start under the profiler."


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to profile, and how."""

    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_SCRIPT", help=_TARGET, autocompletion=run_names)
    ]
    arguments: ScriptArguments = None
    steps: Annotated[int, option("Optimizer steps to trace.")] = tracing.STEPS
    first: Annotated[int, option("New run: first step to trace.", "--from")] = tracing.FIRST
    memory: Annotated[
        bool, option("Record allocations too, for the memory timeline.", "--memory")
    ] = False
    shapes: Annotated[bool, option("Record the operators' shapes too.", "--shapes")] = False
    show: Annotated[bool, option("Show the latest profile of a run; do not trace.", "--show")] = (
        False
    )
    stop: Annotated[bool, option("Stop the run after the trace.", "--stop")] = False
    nsys: Annotated[bool, option("New run: also run under Nsight Systems.", "--nsys")] = False
    timeout: Annotated[float, Option(help="Seconds to wait for the traces.", above=0)] = 600.0
    launch: Annotated[LaunchOptions, Group(of=LaunchOptions, only=("processes", *LAUNCHED))]
    """Of a new run."""
    store: StoreOption = None
    as_json: JsonOption = False


@with_options
def profile(options: ProfileOptions) -> None:
    """Trace some steps on every rank; show where time goes and which ranks wait."""
    with dcgm_sampled() as gpus:
        run, folder = _traced(options)
    result = read_profile(RunPaths(run.directory), folder)
    merged = merged_trace(result)
    if options.stop:
        run.stop()
    if options.as_json:
        more = {
            "merged": str(merged),
            "state": run.state,
            "nsys": _nsys(run) if options.nsys else None,
            "dcgm": gpus,
        }
        print_json({**result.document(), **more})
    else:
        show_profile(result, merged, console)
        show_gpus(gpus, console)
        if options.nsys:
            console.print(f"Nsight Systems writes {_nsys(run)} when the run ends.", markup=False)
        if run.status.live:
            line = command_for(run.directory, "stop")
            console.print(f"The run continues; to stop it: {line}", markup=False, soft_wrap=True)
    if not result.ranks:
        raise typer.Exit(1)


def _nsys(run: wb.Run) -> str:
    return str(run.directory / NSYS_REPORT)


def _traced(options: ProfileOptions) -> tuple[wb.Run, Path | None]:
    """The run, and the folder of its new profile; None = its latest."""
    if options.show:
        return wb.attach(options.target, options.store), None
    if options.target in recipes() or Path(options.target).is_file():
        return _launched(options)
    if options.arguments or options.nsys:
        raise UsageError(
            f"{options.target!r} is read as a run because no script or recipe has that name. "
            "Arguments and --nsys are for a new run: give a script, or a recipe of `workbench "
            "launch --help`."
        )
    run = wb.attach(options.target, options.store)
    with _progress(run, quiet=options.as_json) as on_message:
        folder = tracing.profile(
            run,
            options.steps,
            memory=options.memory,
            shapes=options.shapes,
            timeout=options.timeout,
            on_message=on_message,
        )
    return run, folder


def _launched(options: ProfileOptions) -> tuple[wb.Run, Path]:
    """Start a run that traces itself, and wait for the traces."""
    resolve(options.target)
    wrapper = nsys_wrapper() if options.nsys else ()
    text = tracing.request_text(
        options.first, options.steps, memory=options.memory, shapes=options.shapes
    )
    environment = {**options.launch.environment, VARIABLE: text}
    launch = replace(options.launch, environment=environment, store=options.store)
    checked = build_request(options.target, options.arguments or [], launch)
    for warning in checked.warnings:
        errors.print(f"warning: {warning}", markup=False, soft_wrap=True)
    run = wb.start(replace(checked, wrapper=wrapper))
    if not options.as_json:
        console.print(f"started {run.id} in {run.directory}", markup=False, soft_wrap=True)
    folder = tracing.folder_of(RunPaths(run.directory), options.first)
    with _progress(run, quiet=options.as_json) as on_message:
        tracing.collect(run, folder, timeout=options.timeout, on_message=on_message)
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
        sentence = "stopped waiting; the run continues and keeps its traces. To stop it:"
        line = command_for(run.directory, "stop")
        errors.print(f"{sentence} {line}", markup=False, soft_wrap=True)
        raise typer.Exit(0) from None
