"""``workbench cost``: hours and dollars of a finished run, every term with its source and date."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from workbench.cli.cost_offer import named_offer, priced_offer
from workbench.cli.describing import Description, describe, option, with_options
from workbench.cli.memory import accelerator, plain_console, show
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Cluster
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate.cost import RunCost, run_cost
from workbench.estimate.cost_plan import (
    FAILURE_GPU_HOURS,
    NODE_STORAGE_BYTES_PER_SECOND,
    RunPlan,
    checkpoint_bytes,
)
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class CostAsked(Description):
    """The options of ``workbench cost``."""

    tokens: Annotated[str | None, option("Tokens to train on: 300B, 1.5T, 2e9.")] = None
    steps: Annotated[str | None, option("Or optimizer steps.")] = None
    epochs: Annotated[float | None, option("Or passes over --dataset-tokens.")] = None
    dataset_tokens: Annotated[str | None, option("Tokens of one epoch.")] = None
    provider: Annotated[
        str | None, option("Rent here [default: the cheapest offer].", metavar="P")
    ] = None
    offer: Annotated[str | None, option("The provider's name of the machine.", metavar="O")] = None
    usd_per_hour: Annotated[
        str | None, option("Your price of one node: 20, or 18-24.", metavar="X")
    ] = None
    spot_usd_per_hour: Annotated[
        float | None, option("Your price of one interruptible node.", metavar="X")
    ] = None
    spot: Annotated[bool, option("Rent interruptible machines.", "--spot")] = False
    interruption_hours: Annotated[
        float | None,
        option("Spot: mean hours between interruptions of one machine [default: unknown]."),
    ] = None
    failure_gpu_hours: Annotated[
        float, option("GPU-hours between failures that stop the job; 0 = never.")
    ] = round(FAILURE_GPU_HOURS)
    checkpoint_minutes: Annotated[
        float | None, option("Work between two checkpoints [default: Daly's optimum].")
    ] = None
    checkpoint_seconds: Annotated[
        float | None, option("Time of one checkpoint [default: from its size].")
    ] = None
    storage_gb_per_second: Annotated[float, option("Rate at which a node writes checkpoints.")] = (
        NODE_STORAGE_BYTES_PER_SECOND / 1e9
    )
    start_minutes: Annotated[float, option("Paid before the first step.")] = 5.0
    restart_minutes: Annotated[float, option("From an interruption to the next step.")] = 10.0
    evaluation: Annotated[float, option("Evaluation's share on top of training.")] = 0.0
    failed: Annotated[float, option("Share of thrown-away attempts on top.")] = 0.0
    idle_hours: Annotated[float, option("Idle machine hours.")] = 0.0
    storage_gb: Annotated[float, option("Data kept on the provider's disks.")] = 0.0
    keep_checkpoints: Annotated[int, option("Checkpoints kept there too.")] = 0
    stopped_days: Annotated[float, option("Days to keep the disks after the machines.")] = 0.0
    egress_gb: Annotated[float, option("Data downloaded from the provider.")] = 0.0
    hours_per_month: Annotated[int, option("720 (30 days) or 730 (a year / 12).")] = 720
    as_json: Annotated[bool, option("Print one JSON value and nothing else.", "--json")] = False

    @property
    def gpu(self) -> str | None:
        """The card that was named; None = none was."""
        return self.job.get("gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """Everything that one call of the command found out."""

    job: Job
    """What, how and where."""
    cost: RunCost
    """The bill."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    problem: str = ""
    """Why the run cannot be as described; empty = it can."""


@with_options
def cost(asked: CostAsked) -> None:
    """Estimate the cost of a finished run: hours, and dollars per term with source and date."""
    from workbench.cli.cost_view import cost_view  # noqa: PLC0415  (loads Rich)

    found = answer(asked)
    if asked.as_json:
        print_json(document(found))
    else:
        show(plain_console(), cost_view(found))


