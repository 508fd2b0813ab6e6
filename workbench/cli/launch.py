"""``workbench launch``: check, show or start a run on this host."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.describing import option, with_description, words
from workbench.cli.tables import print_json
from workbench.cli.terminal import (
    CpuOption,
    JsonOption,
    NprocOption,
    StoreOption,
    WaitOption,
    console,
    errors,
    exit_with,
    stay,
)
from workbench.compare.profile_request import traced_from_the_start
from workbench.describe import Strategy
from workbench.diagnose.nodes import node_command
from workbench.recipes import recipes
from workbench.recover.policy import Recovery
from workbench.recover.policy import words as command_words
from workbench.units import format_usd

_LISTS = {"offload"}
_WHAT = f"A Python script, or a recipe: {', '.join(recipes())}."


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to start and how, as given on the command line."""

    script: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help=_WHAT)]
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS...]", help="The script's own arguments."),
    ] = None
    strategy: Annotated[
        str | None,
        option("single, ddp, fsdp, fsdp-grad-op, hsdp, zero1-3, tp, pp, cp, dp2-tp2 … [ddp]."),
    ] = None
    engine: Annotated[str | None, option("fsdp: fsdp1. zero1: torch (not DeepSpeed).")] = None
    wrap: Annotated[str | None, option("FSDP: class of the model's blocks.")] = None
    wrap_min_parameters: Annotated[
        int | None, option("FSDP1: wrap each module above so many parameters.")
    ] = None
    recompute: Annotated[str | None, option("none or full.")] = None
    offload: Annotated[
        str | None, option("To the host: optimizer,parameters (FSDP: both).", metavar="O,O")
    ] = None
    offload_device: Annotated[str | None, option("cpu or nvme (DeepSpeed).")] = None
    state_dict: Annotated[str | None, option("FSDP checkpoints: sharded or full.")] = None
    meta_init: Annotated[bool, option("FSDP: only rank 0 builds it whole.", "--meta-init")] = False
    comm_hook: Annotated[str | None, option("DDP: fp16, bf16, powersgd or topk.")] = None
    bucket_views: Annotated[
        bool, option("DDP: gradients are views of buckets.", "--bucket-views")
    ] = False
    static_graph: Annotated[bool, option("DDP: the graph never changes.", "--static-graph")] = False
    find_unused: Annotated[
        bool, option("DDP: some parameters get no gradient.", "--find-unused")
    ] = False
    sequence_parallel: Annotated[
        bool, option("tp: split norms and residuals too.", "--sequence-parallel")
    ] = False
    cp_method: Annotated[str | None, option("cp: ring or ulysses.")] = None
    schedule: Annotated[str | None, option("pp: 1f1b, gpipe, interleaved, zero-bubble, naive.")] = (
        None
    )
    virtual_stages: Annotated[int | None, option("pp: model chunks per rank.")] = None
    nproc: NprocOption = None
    nodes: Annotated[int, option("Equal machines that all see the store; this one is node 0.")] = 1
    address: Annotated[str | None, option("Where the other machines reach this one.")] = None
    cpu: CpuOption = False
    name: Annotated[str | None, option("Display name of the run.")] = None
    port: Annotated[int, option("Rendezvous port; 0 = a free one.")] = 0
    capture: Annotated[bool, option("Observe loss and steps in the script.")] = True
    profile: Annotated[
        str | None, option("Trace so many steps, or FIRST:COUNT, with torch.profiler.", metavar="N")
    ] = None
    restarts: Annotated[int, option("Start again so often from the newest whole checkpoint.")] = 0
    grace: Annotated[float | None, option("Seconds from a pre-emption's notice to the end.")] = None
    preemption: Annotated[str | None, option("Where notices come: aws, gcp, a file, a URL.")] = None
    tracker: Annotated[
        str | None, option("tensorboard, mlflow, trackio, wandb (offline).", metavar="T,T")
    ] = None
    on_idle: Annotated[str | None, option("Command when GPUs idle; no shell.")] = None
    idle_minutes: Annotated[float, option("What counts as idle.")] = 10.0
    on_end: Annotated[str | None, option("Command when the run has ended; no shell.")] = None
    hooks_dry_run: Annotated[bool, option("Only log those commands.", "--hooks-dry-run")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would start.")] = False
    wait: WaitOption = False
    store: StoreOption = None
    as_json: JsonOption = False


_NAMED = {one.name for one in fields(Strategy)} & {one.name for one in fields(Asked)} - {"name"}
"""Fields of a strategy that are options here."""


@with_description
def launch(asked: Asked) -> None:
    """Start a training run on this host; it goes on when this terminal closes."""
    checked = wb.request(
        asked.script,
        asked.arguments or [],
        strategy=asked.strategy,
        options=_options(asked),
        processes=asked.nproc,
        nodes=asked.nodes,
        address=asked.address,
        cpu=asked.cpu,
        name=asked.name,
        store=asked.store,
        wrap=asked.wrap,
        capture=asked.capture,
        port=asked.port,
        environment=traced_from_the_start(asked.profile, capture=asked.capture),
        recovery=_recovery(asked),
        trackers=words(asked.tracker) if asked.tracker else (),
    )
    if asked.dry_run:
        _show_request(checked, as_json=asked.as_json)
    else:
        _start(checked, wait=asked.wait, as_json=asked.as_json)


def _recovery(asked: Asked) -> Recovery:
    return Recovery(
        restarts=asked.restarts,
        grace_seconds=asked.grace,
        preemption=asked.preemption,
        idle_minutes=asked.idle_minutes,
        on_idle=command_words(asked.on_idle),
        on_end=command_words(asked.on_end),
        hooks_dry_run=asked.hooks_dry_run,
    )


def _options(asked: Asked) -> dict[str, Any]:
    """The strategy's options that were given; those that are lists are split at their commas."""
    given = {name: getattr(asked, name) for name in _NAMED}
    chosen = {name: value for name, value in given.items() if value not in (None, False)}
    for name in _LISTS & set(chosen):
        chosen[name] = words(chosen[name])
    return chosen


def as_options(strategy: Strategy) -> str:
    """What to type for `strategy`: its name, and the options in which it differs from the name's.

    >>> as_options(Strategy.parse("fsdp", 8).with_options(recompute="full", meta_init=True))
    '--strategy fsdp --recompute full --meta-init'
    """
    plain = Strategy.parse(strategy.name, strategy.world_size)
    said = ["--strategy", strategy.name]
    for name in sorted(_NAMED, key=[one.name for one in fields(Asked)].index):
        value = getattr(strategy, name)
        if value != getattr(plain, name):
            said.append(f"--{name.replace('_', '-')}")
            said += [] if value is True else [",".join(value) if name in _LISTS else str(value)]
    return " ".join(said)


def _start(checked: wb.Request, *, wait: bool, as_json: bool) -> None:
    for warning in checked.warnings:
        errors.print(f"warning: {warning}", markup=False, soft_wrap=True)
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
            stay(run, quiet=as_json)
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
                "warnings": list(checked.warnings),
            }
        )
        return
    if checked.predicted is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted).splitlines())
        console.print(f"# memory predicted per rank:\n{table}", markup=False)
    if checked.predicted_time is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted_time).splitlines())
        console.print(
            f"# step time predicted ({checked.predicted_basis}):\n{table}",
            markup=False,
            soft_wrap=True,
        )
    if checked.predicted_usd is not None:
        console.print(f"# cost predicted: {format_usd(checked.predicted_usd)}", markup=False)
    for warning in checked.warnings:
        console.print(f"# warning: {warning}", markup=False, soft_wrap=True)
    console.print(
        "# the exact command; it needs Accelerate alone, not the workbench:", markup=False
    )
    console.print(checked.shell(), markup=False, soft_wrap=True)


def _print_next_steps(run: wb.Run) -> None:
    for node in range(1, int(run.document.get("nodes") or 1)):
        line = node_command(run.directory, node)
        console.print(f"type on machine {node}:  {line}", markup=False, soft_wrap=True)
    for verb in ("attach", "logs", "stop"):
        console.print(f"  workbench {verb} {run.id}", markup=False)
