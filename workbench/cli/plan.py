"""``workbench plan``: ranked ways to finish a run, with reasons for and against each."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from workbench.cli.describing import (
    Description,
    describe,
    option,
    with_options,
)
from workbench.cli.memory import plain_console, show
from workbench.cli.progress import search_progress
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Strategy, Workload, prices
from workbench.describe.checks import require_at_least
from workbench.describe.detection import detect_host
from workbench.describe.job import options
from workbench.describe.option import declared, words
from workbench.errors import UsageError
from workbench.estimate.cost_plan import RunPlan, checkpoint_bytes
from workbench.planning import Limits, Plans, Space, plan_on
from workbench.planning import plan as find_plans
from workbench.planning.planner import PLAIN
from workbench.planning.rejected import LISTED
from workbench.planning.space import ANY_SCRIPT, DATA


@dataclass(frozen=True, kw_only=True)
class PlanAsked(Description):
    """The options of ``workbench plan``."""

    HIDDEN = (
        *("gpus", "nodes", "cpu", "strategy", "micro_batch", "accumulate", "network", "link"),
        *declared(Strategy),
    )
    """What a plan answers instead of asking."""
    gpu: Annotated[
        str | None, option("Only these GPUs: h100,a100 [default: all].", metavar="G,G")
    ] = None
    tokens: Annotated[str | None, option("Tokens to train on: 300B, 1.5T, 2e9.")] = None
    epochs: Annotated[float | None, option("Or passes over --dataset-tokens.")] = None
    dataset_tokens: Annotated[str | None, option("Tokens of one epoch.")] = None
    global_batch: Annotated[
        int | None, option("Sequences per optimizer step, all GPUs [default: ~0.5 M tokens].")
    ] = None
    budget_usd: Annotated[float | None, option("Maximum cost of the run, in USD.")] = None
    deadline_hours: Annotated[float | None, option("Maximum hours, including start-up.")] = None
    providers: Annotated[str, option("Only these: runpod,lambda.", metavar="P,P")] = ""
    regions: Annotated[str, option("Only regions with one of these words.", metavar="R,R")] = ""
    max_gpus: Annotated[int | None, option("Maximum number of GPUs [default: 128].")] = None
    spot: Annotated[bool, option("Include interruptible machines.", "--spot")] = False
    interruption_hours: Annotated[
        float | None,
        option("Spot: mean hours between interruptions of one machine [default: unknown]."),
    ] = None
    here: Annotated[bool, option("Plan for this host's GPUs instead of rented ones.", "--here")] = (
        False
    )
    no_offload: Annotated[bool, option("Exclude offloading to host memory.", "--no-offload")] = (
        False
    )
    any_script: Annotated[
        bool, option("Only layouts that work with any script: DDP, FSDP, hybrid.", "--any-script")
    ] = False
    all_layouts: Annotated[
        bool,
        option("Include layouts that the launcher cannot start.", "--all-layouts"),
    ] = False
    zero: Annotated[bool, option("Include DeepSpeed's ZeRO-2 and ZeRO-3.", "--zero")] = False
    rejections: Annotated[int, option("Number of rejected layouts to list.")] = LISTED
    as_json: Annotated[bool, option("Print one JSON value and nothing else.", "--json")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Everything that one call of the command found out."""

    asked: PlanAsked
    """The options."""
    workload: Workload
    """What is trained."""
    plans: Plans
    """The answer."""
    seconds: float
    """Time of the search."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""


@with_options
def plan(asked: PlanAsked) -> None:
    """Rank machines and layouts by dollars and hours to finish a run."""
    from workbench.cli.plan_view import plan_view  # noqa: PLC0415  (loads Rich)

    try:
        found = answer(asked)
    except KeyboardInterrupt:
        typer.echo("Stopped before the search finished: no plans.", err=True)
        raise typer.Exit(1) from None
    if asked.as_json:
        print_json(document(found))
    else:
        show(plain_console(), plan_view(found))
    if not found.plans.plans:
        raise typer.Exit(1)


def answer(asked: PlanAsked) -> Planned:
    """Read the options, search, measure the search's time.

    Raises:
        UsageError: an impossible value, a name nobody knows; the message says what is allowed.
    """
    _refuse_decided(asked)
    require_at_least("rejections", asked.rejections, 0)
    described = describe(replace(asked, job={**asked.job, "cpu": True}))
    run = _run(asked, described.workload)
    data = Space().data + (DATA[-2:] if asked.zero else ())
    space = Space(data=data, offload=not asked.no_offload, launchable=not asked.all_layouts)
    if asked.any_script:
        space = replace(ANY_SCRIPT, launchable=not asked.all_layouts)
    began = time.perf_counter()
    if asked.here:
        host = detect_host()
        plans = plan_on(
            host,
            described.workload,
            global_batch=asked.global_batch,
            space=space,
            conditions=measured_conditions(host),
            run=run,
        )
    else:
        with search_progress() as progress:
            plans = find_plans(
                described.workload,
                limits=_limits(asked),
                global_batch=asked.global_batch,
                space=space,
                run=run,
                progress=progress,
            )
    return Planned(
        asked=asked,
        workload=described.workload,
        plans=plans,
        seconds=time.perf_counter() - began,
        notes=described.notes,
    )


def document(found: Planned) -> dict[str, Any]:
    """The JSON form; keys are a contract. `launch` is null for a plan that nothing starts here."""
    from workbench.cli.plan_view import launch_line  # noqa: PLC0415  (loads Rich)

    whole = found.plans.document(found.asked.rejections)
    for entry, plan in zip(whole["plans"], found.plans.plans, strict=False):
        entry["launch"] = launch_line(plan)
    return whole | {
        "model": found.workload.model.name,
        "seconds": found.seconds,
        "misses": list(found.plans.misses),
        "notes": list(found.notes),
    }


def _refuse_decided(asked: PlanAsked) -> None:
    for name in asked.HIDDEN:
        if asked.job.get(name) is not None:
            raise UsageError(
                f"{options()[name].flag} {asked.job[name]} is decided by the plan. Remove it, or "
                "use workbench cost for one layout."
            )


def _limits(asked: PlanAsked) -> Limits:
    known = prices.providers()
    return Limits(
        budget_usd=asked.budget_usd,
        deadline_hours=asked.deadline_hours,
        providers=tuple(prices.provider_name(name, known) for name in words(asked.providers)),
        gpus=words(asked.gpu or ""),
        regions=words(asked.regions),
        max_gpus=asked.max_gpus,
        spot=asked.spot,
    )


def _run(asked: PlanAsked, workload: Workload) -> RunPlan:
    if asked.tokens is None and asked.epochs is None:
        raise UsageError(
            "A plan needs the run length. Give --tokens 300B, or --epochs with --dataset-tokens."
        )
    sizes = {
        name: None if (text := getattr(asked, name)) is None else read_count(text, name)
        for name in ("tokens", "dataset_tokens")
    }
    return RunPlan(
        tokens=sizes["tokens"],
        epochs=asked.epochs,
        dataset_tokens=sizes["dataset_tokens"],
        checkpoint_bytes=checkpoint_bytes(workload, PLAIN),
        interruption_hours=asked.interruption_hours,
    )