def answer(asked: CostAsked) -> Costed:
    """Describe, choose an offer, time a step, add up the bill.

    Raises:
        UsageError: an impossible value, no length or no GPU; the message says what is allowed.
    """
    _length(asked)  # refused before anything else is looked up
    if asked.gpu is None and asked.offer is not None:
        named = named_offer(asked)
        asked = replace(asked, job={"gpus": named.gpus, **asked.job, "gpu": named.gpu})
    job = describe(asked)
    cluster = job.cluster
    if not isinstance(cluster, Cluster) or cluster.accelerator is None:
        raise UsageError(
            "Cost estimates need a GPU of the catalog; this host does not have one. Add --gpu G "
            "(workbench gpus lists them) and --gpus N."
        )
    priced = priced_offer(asked, cluster)
    if cluster.nodes > 1 and cluster.network is None:
        cluster = replace(cluster, network=priced.offer.network)
        job = replace(job, cluster=cluster)
    workload, strategy = job.workload, job.strategy
    bill = run_cost(
        step_time(workload, strategy, cluster, measured_conditions(cluster)),
        priced.offer,
        cluster.nodes,
        priced.terms,
        _plan(asked, job),
        price_range=priced.price_range,
    )
    memory = training_memory(workload, strategy, cluster)
    problem = ""
    if memory.fits is False:
        needs, card = format_bytes(memory.on_card_bytes), format_bytes(memory.card_bytes)
        problem = (
            f"This layout does not fit: it needs {needs} of {card}. Costs below assume a card with "
            "enough memory. Run `workbench memory` for layouts that fit."
        )
    notes = (*priced.notes, *job.notes)
    return Costed(job=job, cost=bill, notes=notes, problem=problem)


def document(found: Costed) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    job = found.job
    gpu = accelerator(job.cluster)
    return found.cost.document() | {
        "model": job.workload.model.name,
        "strategy": job.strategy.name,
        "gpu": None if gpu is None else gpu.id,
        "fits": not found.problem,
        "notes": [*([found.problem] if found.problem else []), *found.notes],
    }


def _length(asked: CostAsked) -> dict[str, Any]:
    """Tokens, steps or epochs, exactly one of them."""
    given = [name for name in ("tokens", "steps", "epochs") if getattr(asked, name) is not None]
    if len(given) != 1 or (asked.epochs is None) != (asked.dataset_tokens is None):
        raise UsageError(
            "Give the length of the run exactly once: --tokens T, --steps N, or --epochs E with "
            "--dataset-tokens D."
        )
    counts = ("tokens", "steps", "dataset_tokens")
    texts = {name: getattr(asked, name) for name in counts}
    read = {
        name: read_count(text, "--" + name.replace("_", "-"))
        for name, text in texts.items()
        if text is not None
    }
    return {**read, "epochs": asked.epochs}


def _plan(asked: CostAsked, job: Job) -> RunPlan:
    size = checkpoint_bytes(job.workload, job.strategy)
    if asked.keep_checkpoints < 0:
        raise UsageError(f"--keep-checkpoints must be 0 or above, not {asked.keep_checkpoints}.")
    same = {field.name for field in fields(RunPlan)} & {
        *("spot", "interruption_hours", "checkpoint_seconds", "idle_hours", "stopped_days"),
        *("egress_gb", "hours_per_month"),
    }
    minutes = asked.checkpoint_minutes
    return RunPlan(
        **_length(asked),
        **{name: getattr(asked, name) for name in same},
        checkpoint_bytes=size,
        storage_bytes_per_second=asked.storage_gb_per_second * 1e9,
        checkpoint_interval_seconds=None if minutes is None else minutes * 60,
        failure_gpu_hours=asked.failure_gpu_hours or None,
        start_seconds=asked.start_minutes * 60,
        restart_seconds=asked.restart_minutes * 60,
        evaluation_share=asked.evaluation,
        failed_share=asked.failed,
        storage_gb=asked.storage_gb + asked.keep_checkpoints * size / 1e9,
    )
