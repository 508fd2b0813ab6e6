"""``workbench launch``: check, show or start a run on this host."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import (
    DryRunOption,
    ModuleOption,
    ScriptArguments,
    WaitOption,
    console,
    errors,
)
from workbench.cli.waiting import exit_with, stay
from workbench.compare.profile.tracing import traced_from_the_start
from workbench.describe.option import Group
from workbench.diagnose.nodes import node_command
from workbench.estimate.stack_factor import sentences_of
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.epoch import epoch_of, largest_batch, shortest_epoch
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import MODULE, resolve
from workbench.recipes import recipes
from workbench.script_options.from_run import WHAT_IT_DOES
from workbench.script_options.reading import read_options
from workbench.store.commands import command_in
from workbench.trainer_configs import COMMAND_LINE
from workbench.units import format_usd

_TARGET_HELP = f"A Python script, or a recipe: {', '.join(recipes())}."


@with_options
def launch(  # noqa: PLR0913 - a command's options are its arguments
    script: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help=_TARGET_HELP)],
    arguments: ScriptArguments = None,
    *,
    module: ModuleOption = False,
    options: Annotated[LaunchOptions, Group(of=LaunchOptions)],
    profile: Annotated[
        str | None,
        typer.Option(help="Trace so many steps, or FIRST:COUNT, with torch.profiler.", metavar="N"),
    ] = None,
    help_script: Annotated[
        bool,
        typer.Option(
            "--help-script",
            help="Run the script up to its parser, imports included, and show its options.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a training run on this host; it continues when the terminal closes."""
    script = f"{MODULE}{script}" if module else script
    if help_script or {"-h", "--help"} & set(arguments or ()):
        _show_help(script, run=help_script, as_json=as_json)
        return
    traced = traced_from_the_start(profile, capture=options.capture)
    options = replace(options, environment={**options.environment, **(traced or {})})
    checked = build_request(script, arguments or [], options)
    if dry_run:
        _show_request(checked, as_json=as_json)
    else:
        _start(checked, wait=wait, as_json=as_json)


def _show_help(target: str, *, run: bool, as_json: bool) -> None:
    """The options of the recipe or script; nothing is started, and run only where asked."""
    resolved = resolve(target)
    reading = read_options(resolved.path, recipe=resolved.recipe, module=resolved.module, run=run)
    note = reading.note
    if reading.can_run and not run:
        words = ["-m", resolved.module] if resolved.module else [target]
        more = shlex.join([*words, "--help-script"])
        note = f"{note} To see all: workbench launch {more}. {WHAT_IT_DOES}"
    if as_json:
        print_json(
            {
                "recipe": resolved.recipe,
                "help": reading.help,
                "read": reading.way,
                "complete": reading.complete,
                "note": note,
                "options": [
                    asdict(option) for option in (*reading.known.words, *reading.known.options)
                ],
            }
        )
        return
    if reading.help:
        typer.echo(reading.help.rstrip("\n"))
    if resolved.recipe is None:
        errors.print(note, markup=False, soft_wrap=True)


def _start(checked: wb.Request, *, wait: bool, as_json: bool) -> None:
    for warning in checked.warnings:
        errors.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if checked.predicted is None and not as_json:
        errors.print(_not_known(checked), markup=False, soft_wrap=True)
    run = wb.start(checked)
    document: dict[str, Any] = {
        "run": run.id,
        "dir": str(run.directory),
        "command": run.command,
        "config_files": checked.config_files_in(run.directory),
        "warnings": list(checked.warnings),
        "nodes": [node_command(run.directory, node) for node in range(1, checked.nodes)],
    }
    if not as_json:
        verb = "queued" if checked.options.queue else "started"
        console.print(f"{verb} {run.id} in {run.directory}", markup=False, soft_wrap=True)
    if wait:
        try:
            stay(run, quiet=as_json, passes_on_sigterm=True)
        finally:
            document |= run.summary()
            if as_json and run.status.live:  # Ctrl-C detached us: say where it stands
                print_json(document)
    if as_json:
        print_json(document)
    elif not wait:
        _print_next_steps(run)
    if wait:
        exit_with(run)


