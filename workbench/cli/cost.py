"""``workbench cost``: hours and dollars of a finished run, every term with its source and date."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from workbench.cli.cost_offer import named_offer, priced_offer
from workbench.cli.cost_values import CostAnswer, CostOptions
from workbench.cli.describing import as_options, describe, with_options
from workbench.cli.memory import plain_console, show
from workbench.cli.memory_values import accelerator
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Cluster
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate import sizing
from workbench.estimate.cost import run_cost
from workbench.estimate.cost.plan import FAILURE_GPU_HOURS, RunPlan, checkpoint_bytes
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.units import format_bytes


@with_options
def cost(options: CostOptions) -> None:
    """Estimate what finishing a run costs: hours, and dollars per term with source and date."""
    from workbench.cli.cost_view import cost_view  # noqa: PLC0415  (loads Rich)

    report = answer(options)
    if options.as_json:
        print_json(document(report))
    else:
        show(plain_console(), cost_view(report))


def answer(options: CostOptions) -> CostAnswer:
    """Describe, choose an offer, time a step, add up the bill.

    Raises:
        UsageError: an impossible value, no length or no GPU; the message says what is allowed.
    """
    _length(options)
    if options.gpu is None and options.offer is not None:
        offer = named_offer(options)
        options = replace(options, job={"gpus": offer.gpus, **options.job, "gpu": offer.gpu})
    job = describe(options)
    cluster = job.cluster
    if not isinstance(cluster, Cluster) or cluster.accelerator is None:
        raise UsageError(
            "Cost estimates need a GPU of the catalog; this host does not have one. Add --gpu G "
            "(workbench gpus lists them) and --gpus N."
        )
    memory = training_memory(job)
    priced = priced_offer(options, cluster, memory.host_bytes or 0)
    if cluster.nodes > 1 and cluster.network is None:
        cluster = replace(cluster, network=priced.offer.network)
        job = replace(job, cluster=cluster)
    workload, strategy = job.workload, job.strategy
    bill = run_cost(
        step_time(workload, strategy, cluster, measured_conditions(cluster)),
        priced.offer,
        cluster.nodes,
        priced.terms,
        _plan(options, job),
        price_range=priced.price_range,
    )
    problem = priced.problem
    if memory.fits is False:
        needs, card = format_bytes(memory.on_card_bytes), format_bytes(memory.card_bytes)
        problem = (
            f"This layout does not fit: it needs {needs}, the card has {card}. Costs below assume "
            f"a card with enough memory. {_what_fits(job)}"
        )
    notes = (*priced.notes, *job.notes)
    return CostAnswer(job=job, cost=bill, notes=notes, why=" ".join(priced.notes), problem=problem)


def document(report: CostAnswer) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    job = report.job
    gpu = accelerator(job.cluster)
    return report.cost.document() | {
        "model": job.workload.model.name,
        "strategy": job.strategy.name,
        "gpu": None if gpu is None else gpu.id,
        "fits": not report.problem,
        "notes": [*([report.problem] if report.problem else []), *report.notes],
        "trainer": job.trainer and job.trainer.document(),
    }


def _what_fits(job: Job) -> str:
    """The next move: layouts for these GPUs, switches, or how many more GPUs there must be."""
    world = job.strategy.world_size
    options = [option for option in sizing.fewest_gpus(job) if not option.switches]
    names = [
        option.strategy.name
        for option in options
        if option.gpus <= world and option.strategy.tp * option.strategy.pp == 1
    ]
    if names:
        return f"These do: {', '.join(names)}. Name one with --strategy."
    if chain := sizing.switches_that_fit(job):
        typed = " ".join(switch.option for switch in chain)
        return f"It fits with {' + '.join(switch.name for switch in chain)}: {typed}."
    more = next((option for option in options if option.gpus > world), None)
    if more is None:
        return "`workbench memory` shows what would help."
    return f"{more.gpus} such GPUs hold it: {as_options(more.strategy)}."


def _length(options: CostOptions) -> dict[str, Any]:
    """Tokens, steps or epochs, exactly one of them."""
    lengths = [name for name in ("tokens", "steps", "epochs") if getattr(options, name) is not None]
    if len(lengths) != 1 or (options.epochs is None) != (options.dataset_tokens is None):
        raise UsageError(
            "Give the length of the run exactly once: --tokens T (as 300B), --steps N, or "
            "--epochs E with --dataset-tokens D."
        )
    counts = ("tokens", "steps", "dataset_tokens")
    texts = {name: getattr(options, name) for name in counts}
    read = {
        name: read_count(text, "--" + name.replace("_", "-"))
        for name, text in texts.items()
        if text is not None
    }
    return {**read, "epochs": options.epochs}


def _plan(options: CostOptions, job: Job) -> RunPlan:
    size = checkpoint_bytes(job.workload, job.strategy)
    same = {field.name for field in fields(RunPlan)} & {
        *("spot", "interruption_hours", "checkpoint_seconds", "idle_hours", "stopped_days"),
        *("egress_gb", "hours_per_month"),
    }
    minutes = options.checkpoint_minutes
    return RunPlan(
        **_length(options),
        **{name: getattr(options, name) for name in same},
        checkpoint_bytes=size,
        storage_bytes_per_second=options.storage_gb_per_second * 1e9,
        checkpoint_interval_seconds=None if minutes is None else minutes * 60,
        failure_gpu_hours=FAILURE_GPU_HOURS
        if options.failure_gpu_hours is None
        else options.failure_gpu_hours or None,
        start_seconds=options.start_minutes * 60,
        restart_seconds=options.restart_minutes * 60,
        evaluation_share=options.evaluation,
        failed_share=options.failed,
        storage_gb=options.storage_gb + options.keep_checkpoints * size / 1e9,
    )
