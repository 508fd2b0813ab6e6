"""``workbench sweep``: one script with many values of its options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from workbench.cli.describing import with_options
from workbench.cli.help_pages import HelpGroup
from workbench.cli.launch import measuring
from workbench.cli.tables import JsonOption, badge, number, print_json
from workbench.cli.terminal import (
    DryRunOption,
    ModuleOption,
    ScriptArguments,
    StoreOption,
    TargetArgument,
    YesOption,
    console,
    errors,
)
from workbench.describe.option import Group
from workbench.errors import StoreError, UsageError
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import MODULE
from workbench.store.commands import command_in
from workbench.sweeping import Sweep, damaged, find, start, sweeps
from workbench.sweeping.changes import changed_for
from workbench.sweeping.plan import ETA, SweepOptions, labels
from workbench.sweeping.prepared import Prediction, PreparedSweep, prepare_sweep, shell
from workbench.sweeping.progress import TrialTotals, best_of, so_far
from workbench.units import format_between, format_hours, format_usd


class _StartsByDefault(HelpGroup):
    """``workbench sweep train.py …`` is ``workbench sweep start train.py …``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the command where the line does not."""
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = ["start", *args]
        return super().parse_args(ctx, args)


sweep = typer.Typer(
    cls=_StartsByDefault,
    add_completion=False,
    rich_markup_mode=None,
    help=(
        "Train a script with many values of its options; list, stop and resume such sweeps.\n\n"
        "`workbench sweep train.py --grid lr=1e-4,3e-4` is `workbench sweep start train.py …`."
    ),
)
_NAME = Annotated[str, typer.Argument(metavar="SWEEP", help="Name, unique prefix, or 'last'.")]


@sweep.command("start")
@with_options
def start_sweep(
    script: TargetArgument,
    arguments: ScriptArguments = None,
    *,
    module: ModuleOption = False,
    sweep_options: Annotated[SweepOptions, Group(of=SweepOptions)],
    options: Annotated[LaunchOptions, Group(of=LaunchOptions)],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a sweep; its trials are runs that the queue starts.

    Hours and dollars are shown first.
    """
    target = f"{MODULE}{script}" if module else script
    prepared = prepare_sweep(target, arguments or [], sweep_options, options)
    if dry_run and as_json:
        print_json(_dry_document(prepared))
        return
    if not as_json:
        _show_prepared(prepared)
    if dry_run:
        return
    if not yes:
        _ask(prepared.plan.trials)
    _show_started(start(prepared), as_json=as_json)


def _ask(trials: int) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "Starting a sweep needs confirmation and this is not an interactive terminal. Pass "
            "--yes to start it, or --dry-run to see its hours and dollars."
        )
    if not typer.confirm(f"Start {trials} trials?", default=True, err=True):
        errors.print("nothing started")
        raise typer.Exit(1)


def _dry_document(prepared: PreparedSweep) -> dict[str, Any]:
    return {
        "plan": prepared.plan.document(),
        "room": prepared.room,
        "predicted": prepared.prediction.document(),
        "usd_per_hour": prepared.first.usd_per_hour,
        "first_command": prepared.first.command,
        "notes": list(prepared.notes),
    }


def _show_prepared(prepared: PreparedSweep) -> None:
    plan = prepared.plan
    for note in prepared.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    is_sampled = any(not parameter.tried for parameter in plan.parameters)
    lines = [
        f"sweep {plan.name}: {plan.trials} trials, {prepared.room} at a time",
        f"varied: {labels(plan.parameters)}"
        + (f" (drawn by {plan.sampler})" if is_sampled else ""),
        f"judged by: {plan.metric}, {plan.direction} is better",
        f"{'a trial' if is_sampled else 'first trial'}: {shell(prepared)}",
    ]
    if plan.first_look is not None:
        steps = ", ".join(map(str, plan.looks(plan.steps_total or plan.first_look * ETA**2)))
        lines.append(
            f"stopped early by {plan.stop}: at steps {steps}{'' if plan.steps_total else ' …'} the "
            "best third continues"
        )
    for line in (*lines, *_predicted_lines(prepared)):
        console.print(line, markup=False, soft_wrap=True)