def _show_request(checked: wb.Request, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "run": None,
                "dir": str(checked.planned_directory),
                "command": checked.command,
                "environment": checked.environment,
                "config_files": checked.config_files,
                "shell": checked.shell(),
                "predicted": checked.predicted.document() if checked.predicted else None,
                "predicted_time": (checked.prediction() or {}).get("time"),
                "predicted_usd": checked.predicted_usd,
                "predicted_hours": checked.predicted_hours,
                "usd_per_hour": checked.usd_per_hour,
                **_epoch_document(checked),
                "trainer": checked.trainer and checked.trainer.document(),
                "warnings": list(checked.warnings),
            }
        )
        return
    if checked.trainer is not None:
        has_workload = checked.workload is not None
        note = (
            checked.trainer.note if has_workload else f"the script imports {checked.trainer.label}"
        )
        console.print(f"# {note}", markup=False, soft_wrap=True)
    if checked.predicted is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted).splitlines())
        console.print(f"# memory predicted per rank:\n{table}", markup=False)
        assumptions = checked.predicted.assumptions
        notes = (one for one in assumptions if one.startswith(COMMAND_LINE))
        for sentence in (*notes, *sentences_of(assumptions)):
            console.print(f"# {sentence}", markup=False, soft_wrap=True)
    for line in _epoch_lines(checked):
        console.print(f"# {line}", markup=False, soft_wrap=True)
    if checked.predicted_time is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted_time).splitlines())
        console.print(
            f"# step time predicted ({checked.predicted_basis}):\n{table}",
            markup=False,
            soft_wrap=True,
        )
    if checked.predicted is None:
        console.print(f"# {_not_known(checked)}", markup=False, soft_wrap=True)
    if checked.predicted_usd is not None:
        console.print(f"# cost predicted: {format_usd(checked.predicted_usd)}", markup=False)
    for warning in checked.warnings:
        console.print(f"# warning: {warning}", markup=False, soft_wrap=True)
    console.print(
        "# the exact command; it needs Accelerate alone, not the workbench:", markup=False
    )
    console.print(checked.shell(), markup=False, soft_wrap=True)


def _epoch_document(checked: wb.Request) -> dict[str, Any]:
    epoch, largest = epoch_of(checked), largest_batch(checked)
    shortest = None if epoch is None else shortest_epoch(checked)
    return {
        "epoch": epoch and epoch.document(),
        "largest_micro_batch": largest and largest.value,
        "shortest_epoch": shortest and shortest.document(),
    }


def _epoch_lines(checked: wb.Request) -> list[str]:
    """One pass over the data, and the micro-batches that it wants."""
    epoch = epoch_of(checked)
    if epoch is None:
        return []
    largest, shortest = largest_batch(checked), shortest_epoch(checked)
    total = [] if checked.steps_total is None else [f"{checked.steps_total:,} steps are trained"]
    lines = ["; ".join([str(epoch), *total])]
    lines += [] if largest is None else [f"largest micro-batch that fits: {largest}"]
    return [*lines, *([] if shortest is None else [str(shortest)])]


def _not_known(checked: wb.Request) -> str:
    """What to do about a script that nothing is known of."""
    return f"memory and step time of this script are not measured yet: {measuring(checked)}"


def measuring(checked: wb.Request) -> str:
    """What to type so that the script of a launch is measured."""
    script, working_folder = checked.script, Path.cwd()
    short_path = (
        script.relative_to(working_folder) if script.is_relative_to(working_folder) else script
    )
    target = [str(short_path)] if checked.module is None else ["-m", checked.module]
    arguments = ["--", *checked.arguments] if checked.arguments else []
    line = command_in(checked.store.root, "measure", *target)
    return shlex.join([*shlex.split(line), *arguments])


def _print_next_steps(run: wb.Run) -> None:
    for node in range(1, int(run.document.get("nodes") or 1)):
        line = node_command(run.directory, node)
        console.print(f"run on machine {node}:   {line}", markup=False, soft_wrap=True)
    queued = (("attach", run.id), ("queue", "drop", run.id), ("queue", "list"))
    started = tuple((verb, run.id) for verb in ("attach", "logs", "stop"))
    for words in queued if run.state == "queued" else started:
        line = command_in(run.directory.parent, *words)
        console.print(f"  {line}", markup=False, soft_wrap=True)
