"""The commands: where each is, and its line in ``workbench --help``.

A command's module is loaded when the command is used: all of them together cost half a second of
CPU time, and ``--help``, ``version`` and every other command would pay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from workbench.cli.json_keys import help_text


@dataclass(frozen=True)
class Source:
    """Where a command is."""

    module: str
    """Below workbench.cli."""
    attribute: str
    """Its function, or the Typer application of a group."""
    summary: str
    """First paragraph of its help text."""


COMMANDS = {
    "launch": Source(
        "launch",
        "launch",
        "Start a training run on this host; it goes on when this terminal closes.",
    ),
    "runs": Source("listing", "runs", "List the runs of the store, newest first."),
    "show": Source(
        "run_commands",
        "show",
        "Show one run: outcome, losses, speed, memory measured beside predicted.",
    ),
    "metrics": Source(
        "run_commands",
        "metrics",
        "Print loss, lr, grad norm and step time of every optimizer step.",
    ),
    "logs": Source("run_commands", "logs", "Print what the ranks wrote."),
    "attach": Source(
        "run_commands",
        "attach",
        "Watch a run live in this terminal; Ctrl-C leaves it running.",
    ),
    "stop": Source(
        "run_commands",
        "stop",
        "Stop a run: same step on all ranks and a checkpoint, then harder; confirm nothing is "
        "left.",
    ),
    "demo": Source(
        "run_commands",
        "demo",
        "Run the main job: predict, launch the embedded recipe, watch, compare with the "
        "prediction.",
    ),
    "doctor": Source(
        "run_commands",
        "doctor",
        "Say what this host has, what is wrong with it, and how to fix each.",
    ),
    "resume": Source(
        "recovery",
        "resume",
        "Go on from a checkpoint: in the same run, or in a new one with another strategy or size.",
    ),
    "rerun": Source(
        "branching", "rerun", "Start a run again as a new run, and list what has changed since."
    ),
    "fork": Source(
        "branching",
        "fork",
        "Start a new run from a checkpoint of a run, with other arguments or options.",
    ),
    "adopt": Source(
        "recovery",
        "adopt",
        "Watch a run again that nobody watches; let one from elsewhere be resumed.",
    ),
    "checkpoints": Source(
        "recovery", "checkpoints", "List what a run can be resumed from, newest first."
    ),
    "diagnose": Source(
        "recovery", "diagnose", "Say what is wrong with a run, why, and what to do next."
    ),
    "track": Source(
        "tracking",
        "track",
        "Write a run's curves, samples and outcome to a tracker, from the first step on.",
    ),
    "memory": Source(
        "memory",
        "memory",
        "Predict a rank's peak memory, explain it, and rank what would lower it.",
    ),
    "cost": Source(
        "cost",
        "cost",
        "Price a finished run: hours, dollars by term with source and date, spot or not.",
    ),
    "plan": Source(
        "plan",
        "plan",
        "Rank machines and layouts for a run by dollars and hours until it is finished.",
    ),
    "advise": Source(
        "advising",
        "advise_command",
        "Check a job against rules of thumb: GPUs, batch, learning rate, links, machine.",
    ),
    "prices": Source(
        "prices",
        "prices_command",
        "List prices of machines, cheapest per GPU first; doubtful ones are marked.",
    ),
    "models": Source("listings", "models_command", "List the model shapes of the catalog."),
    "gpus": Source(
        "listings",
        "gpus_command",
        "List the accelerators of the catalog; cells marked ? have no second source.",
    ),
    "calibrate": Source(
        "calibrating",
        "calibrate",
        "Measure this host in a minute: matmul, memory, collectives, disk, loader, real steps.",
    ),
    "scale": Source(
        "scaling",
        "scale",
        "Run the same work on 1, 2, 4 … ranks: what each loses to what, and what more would do.",
    ),
    "study": Source("studies", "study", "Tune one number, or compare compressions."),
    "profile": Source(
        "profiling",
        "profile",
        "Trace some steps on every rank; say where their time goes and who waits for whom.",
    ),
    "compare": Source(
        "comparing",
        "compare",
        "Set runs beside each other: what differs, what came of it, what a loss cost.",
    ),
    "tag": Source(
        "labelling", "tag", "Give a run tags, take tags away, or, without any, show them."
    ),
    "note": Source("labelling", "note", "Keep a note with a run, in place of the one before."),
    "archive": Source(
        "labelling",
        "archive",
        "Hide runs from lists; nothing of them is removed, and --undo brings them back.",
    ),
    "delete": Source(
        "labelling",
        "delete",
        "Delete ended runs for good, checkpoints and all. To only hide them: workbench archive.",
    ),
    "export": Source(
        "exporting",
        "export",
        "Turn a run, script or plan into the files of another engine, or say what it refuses.",
    ),
    "submit": Source(
        "nodes",
        "submit",
        "Hand a run to Slurm: its directory is there at once, its nodes join it when they are "
        "free.",
    ),
    "warm": Source(
        "warm",
        "warm",
        "Keep a process with torch imported, from which --warm launches start seconds sooner.",
    ),
    "node": Source(
        "nodes", "node", "Join a run over several machines; stays until the run has ended."
    ),
}
"""In the order in which ``--help`` lists them."""


def load(name: str) -> Any:
    """The command or group of that name, made by Typer from its module."""
    source = COMMANDS[name]
    target = getattr(import_module(f"workbench.cli.{source.module}"), source.attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False, rich_markup_mode=None)
        target.command(name)(function)
    command: Any = typer.main.get_command(target)
    command.name = name
    command.epilog = help_text(name)
    for part, inner in getattr(command, "commands", {}).items():
        command.epilog, inner.epilog = None, help_text(f"{name} {part}")
    return command


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and summary, and loads the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        own = self.commands
        self.commands = {
            name: TyperCommand(name=name, help=source.summary, rich_markup_mode=None)
            for name, source in COMMANDS.items()
        }
        self.commands.update(own)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that the line names, then go on as any group."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)
