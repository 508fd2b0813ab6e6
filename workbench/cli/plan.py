"""``workbench plan``: ranked ways to finish a run, with reasons for and against each."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import typer

from workbench.cli.describing import (
    describe,
    with_options,
)
from workbench.cli.memory import plain_console, show
from workbench.cli.plan_values import PlanAnswer, PlanOptions, Question
from workbench.cli.progress import search_progress
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Cluster, Workload, prices
from workbench.describe.detection import detect_host
from workbench.describe.job import Job, default, options
from workbench.describe.option import declared
from workbench.describe.placement import precision_there
from workbench.errors import UsageError
from workbench.estimate.cost.plan import RunPlan, checkpoint_bytes
from workbench.estimate.stack_factor import sentences_of
from workbench.planning import Limits, Plans, Space, plan_on
from workbench.planning import plan as plan_offers
from workbench.planning.market import card_forms
from workbench.planning.offer_search import Progress
from workbench.planning.planner import PLAIN
from workbench.planning.space import ANY_SCRIPT, DATA

_OPTIONS = declared(PlanOptions)


@with_options
def plan(options: PlanOptions) -> None:
    """Rank machines and layouts by dollars and hours to finish a run."""
    from workbench.cli.plan_view import plan_view  # noqa: PLC0415  (loads Rich)

    try:
        report = answer(options)
    except KeyboardInterrupt:
        typer.echo("Stopped before the search finished: no plans.", err=True)
        raise typer.Exit(1) from None
    if options.as_json:
        print_json(document(report))
    else:
        show(plain_console(), plan_view(report))
    if not report.plans.plans:
        raise typer.Exit(1)


def answer(options: PlanOptions) -> PlanAnswer:
    """Read the options, search, measure the search's time.

    Raises:
        UsageError: an impossible value or an unknown name; the message says what is allowed.
    """
    search = question(options)
    began = time.perf_counter()
    with search_progress() as progress:
        plans = find_plans(search, progress)
    return PlanAnswer(
        options=options,
        workload=search.workload,
        run=search.run,
        plans=plans,
        seconds=time.perf_counter() - began,
        notes=(*search.notes, *_calibration_notes(plans)),
        trainer=search.trainer,
    )


def find_plans(search: Question, progress: Progress | None = None) -> Plans:
    """On the machines that the question names, else over every offer.

    Raises:
        UsageError: nothing is known of the machines, or the length of the run is absurd.
    """
    common: dict[str, Any] = {
        "global_batch": search.global_batch,
        "space": search.space,
        "run": search.run,
    }
    subject = search.job or search.workload
    if (cluster := search.cluster) is None:
        return plan_offers(subject, limits=search.limits, progress=progress, **common)
    conditions = measured_conditions(cluster) if search.is_here else None
    return plan_on(cluster, subject, conditions=conditions, **common)


def _calibration_notes(plans: Plans) -> tuple[str, ...]:
    """What measured runs of the stack changed in the plans."""
    pairs = ((plan.step.assumptions, plan.memory.assumptions) for plan in plans.plans)
    return sentences_of(*(assumptions for pair in pairs for assumptions in pair))


def question(options: PlanOptions) -> Question:
    """Read the options.

    Raises:
        UsageError: an impossible value, an unknown name; the message says what is allowed.
    """
    _refuse_decided(options)
    job_options = {
        name: value for name, value in options.job.items() if name not in options.BETWEEN
    }
    cluster = _own_machines(options)
    described = _described(options, job_options, cluster)
    data = Space().data + (DATA[-2:] if options.zero else ())
    space = Space(data=data, offload=not options.no_offload, launchable=not options.all_layouts)
    if options.any_script:
        space = replace(ANY_SCRIPT, launchable=not options.all_layouts)
    return Question(
        workload=described.workload,
        run=_run(options, described.workload),
        global_batch=options.global_batch,
        limits=_limits(options),
        cluster=cluster,
        is_here=options.here,
        space=space,
        notes=described.notes,
        trainer=described.trainer,
        job=described,
        trainer_text=str(described.given.get("trainer") or ""),
    )


def _described(options: PlanOptions, values: dict[str, Any], cluster: Cluster | None) -> Job:
    """What is trained, in a precision that the cards can compute where none was chosen."""
    job = describe(replace(options, job={**values, "cpu": True}), layout_is_open=True)
    if not _is_open(job, "precision"):
        return job
    cards = [cluster] if cluster else [Cluster.rented(name) for name in _cards(options.gpu)]
    converted = [precision_there(card, None, default("precision")) for card in cards]
    if not converted or not all(precision for precision, _ in converted):
        return job  # some card has it: the plan leaves the others out, and says why
    precision, notes = converted[0]
    again = replace(options, job={**values, "cpu": True, **precision})
    return describe(again, layout_is_open=True).with_notes(*notes)


def _is_open(job: Job, name: str) -> bool:
    """Whether neither an option nor the named trainer says it."""
    decided = job.trainer.assumptions if job.trainer else ()
    return job.given.get(name) is None and all(each.field != name for each in decided)


def _cards(names: tuple[str, ...]) -> list[str]:
    """Every card of the named families."""
    return sorted(identifier for name in names for identifier in card_forms(name))


def document(report: PlanAnswer) -> dict[str, Any]:
    """The JSON form; keys are a contract. `launch` is null for a plan that nothing starts here."""
    from workbench.cli.plan_view import launch_line  # noqa: PLC0415  (loads Rich)

    result = report.plans.document(report.options.rejections)
    for entry, plan in zip(result["plans"], report.plans.plans, strict=False):
        entry["launch"] = launch_line(plan)
        entry["trained"] = plan.trained_beside(report.workload)
    return result | {
        "model": report.workload.model.name,
        "workload": asdict(report.workload),
        "run": asdict(report.run),
        "seconds": report.seconds,
        "misses": list(report.plans.misses),
        "notes": list(report.notes),
        "trainer": report.trainer and report.trainer.document(),
    }


def _refuse_decided(query: PlanOptions) -> None:
    for name in query.HIDDEN:
        if query.job.get(name) is not None:
            raise UsageError(
                f"{options()[name].flag} {query.job[name]} is decided by the plan. Remove it, or "
                "use workbench cost for one layout."
            )


def _own_machines(query: PlanOptions) -> Cluster | None:
    """The machines that are described or at hand; None = the plan chooses some to rent."""
    described: dict[str, Any] = {"gpus": query.gpus, "nodes": query.nodes}
    described |= {name: query.job.get(name) for name in query.BETWEEN}
    described = {name: value for name, value in described.items() if value is not None}
    own = [*described, *["usd_per_hour"] * (query.usd_per_hour is not None)]
    if not query.here and not own:
        return None
    flag = _flag("here" if query.here else own[0])
    for name in query.MARKET:
        if getattr(query, name) != _OPTIONS[name].default:
            raise UsageError(
                f"{_flag(name)} chooses among rented machines, and {flag} plans for yours. "
                "Remove one of them."
            )
    if query.here and (described or query.gpu):
        raise UsageError(
            f"--here plans for the GPUs of this host, and {_flag(next(iter(described), 'gpu'))} "
            "describes others. Remove one of them."
        )
    if query.here:
        host = detect_host()
        return (
            host if query.usd_per_hour is None else replace(host, usd_per_hour=query.usd_per_hour)
        )
    if query.gpus is None or len(query.gpu) != 1:
        raise UsageError(
            f"{flag} describes machines that you have. Say which: --gpu h100 --gpus 8 (and "
            "--nodes 2), or remove it to choose among rented ones."
        )
    return Cluster.rented(query.gpu[0], usd_per_hour=query.usd_per_hour, **described)


def _flag(name: str) -> str:
    return (_OPTIONS.get(name) or options()[name]).flag


def _limits(options: PlanOptions) -> Limits:
    all_providers = prices.providers()
    return Limits(
        budget_usd=options.budget_usd,
        deadline_hours=options.deadline_hours,
        providers=tuple(prices.provider_name(name, all_providers) for name in options.providers),
        gpus=options.gpu,
        regions=options.regions,
        max_gpus=options.max_gpus,
        spot=options.spot,
    )


def _run(options: PlanOptions, workload: Workload) -> RunPlan:
    if options.tokens is None and options.epochs is None:
        raise UsageError(
            "A plan needs the run length. Give --tokens 300B, or --epochs with --dataset-tokens."
        )
    sizes = {
        name: None if (text := getattr(options, name)) is None else read_count(text, _flag(name))
        for name in ("tokens", "dataset_tokens")
    }
    return RunPlan(
        tokens=sizes["tokens"],
        epochs=options.epochs,
        dataset_tokens=sizes["dataset_tokens"],
        checkpoint_bytes=checkpoint_bytes(workload, PLAIN),
        interruption_hours=options.interruption_hours,
    )
