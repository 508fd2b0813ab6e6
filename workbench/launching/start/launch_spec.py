"""What a supervisor is told to start. It carries secrets, so it is never on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from workbench import recipes
from workbench.describe import Strategy
from workbench.errors import UsageError
from workbench.launching.prepare.recorded_environment import recorded_value
from workbench.launching.start.warm_server import warm_part
from workbench.launching.warm.client import WarmSpec
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.resuming import PLACEHOLDER, how_to_resume
from workbench.store.run_record import RunRecord
from workbench.store.schema import RollbackDoc
from workbench.store.secrets import HIDDEN

"""Why an attempt follows that is no restart: none of its ranks made a step."""


class _ResumePoint(TypedDict):
    step: int  # optimizer steps already done
    checkpoint: str | None  # its path; null = from the beginning
    why: str  # of this attempt, for attempts.jsonl


class ResumeSpec(_ResumePoint, total=False):
    """How an attempt after the first differs from the start that it repeats."""

    arguments: list[str]  # all of the script's; absent = as before
    environment: dict[str, str]  # more of it for this attempt
    told: bool  # the arguments were changed by the user
    rollback: RollbackDoc
    unset: list[list[str]]  # values set on the way that the arguments replace, see `steered`
    after: int  # the attempt that it follows: of two that resume at once, one does
    run: str  # the run that wrote the checkpoint, where it is another one


class LaunchSpec(TypedDict):
    """One start of a launcher."""

    launcher: list[str]  # the command up to and with the script
    arguments: list[str]  # the script's own
    environment: dict[str, str]  # what differs from the supervisor's
    working_directory: str
    warm: WarmSpec | None  # null = started cold
    resume: ResumeSpec | None  # null = the first attempt


def make_spec(
    command: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    warm: WarmSpec | None = None,
) -> LaunchSpec:
    """The spec of a first start: `command` ends with the script's `arguments`."""
    return {
        "launcher": list(command[: len(command) - len(arguments)]),
        "arguments": list(arguments),
        "environment": dict(environment),
        "working_directory": str(folder),
        "warm": warm,
        "resume": None,
    }


def recorded_spec(run: RunRecord, arguments: Sequence[str] | None = None) -> LaunchSpec:
    """The spec of a run known from its run.json alone; None = with the arguments it began with.

    Raises:
        UsageError: run.json lacks a secret that the run was started with.
    """
    arguments = list(run.arguments if arguments is None else arguments)
    check_not_redacted(run, arguments)
    variables = run.environment.items()
    environment = {name: recorded_value(run, name, value) for name, value in variables}
    folder = Path(run.working_directory)
    spec = make_spec(run.command, run.arguments, environment, folder, warm_server(run))
    return {**spec, "arguments": arguments}


def warm_server(run: RunRecord) -> WarmSpec | None:
    """Which warm server fits the run of this run.json; None = it is started cold."""
    if not run.warm:
        return None
    return warm_part(
        Path(run.script),
        run.cpu_threads.get("value"),
        strategy=Strategy.recorded(run.strategy),
        splits=None if run.recipe is None else recipes.find(run.recipe).splits,
        device=run.device,
    )


def check_not_redacted(run: RunRecord, arguments: Sequence[str]) -> None:
    """Refuse arguments of which a part was hidden. Raises UsageError: one of them held a secret."""
    hidden = [word for word in arguments if HIDDEN in word]
    if hidden:
        raise UsageError(
            f"{run.run} was started with a secret among its arguments ({hidden[0]}), which "
            "run.json does not keep. Give the arguments again: workbench resume RUN -- ARGS…"
        )


def on_another_port(spec: LaunchSpec, why: str) -> LaunchSpec:
    """The same start on a port that is free then."""
    launcher = list(spec["launcher"])
    launcher[launcher.index("--main_process_port") + 1] = "0"
    before: ResumeSpec = spec["resume"] or {"step": 0, "checkpoint": None, "why": why}
    return {**spec, "launcher": launcher, "resume": {**before, "why": why}}


def from_checkpoint(
    spec: LaunchSpec, run: RunRecord, checkpoint: Checkpoint | None, why: str
) -> LaunchSpec:
    """The spec of an attempt that continues from `checkpoint`; None = from the beginning.

    Raises:
        UsageError: the script offers no way to resume that is known.
    """
    return {**spec, "resume": resume_spec(spec["arguments"], run, checkpoint, why)}


def resume_spec(
    arguments: Sequence[str],
    run: RunRecord,
    checkpoint: Checkpoint | None,
    why: str,
    *,
    in_arguments: bool = False,
) -> ResumeSpec:
    """How an attempt with these arguments continues; ``{checkpoint}`` in them becomes its path.

    `in_arguments`: see `how_to_resume`.

    Raises:
        UsageError: the script offers no way to resume that is known.
    """
    if checkpoint is None and any(PLACEHOLDER in word for word in arguments):
        raise UsageError(
            f"The arguments name {PLACEHOLDER}, and no checkpoint is whole. Leave it out to start "
            "from the beginning."
        )
    if checkpoint is None:  # where the run began: another run's checkpoint is in its arguments
        origin = run.resumed_from or {}
        return {
            "step": origin.get("step") or 0,
            "checkpoint": origin.get("checkpoint"),
            "why": why,
            "arguments": list(arguments),
        }
    assert checkpoint.step is not None
    way = how_to_resume(
        Path(run.script), run.recipe, arguments, checkpoint, in_arguments=in_arguments
    )
    return {
        "step": checkpoint.step,
        "checkpoint": str(checkpoint.path),
        "why": why,
        "arguments": list(way.arguments),
        "environment": way.environment,
    }
