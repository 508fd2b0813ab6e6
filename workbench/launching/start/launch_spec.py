"""Orders: what a supervisor is told to start. They carry secrets, so they are never on disk.

    {"launcher": [...], "arguments": [...], "environment": {...}, "working_directory": "...",
     "resume": {"step", "checkpoint", "why", "arguments", "environment", "after"} or absent,
     "warm": {"threads", "modules"} or None}

``launcher`` is the command up to and with the script, ``arguments`` are the script's own. A resumed
attempt may have other arguments and more environment; ``after`` is the attempt that it follows.
``warm`` asks for a fork of the warm server that has these modules and CPU threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Strategy
from workbench.errors import UsageError
from workbench.launching.prepare.recorded_environment import recorded_value
from workbench.launching.prepare.redact import HIDDEN
from workbench.launching.start.warm_server import warm_part
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.resuming import PLACEHOLDER, how_to_resume


def make_order(
    command: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    warm: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The order of a first start: `command` ends with the script's `arguments`."""
    return {
        "launcher": list(command[: len(command) - len(arguments)]),
        "arguments": list(arguments),
        "environment": dict(environment),
        "working_directory": str(folder),
        "warm": None if warm is None else dict(warm),
    }


def order_again(run: Mapping[str, Any], arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The order of a run known from its run.json alone; None = with the arguments it began with.

    Raises:
        UsageError: run.json lacks a secret that the run was started with.
    """
    began = [str(word) for word in run["arguments"]]
    arguments = began if arguments is None else list(arguments)
    check_whole(run, arguments)
    given = dict(run["environment"])
    environment = {name: recorded_value(run, name, str(value)) for name, value in given.items()}
    command, folder = [str(word) for word in run["command"]], Path(run["working_directory"])
    order = make_order(command, began, environment, folder, warm_server(run))
    return {**order, "arguments": arguments}


def warm_server(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which warm server fits the run of this run.json; None = it is started cold."""
    if not run.get("warm"):
        return None
    threads: Mapping[str, Any] = run.get("cpu_threads") or {}
    recipe: str | None = run.get("recipe")
    return warm_part(
        Path(run["script"]),
        threads.get("value"),
        strategy=Strategy.recorded(run["strategy"]),
        splits=None if recipe is None else recipes.find(recipe).splits,
        device=str(run["device"]),
    )


def check_whole(run: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Refuse arguments of which a part was hidden.

    Raises:
        UsageError: one of them held a secret.
    """
    hidden = [word for word in arguments if HIDDEN in word]
    if hidden:
        raise UsageError(
            f"{run['run']} was started with a secret among its arguments ({hidden[0]}), which "
            "run.json does not keep. Give the arguments again: workbench resume RUN -- ARGS…"
        )


def on_another_port(order: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The same start on a port that is free then."""
    launcher = list(order["launcher"])
    launcher[launcher.index("--main_process_port") + 1] = "0"
    return {**order, "launcher": launcher, "resume": {**(order.get("resume") or {}), "why": why}}


def from_checkpoint(
    order: Mapping[str, Any],
    run: Mapping[str, Any],
    checkpoint: Checkpoint | None,
    why: str,
) -> dict[str, Any]:
    """The order of an attempt that goes on from `checkpoint`; None = from the beginning.

    ``{checkpoint}`` in the order's arguments becomes its path.

    Raises:
        UsageError: the script offers no way to resume that is known.
    """
    base = list(order["arguments"])
    if checkpoint is None and any(PLACEHOLDER in word for word in base):
        raise UsageError(
            f"The arguments name {PLACEHOLDER}, and no checkpoint is whole. Leave it out to start "
            "from the beginning."
        )
    if checkpoint is None:  # where the run began: another run's checkpoint is in its arguments
        began: dict[str, Any] = run.get("resumed_from") or {}
        start = {"step": int(began.get("step") or 0), "checkpoint": began.get("checkpoint")}
        return {**order, "resume": {**start, "why": why, "arguments": base}}
    assert checkpoint.step is not None
    way = how_to_resume(Path(run["script"]), run.get("recipe"), base, checkpoint)
    return {
        **order,
        "resume": {
            "step": checkpoint.step,
            "checkpoint": str(checkpoint.path),
            "why": why,
            "arguments": list(way.arguments),
            "environment": way.environment,
        },
    }
