"""``workbench launch``: check, show or start a run on this host."""

from __future__ import annotations

from dataclasses import replace
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
    exit_with,
    stay,
)
from workbench.compare.profile.tracing import traced_from_the_start
from workbench.describe.option import Group
from workbench.diagnose.nodes import node_command
from workbench.estimate.stack_factor import sentences_of
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import MODULE
from workbench.recipes import help_text, recipes
from workbench.units import format_usd

_WHAT = f"A Python script, or a recipe: {', '.join(recipes())}."


@with_options
def launch(
    script: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help=_WHAT)],
    arguments: ScriptArguments = None,
    *,
    module: ModuleOption = False,
    options: Annotated[LaunchOptions, Group(of=LaunchOptions)],
    profile: Annotated[
        str | None,
        typer.Option(help="Trace so many steps, or FIRST:COUNT, with torch.profiler.", metavar="N"),
    ] = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a training run on this host; it continues when the terminal closes."""
    script = f"{MODULE}{script}" if module else script
    if (
        {"-h", "--help"} & set(arguments or ())
        and script in recipes()
        and not Path(script).exists()
    ):
        _show_help(script, as_json=as_json)
        return
    traced = traced_from_the_start(profile, capture=options.capture)
    options = replace(options, environment={**options.environment, **(traced or {})})
    checked = build_request(script, arguments or [], options)
    if dry_run:
        _show_request(checked, as_json=as_json)
    else:
        _start(checked, wait=wait, as_json=as_json)


def _show_help(recipe: str, *, as_json: bool) -> None:
    """The recipe's own options; nothing is started."""
    if as_json:
        print_json({"recipe": recipe, "help": help_text(recipe)})
    else:
        typer.echo(help_text(recipe), nl=False)


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
        console.print(f"started {run.id} in {run.directory}", markup=False, soft_wrap=True)
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
                "trainer": checked.trainer and checked.trainer.document(),
                "warnings": list(checked.warnings),
            }
        )
        return
    if checked.trainer is not None:
        known = checked.workload is not None
        note = checked.trainer.note if known else f"the script imports {checked.trainer.label}"
        console.print(f"# {note}", markup=False, soft_wrap=True)
    if checked.predicted is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted).splitlines())
        console.print(f"# memory predicted per rank:\n{table}", markup=False)
        for one in sentences_of(checked.predicted.assumptions):
            console.print(f"# {one}", markup=False, soft_wrap=True)
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


def _not_known(checked: wb.Request) -> str:
    """What to do about a script that nothing is known of."""
    words = [checked.script.name, *(["--", *checked.arguments] if checked.arguments else [])]
    typed = " ".join(words) if checked.module is None else f"-m {checked.module}"
    return f"memory and step time of this script are not measured yet: workbench measure {typed}"


def _print_next_steps(run: wb.Run) -> None:
    for node in range(1, int(run.document.get("nodes") or 1)):
        line = node_command(run.directory, node)
        console.print(f"run on machine {node}:   {line}", markup=False, soft_wrap=True)
    for verb in ("attach", "logs", "stop"):
        console.print(f"  workbench {verb} {run.id}", markup=False)
