"""The options of ``workbench rehearse``, and the plan that it plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.cost import answer
from workbench.cli.cost_values import CostAnswer, CostOptions
from workbench.cli.describing import option
from workbench.cli.terminal import StoreOption
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Cluster, prices
from workbench.describe.option import Option, declared
from workbench.describe.price import Offer, Terms
from workbench.describe.recorded import from_document
from workbench.engines.export_request import plan_entry
from workbench.engines.planned import machines, planned_job
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.cost import RunPlan, checkpoint_bytes, run_cost
from workbench.estimate.step_time import step_time
from workbench.rehearsing.rehearse import Rehearsal

_DIFFERS = 0.01
_BESIDE_A_PLAN = {"interruption_hours", "checkpoint_minutes", "checkpoint_seconds", "as_json"}
"""Options of a job's cost that count beside a plan; all others it has itself."""
_PLAN_HELP = "plans.json, as workbench plan --json writes it; without it the job of the options."

_PLAYED = declared(Rehearsal)


@dataclass(frozen=True, kw_only=True)
class RehearseOptions(CostOptions):
    """The options of ``workbench rehearse``: those of ``workbench cost``, and how it is played."""

    plan_file: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help=_PLAN_HELP)] = None
    rank: Annotated[int, Option(help="Number of the plan in PLAN, from 1.", least=1)] = 1
    speed: Annotated[float | None, _PLAYED["speed"].option] = None
    seed: Annotated[int, Option(help="Seed of all that is drawn by chance.")] = 0
    trace: Annotated[
        Path | None,
        option("Interruptions from a file: seconds of uptime, one a line.", metavar="FILE"),
    ] = None
    fault: Annotated[
        list[str] | None,
        option(
            "KIND@TIME[:[NODE:]GPU], such as gpu-lost@2h:1:3; kinds: throttle, ecc, gpu-lost, "
            "spot. May be repeated.",
            metavar="FAULT",
        ),
    ] = None
    name: Annotated[str, Option(help="Name of the run.")] = "rehearsal"
    background: Annotated[
        bool, option("Return at once; watch it with workbench attach or the dashboard.")
    ] = False
    store: StoreOption = None


def rehearsed(options: RehearseOptions) -> CostAnswer:
    """The job and bill of number `rank` in PLAN, or of the options.

    Raises:
        UsageError: no such plan, options beside it that it has itself, or no job.
    """
    if options.plan_file is None:
        return answer(options)
    option_names = [name for name in options.job if options.job[name] is not None]
    option_names += [
        field.name
        for field in fields(CostOptions)
        if field.name not in _BESIDE_A_PLAN
        and field.default is not MISSING
        and getattr(options, field.name) != field.default
    ]
    if option_names:
        raise UsageError(
            f"{options.plan_file} says {', '.join(option_names)} itself. Leave the options out, or "
            "the file."
        )
    return _planned(options.plan_file, options)


def _planned(path: Path, options: RehearseOptions) -> CostAnswer:
    entry = plan_entry(path, options.rank)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        job, offer = planned_job(entry, document), _offer(entry)
        plan = from_document(RunPlan, document["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not output of this version's workbench plan --json ({error}). Write it "
            "again: workbench plan … --json > plans.json"
        ) from error
    assert isinstance(job.cluster, Cluster)
    changes: dict[str, Any] = {"checkpoint_bytes": checkpoint_bytes(job.workload, job.strategy)}
    if options.interruption_hours is not None:
        changes["interruption_hours"] = options.interruption_hours
    if options.checkpoint_minutes is not None:
        changes["checkpoint_interval_seconds"] = options.checkpoint_minutes * 60
    if options.checkpoint_seconds is not None:
        changes["checkpoint_seconds"] = options.checkpoint_seconds
    plan = replace(plan, spot=bool(entry["spot"]), **changes)
    step = step_time(job.workload, job.strategy, job.cluster, measured_conditions(job.cluster))
    cost = run_cost(step, offer, job.cluster.nodes, _terms(offer.provider), plan)
    notes: list[str] = []
    planned = entry.get("step_seconds")
    if planned and abs(step.step_seconds / planned - 1) > _DIFFERS:
        notes.append(
            f"This machine estimates {step.step_seconds:.4g} s a step; the plan said {planned:.4g}."
        )
    return CostAnswer(job=job, cost=cost, notes=tuple(notes))


def _offer(entry: Mapping[str, Any]) -> Offer:
    """The machines at the price that the plan was made with."""
    hourly, (nodes, gpus) = entry["usd_per_hour"], machines(entry)
    price = None if hourly is None else hourly / nodes
    return Offer(
        provider=entry["provider"],
        name=entry["offer"],
        gpu=entry["gpu"],
        gpus=gpus,
        usd_per_hour=None if entry["spot"] else price,
        spot_usd_per_hour=price if entry["spot"] else None,
        source=entry["price_source"],
        date=entry["price_date"],
    )


def _terms(provider: str) -> Terms:
    try:
        return prices.terms(provider)
    except UnknownNameError:
        return Terms(provider=provider)