def _predicted_lines(prepared: PreparedSweep) -> list[str]:
    predicted, first = prepared.prediction, prepared.first
    if predicted.hours is None or predicted.wall_hours is None:
        lacks = "how many steps a trial takes is not known"
        if first.predicted_time is None:
            how = "workbench calibrate" if first.recipe else measuring(first)
            lacks = f"a trial's step time is not known: {how}"
        return [f"predicted: n/a; {lacks}"]
    low, high = predicted.trial_hours_low or 0.0, predicted.trial_hours_high or 0.0
    hour = format_hours(low) if high < 1.01 * low else format_between(3600 * low, 3600 * high)
    lines = [f"predicted: {hour} a trial; all trials to their end {_both(predicted, 1.0)}"]
    share = predicted.share
    if share.expected < 1:
        lines.append(
            f"  with early stops {_both(predicted, share.expected)} where good trials come at any "
            f"time; {_both(predicted, share.low)} to {_both(predicted, share.high)} in other orders"
        )
    return lines


def _both(predicted: Prediction, share: float) -> str:
    """Time and dollars of a part."""
    usd = "" if predicted.usd is None else f", {format_usd(predicted.usd * share)}"
    return f"{format_hours((predicted.wall_hours or 0.0) * share)}{usd}"


def _show_started(started: Sweep, *, as_json: bool) -> None:
    if as_json:
        print_json(started.document())
        return
    console.print(f"started {started.name} in {started.directory}", markup=False, soft_wrap=True)
    for verb in ("show", "stop", "best"):
        console.print(
            f"  {command_in(started.root, 'sweep', verb, started.name)}",
            markup=False,
            soft_wrap=True,
        )


