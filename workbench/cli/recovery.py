"""``workbench resume``, ``checkpoints`` and ``diagnose``: what a run needs when it has stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import workbench as wb
from workbench.cli.completion import run_names
from workbench.cli.describing import with_options
from workbench.cli.started import show_started
from workbench.cli.storing import pull_with_bar
from workbench.cli.tables import JsonOption, clock, print_json
from workbench.cli.terminal import (
    DropOption,
    DryRunOption,
    ReplacedArguments,
    RunArgument,
    StoreOption,
    WaitOption,
    console,
)
from workbench.describe.option import Group
from workbench.launching.prepare.acceptance import accept
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.resume.planned import PlannedResume, planned_resume
from workbench.recover.checkpoints import Checkpoint
from workbench.storage.remote import leads_to_pushed
from workbench.store.commands import command_for, command_in
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.units import format_bytes

_SEVERITY = {"error": "red", "warning": "yellow", "note": "cyan"}


@with_options
def resume(  # noqa: PLR0913 - a command's options are its arguments
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run id, unique prefix, name, folder, 'last', or URL/RUN of a pushed run.",
            autocompletion=run_names,
        ),
    ] = "last",
    arguments: ReplacedArguments = None,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help=("Name or path, or 'none' to start over [default: the newest complete one].")
        ),
    ] = None,
    drop: DropOption = None,
    changes: Annotated[dict[str, Any], Group(of=LaunchOptions, changes=True)],
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume from a checkpoint, in the same run or in a new one with another strategy or size.

    The run keeps all options that are not given here.
    """
    if leads_to_pushed(run):
        if dry_run:
            words = ["workbench", "pull", run, *(["--store", store] if store else [])]
            raise wb.UsageError(f"A dry run needs the run here. First: {shlex.join(words)}")
        run = pull_with_bar(run, store).run
    before = wb.attach(run, store)
    if dry_run:
        paths, without = RunPaths(before.directory), drop or ()
        planned = planned_resume(paths, checkpoint, arguments=arguments, drop=without, **changes)
        _show_planned(before, planned, as_json=as_json)
        return
    new_run = before.resume(checkpoint, arguments=arguments, drop=drop or (), **changes)
    show_started(new_run, f"resumed {new_run.id}", wait=wait, as_json=as_json)


def _show_planned(before: wb.Run, planned: PlannedResume, *, as_json: bool) -> None:
    """What a dry run tells: where it would continue, and the command."""
    if as_json:
        run = before.id if planned.same_run else None
        files = planned.config_files or before.config_files
        print_json({"run": run, **asdict(planned), "config_files": files})
        return
    where = f"continues in {before.id}" if planned.same_run else "starts a new run"
    source = planned.checkpoint or "the beginning"
    console.print(f"{where}, from step {planned.step}: {source}", markup=False, soft_wrap=True)
    for note in planned.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(shlex.join(planned.command), markup=False, soft_wrap=True)


def adopt(
    run: RunArgument = "last", *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Restart the supervisor of a run that lost it; accept a run from another host."""
    handle = wb.attach(run, store)
    accepted = accept(RunPaths(handle.directory))
    adopted = handle.adopt()
    status = handle.status
    if as_json:
        result = {"run": handle.id, "adopted": adopted, "accepted": accepted, "state": status.state}
        print_json(result)
        return
    if accepted:
        console.print(f"{handle.id} can be resumed. The command is:", markup=False)
        for line in accepted:
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if adopted:
        console.print(f"{handle.id} is supervised again: {status.state}", markup=False)
    elif accepted:
        line = command_for(handle.directory, "resume")
        console.print(f"Start it: {line}", markup=False, soft_wrap=True)
    else:
        console.print(f"{handle.id} does not need a supervisor: {status.state}", markup=False)


def checkpoints(
    run: RunArgument = "last",
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte against the recorded hashes.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a run, newest first."""
    handle = wb.attach(run, store)
    saved = handle.checkpoints(check=verify)
    if as_json:
        print_json([checkpoint.document() for checkpoint in saved])
    elif not saved:
        console.print(f"{handle.id} does not have a checkpoint.", markup=False)
    else:
        console.print(_checkpoint_table(saved, verified=verify))
        root = handle.directory.parent
        when = "once it has ended, " if handle.status.live else ""
        line = f"{when}resume with: {command_in(root, 'resume', handle.id)}"
        line = handle.why_not_resumable() or line
        console.print(line, markup=False, soft_wrap=True)
        if not verify:
            line = f"to check every byte: {command_in(root, 'checkpoints', handle.id, '--verify')}"
            console.print(line, markup=False, soft_wrap=True)
    if any(checkpoint.problem for checkpoint in saved) and verify:
        raise typer.Exit(1)


def _checkpoint_table(checkpoints: list[Checkpoint], *, verified: bool) -> Table:
    table = Table("checkpoint", "step", "size", "saved", "state", box=None, pad_edge=False)
    for checkpoint in checkpoints:
        good = "complete by file sizes" if checkpoint.sealed else "not verified yet"
        good = f"written by the script ({checkpoint.kind})" if checkpoint.by_script else good
        good = "complete" if verified else good
        saved = "n/a" if checkpoint.saved_at is None else clock(checkpoint.saved_at)
        good = "abandoned: the run restarted from an earlier step" if checkpoint.abandoned else good
        good = f"perhaps not of this run: {checkpoint.doubt}" if checkpoint.doubt else good
        state = f"[red]{escape(checkpoint.problem)}[/]" if checkpoint.problem else escape(good)
        step = "n/a" if checkpoint.step is None else str(checkpoint.step)
        table.add_row(escape(checkpoint.name), step, format_bytes(checkpoint.bytes), saved, state)
    return table


def diagnose(
    run: RunArgument = "last", *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Diagnose a run: findings, causes and next steps."""
    handle = wb.attach(run, store)
    findings = handle.findings()
    if as_json:
        print_json([finding.answer(handle.directory) for finding in findings])
    elif not findings:
        console.print(f"No problems found in {handle.id}.", markup=False)
    else:
        print_findings(findings, handle.directory)


def print_findings(findings: Sequence[Finding], run: Path) -> None:
    """Print each finding: what, where and since when; cause, evidence and next move.

    `run`: the folder of their run.
    """
    for finding in findings:
        _print_finding(finding, run)


def _print_finding(finding: Finding, run: Path) -> None:
    color = "dim" if finding.cleared_at is not None else _SEVERITY[finding.severity]
    where = [f"rank {finding.rank}"] if finding.rank is not None else []
    where += [f"step {finding.step}"] if finding.step is not None else []
    where += [f"confidence {finding.confidence:.0%}"]
    if finding.cleared_at is not None:
        by = finding.replaced_by
        how = "resolved" if by is None else f"replaced by {escape(by)}"
        where += [f"{how} at {clock(finding.cleared_at)}"]
    head = f"[{color}]{finding.severity}[/] [bold]{escape(finding.kind)}[/]  {', '.join(where)}"
    console.print(head)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=8)
    table.add_column(overflow="fold")
    for name, text in (
        ("cause", finding.cause),
        ("evidence", finding.evidence),
        ("next", finding.next_for(run)),
    ):
        table.add_row(name, escape(text))
    console.print(table)
    console.print()
