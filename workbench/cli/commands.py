"""The commands: where each is, and its line in ``workbench --help``.

A command's module is loaded when the command is used: all of them together cost half a second of
CPU time, and ``--help``, ``version`` and every other command would pay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand

from workbench.cli.help_pages import SETTINGS, HelpCommand, HelpGroup
from workbench.cli.json_keys import help_text

COMPLETION: Final = "_WORKBENCH_COMPLETE"
"""A shell's script sets this variable when Tab is pressed, as Click defines."""


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
        "Start a training run on this host; it continues when the terminal closes.",
    ),
    "runs": Source("listing", "runs", "List the runs of the store, newest first."),
    "show": Source(
        "run_commands",
        "show",
        "Show one run: outcome, losses, speed, measured and predicted memory.",
    ),
    "metrics": Source(
        "run_commands",
        "metrics",
        "Print loss, lr, grad norm and step time of every optimizer step, or the keys asked for.",
    ),
    "logs": Source("run_commands", "logs", "Print the ranks' logs."),
    "attach": Source(
        "run_commands",
        "attach",
        "Watch a run live in this terminal; Ctrl-C leaves it running.",
    ),
    "ui": Source(
        "ui",
        "ui",
        "Show runs and their live dashboards in a browser, without Jupyter.",
    ),
    "set": Source(
        "steering",
        "set_values",
        "Change lr, or another number of the optimizer, while a run trains: all ranks at one step.",
    ),
    "look": Source(
        "steering",
        "look",
        "Show statistics of a module's weights, gradients and activations in one step, per rank.",
    ),
    "checkpoint": Source(
        "steering", "checkpoint", "Have a run save a checkpoint now, and train on."
    ),
    "evaluate": Source(
        "steering",
        "evaluate",
        "Have a run evaluate now: of transformers' Trainer and of the recipes that evaluate.",
    ),
    "stop": Source(
        "run_commands",
        "stop",
        "Stop a run gracefully with a checkpoint, then by signals; confirm that no process "
        "remains.",
    ),
    "demo": Source(
        "demo",
        "demo",
        "Predict, launch and watch the embedded recipe, then compare with the prediction.",
    ),
    "doctor": Source(
        "run_commands",
        "doctor",
        "Check this host; show each problem and its fix.",
    ),
    "resume": Source(
        "recovery",
        "resume",
        "Resume from a checkpoint, in the same run or in a new one with another strategy or size.",
    ),
    "rerun": Source(
        "branching", "rerun", "Start a run again as a new run, and list what has changed since."
    ),
    "fork": Source(
        "branching",
        "fork",
        "Start a new run from a checkpoint of a run, with other arguments or options.",
    ),
    "queue": Source("queue", "queue", "List, move, drop and start the runs that wait for devices."),
    "sweep": Source(
        "sweep",
        "sweep",
        "Train a script with many values of its options; list, stop and resume such sweeps.",
    ),
    "adopt": Source(
        "recovery",
        "adopt",
        "Restart the supervisor of a run that lost it; accept a run from another host.",
    ),
    "checkpoints": Source(
        "recovery", "checkpoints", "List the checkpoints of a run, newest first."
    ),
    "push": Source(
        "storing",
        "push",
        "Send a run to an object store or volume: record, metrics, logs, code and checkpoints.",
    ),
    "pull": Source(
        "storing",
        "pull",
        "Bring a pushed run into the store of this machine; every byte is verified.",
    ),
    "diagnose": Source("recovery", "diagnose", "Diagnose a run: findings, causes and next steps."),
    "replay": Source(
        "replay",
        "replay",
        "Replay a recorded run: the view and findings as they were at each step.",
    ),
    "track": Source(
        "tracking",
        "track",
        "Send a run's curves, samples and outcome to a tracker, starting at its first step.",
    ),
    "notify": Source(
        "notifying",
        "notify",
        "Choose who is told of findings, restarts and ends of your runs: Slack, Discord, ntfy, "
        "e-mail, any webhook.",
    ),
    "memory": Source(
        "memory",
        "memory",
        "Predict and explain a rank's peak memory; rank options that lower it.",
    ),
    "cost": Source(
        "cost",
        "cost",
        "Estimate what finishing a run costs: hours, and dollars per term with source and date.",
    ),
    "plan": Source(
        "plan",
        "plan",
        "Rank machines and layouts by dollars and hours to finish a run.",
    ),
    "rehearse": Source(
        "rehearse",
        "rehearse",
        "Play a planned run on a simulated clock: interruptions, faults and dollars, no training.",
    ),
    "advise": Source(
        "advising",
        "advise_command",
        "Check a job against rules of thumb: GPUs, batch, learning rate, links, machine.",
    ),
    "prices": Source(
        "prices",
        "prices_command",
        "List prices of machines, cheapest per GPU first; doubtful prices are marked.",
    ),
    "models": Source("listings", "models_command", "List the model shapes of the catalog."),
    "gpus": Source(
        "listings",
        "gpus_command",
        "List the accelerators of the catalog; cells marked ? are unverified.",
    ),
    "calibrate": Source(
        "calibrating",
        "calibrate",
        "Measure this host in a minute, or let one measured run correct the next estimates.",
    ),
    "measure": Source(
        "measuring",
        "measure",
        "Run a script for a few steps, twice; then it is predicted, planned and priced.",
    ),
    "data": Source(
        "data",
        "data",
        "Check training examples; with --model show them as it will see them, and count tokens.",
    ),
    "verify": Source(
        "verify",
        "verify",
        "Run a script for a few steps on one rank and on several; name what differs first.",
    ),
    "scale": Source(
        "scaling",
        "scale",
        "Scaling study on 1, 2, 4 … ranks: efficiency, losses by cause, extrapolation.",
    ),
    "study": Source("studies", "study", "Tune one number, or compare compressions."),
    "profile": Source(
        "profiling",
        "profile",
        "Trace some steps on every rank; show where time goes and which ranks wait.",
    ),
    "compare": Source(
        "comparing",
        "compare",
        "Compare runs: differing settings, results, and cost to reach a loss.",
    ),
    "tag": Source("labelling", "tag", "Add or remove tags of a run; without arguments, show them."),
    "note": Source("labelling", "note", "Set the note of a run."),
    "archive": Source(
        "labelling",
        "archive",
        "Hide runs from lists without deleting them; --undo shows them again.",
    ),
    "delete": Source(
        "labelling",
        "delete",
        "Delete ended runs permanently, including checkpoints. To hide them: workbench archive.",
    ),
    "export": Source(
        "exporting",
        "export",
        "Export a run, script or plan as files of another engine, or as a trainer's configuration.",
    ),
    "export-model": Source(
        "model_export",
        "export_model_command",
        "Write the trained model to a folder or the hub: safetensors, config, tokenizer and card.",
    ),
    "generate": Source(
        "generating",
        "generate",
        "Let the trained model answer a prompt; of an adapter (LoRA), beside its base model.",
    ),
    "submit": Source(
        "nodes",
        "submit",
        "Submit a run to Slurm: its directory exists at once, nodes join when allocated.",
    ),
    "warm": Source(
        "warm",
        "warm",
        "Keep a process with torch imported, so that --warm launches start seconds sooner.",
    ),
    "lessons": Source(
        "lessons",
        "lessons",
        "Copy the lessons, notebooks on multi-GPU training, into a folder to work in.",
    ),
    "mcp": Source(
        "mcp_server",
        "mcp",
        "Serve agents over stdio (Model Context Protocol): reading, and starting within limits.",
    ),
    "node": Source(
        "nodes", "node", "Join a multi-node run as one of its machines, until the run ends."
    ),
    "completion": Source(
        "completion",
        "completion",
        "Print a shell's script that completes commands, options, runs and names with Tab.",
    ),
}
"""By name."""
SECTIONS: Final = {
    "Begin": "demo lessons doctor",
    "Before a run": (
        "memory cost plan advise prices models gpus rehearse calibrate measure data verify"
    ),
    "Start": "launch queue sweep scale study warm",
    "Watch and steer": (
        "runs show attach ui metrics logs diagnose replay set look checkpoint evaluate stop track "
        "notify"
    ),
    "Go on": "resume rerun fork adopt checkpoints push pull",
    "Afterwards": "profile compare generate export-model tag note archive delete",
    "Elsewhere": "export submit node mcp completion version",
}
"""Headings of ``--help``, with the commands below each in their order."""


def load(name: str) -> Any:
    """The command or group of that name, made by Typer from its module."""
    source = COMMANDS[name]
    target = getattr(import_module(f"workbench.cli.{source.module}"), source.attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False, rich_markup_mode=None)
        target.command(name)(function)
    for info in target.registered_commands:
        info.cls, info.context_settings = HelpCommand, SETTINGS
    command: Any = typer.main.get_command(target)
    command.name = name
    command.epilog = help_text(name)
    for part, inner in getattr(command, "commands", {}).items():
        command.epilog, inner.epilog = None, help_text(f"{name} {part}")
    return command


class LazyGroup(HelpGroup):
    """A group that knows its commands by name and summary, and loads the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        own = self.commands
        self.commands = {
            name: TyperCommand(name=name, help=source.summary, rich_markup_mode=None)
            for name, source in COMMANDS.items()
        }
        self.commands.update(own)

    def headings(self, names: list[str]) -> dict[str, list[str]]:
        """The sections, each with those of its commands that there are."""
        return {
            heading: [name for name in listed.split() if name in names]
            for heading, listed in SECTIONS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that the line names, then continue as any group."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)