@sweep.command("list")
def list_sweeps(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the sweeps of the store, newest first."""
    documents, unreadable = list[tuple[Sweep, dict[str, Any]]](), damaged(store)
    for entry in sweeps(store):
        try:
            documents.append((entry, entry.document()))
        except StoreError as error:
            unreadable[entry.name] = str(error)
    for name, why in unreadable.items():
        errors.print(f"note: {name} is left out: {why}", markup=False, soft_wrap=True)
    if as_json:
        print_json([about for _, about in documents])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("sweep", "state", "trials", "varied", "metric", "best"):
        table.add_column(name, no_wrap=name == "sweep", overflow="fold")
    for entry, about in documents:
        best: dict[str, Any] = about["best"] or {}
        ended = [row for row in about["trials"] if row["state"] in {"finished", "pruned", "failed"}]
        table.add_row(
            escape(entry.name),
            badge(entry.state, None),
            f"{len(ended)} of {entry.plan.trials}",
            escape(about["parameters"]),
            escape(about["metric_text"]),
            number(best.get("value")),
        )
    console.print(
        table if documents else "No sweeps yet. Start one: workbench sweep SCRIPT --grid …"
    )


@sweep.command()
def show(
    name: _NAME = "last",
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its figures as one page.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the trials of a sweep and the best one."""
    chosen_sweep = find(name, store)
    if html is not None:
        from workbench.sweeping.page import write_page  # noqa: PLC0415  (plotly)

        write_page(chosen_sweep, html)
        errors.print(f"figures written to {html}", markup=False)
    if as_json:
        print_json(chosen_sweep.document())
        return
    _show(chosen_sweep)


def _show(sweep: Sweep) -> None:
    plan, trials, told = sweep.plan, sweep.trials(), sweep.changes
    best = best_of(trials, plan.direction)
    console.print(f"{sweep.name}: {sweep.state}", markup=False)
    if sweep.message:
        console.print(sweep.message, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trial", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for parameter in plan.parameters:
        table.add_column(escape(parameter.name), overflow="fold")
    table.add_column(escape(sweep.metric_text), justify="right", overflow="fold", min_width=10)
    table.add_column("run", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in trials:
        mark = "[green]best[/]" if best and best.number == row.number else escape(row.why)
        changed = changed_for(told, row.number)
        mark = "; ".join(filter(None, (mark, escape(changed))))
        table.add_row(
            str(row.number),
            badge(row.state, None),
            *(escape(_short(row.values.get(parameter.name, ""))) for parameter in plan.parameters),
            number(row.value),
            escape(row.run or "n/a"),
            mark,
        )
    console.print(table)
    for note in sweep.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(_totals_text(so_far(trials, plan.trials), plan.predicted or {}), markup=False)
    if best is not None:
        line = command_in(sweep.root, "sweep", "best", sweep.name)
        console.print(f"The best: {line}", markup=False, soft_wrap=True)


def _totals_text(now: TrialTotals, predicted: Mapping[str, Any]) -> str:
    """Trials, hours and dollars so far, beside what was predicted for all.

    >>> counts = {"finished": 2, "pruned": 1, "failed": 0, "running": 1, "waiting": 4}
    >>> now = TrialTotals(**counts, hours=0.01, usd=None)
    >>> _totals_text(now, {"hours": 0.5, "usd": None})
    '3 of 8 trials have ended, 1 running; 36 s so far, predicted 30 min 00 s for all to their end'
    """
    ended = now.finished + now.pruned + now.failed
    planned = ended + now.running + now.waiting
    bill = "" if now.usd is None else f", {format_usd(now.usd)}"
    line = f"{ended} of {planned} trials have ended, {now.running} running; "
    line += f"{format_hours(now.hours)}{bill} so far"
    if predicted.get("hours") is None:
        return line
    usd = "" if predicted.get("usd") is None else f", {format_usd(predicted['usd'])}"
    return f"{line}, predicted {format_hours(predicted['hours'])}{usd} for all to their end"


def _short(text: str) -> str:
    """A drawn number with the digits that people read; a whole one with all of them.

    >>> _short("0.00031415926535"), _short("adamw"), _short("1e-4")
    ('0.0003142', 'adamw', '1e-4')
    """
    try:
        is_whole = text.lstrip("-").isdecimal()
        return text if len(text) < 8 or is_whole else f"{float(text):.4g}"
    except ValueError:
        return text


@sweep.command()
def best(name: _NAME = "last", *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show the best trial and the command that trains it again."""
    chosen_sweep = find(name, store)
    row = chosen_sweep.best()
    if row is None:
        line = command_in(chosen_sweep.root, "sweep", "show", chosen_sweep.name)
        raise UsageError(f"No trial of {chosen_sweep.name} has finished: {line}")
    command = again(chosen_sweep, row.number)
    if as_json:
        print_json(
            {
                "sweep": chosen_sweep.name,
                "metric": chosen_sweep.plan.metric,
                "metric_text": chosen_sweep.metric_text,
                **asdict(row),
                "command": command,
            }
        )
        return
    values = ", ".join(f"{key}={value}" for key, value in row.values.items())
    console.print(
        f"trial {row.number} of {chosen_sweep.name}: {values}", markup=False, soft_wrap=True
    )
    judged = f"{chosen_sweep.metric_text}: {number(row.value, 6)}"
    console.print(f"{judged}, run {row.run}", markup=False)
    console.print(f"  {shlex.join(command)}", markup=False, soft_wrap=True)
    for verb in ("show", "export-model"):
        line = command_in(chosen_sweep.root, verb, str(row.run))
        console.print(f"  {line}", markup=False, soft_wrap=True)


def again(sweep: Sweep, trial: int) -> list[str]:
    """What to type to train a trial again: a rerun has its values, variables, folder and layout."""
    return shlex.split(command_in(sweep.root, "rerun", sweep.run(trial).id))


@sweep.command()
def stop(name: _NAME = "last", *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Stop a sweep and its runs, with checkpoints; resume continues."""
    _after(find(name, store).stop(), as_json=as_json)


@sweep.command()
def resume(name: _NAME = "last", *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Continue a sweep after a stop, a reboot or a kill; no trial runs twice."""
    _after(find(name, store).resume(), as_json=as_json)


def _after(sweep: Sweep, *, as_json: bool) -> None:
    if as_json:
        print_json(sweep.document())
        return
    more = f": {sweep.message}" if sweep.message else ""
    console.print(f"{sweep.name} is {sweep.state}{more}", markup=False, soft_wrap=True)
    line = command_in(sweep.root, "sweep", "show", sweep.name)
    console.print(f"  {line}", markup=False, soft_wrap=True)
