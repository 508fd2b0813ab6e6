"""``workbench plan``: ranked ways to finish a run, with reasons for and against each."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import typer

from workbench.cli.describing import (
    describe,
    with_options,
)
from workbench.cli.memory import plain_console, show
from workbench.cli.plan_values import PlanAsked, Planned, Question
from workbench.cli.progress import search_progress
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Workload, prices
from workbench.describe.checks import require_at_least
from workbench.describe.detection import detect_host
from workbench.describe.job import options
from workbench.errors import UsageError
from workbench.estimate.cost.plan import RunPlan, checkpoint_bytes
from workbench.planning import Limits, Space, plan_on
from workbench.planning import plan as find_plans
from workbench.planning.planner import PLAIN
from workbench.planning.space import ANY_SCRIPT, DATA


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
    require_at_least("rejections", asked.rejections, 0)
    search = question(asked)
    given: dict[str, Any] = {
        "global_batch": search.global_batch,
        "space": search.space,
        "run": search.run,
    }
    began = time.perf_counter()
    if asked.here:
        host = detect_host()
        plans = plan_on(host, search.workload, conditions=measured_conditions(host), **given)
    else:
        with search_progress() as progress:
            plans = find_plans(search.workload, limits=search.limits, progress=progress, **given)
    return Planned(
        asked=asked,
        workload=search.workload,
        plans=plans,
        seconds=time.perf_counter() - began,
        notes=search.notes,
        trainer=search.trainer,
    )


def question(asked: PlanAsked) -> Question:
    """Read the options.

    Raises:
        UsageError: an impossible value, an unknown name; the message says what is allowed.
    """
    _refuse_decided(asked)
    described = describe(replace(asked, job={**asked.job, "cpu": True}))
    data = Space().data + (DATA[-2:] if asked.zero else ())
    space = Space(data=data, offload=not asked.no_offload, launchable=not asked.all_layouts)
    if asked.any_script:
        space = replace(ANY_SCRIPT, launchable=not asked.all_layouts)
    return Question(
        workload=described.workload,
        run=_run(asked, described.workload),
        global_batch=asked.global_batch,
        limits=_limits(asked),
        space=space,
        notes=described.notes,
        trainer=described.trainer,
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
        "trainer": found.trainer and found.trainer.document(),
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
        providers=tuple(prices.provider_name(name, known) for name in asked.providers),
        gpus=asked.gpu,
        regions=asked.regions,
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
