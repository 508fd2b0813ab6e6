"""Rules of thumb as functions: each states its condition, its evidence and the numbers it used.

The rules come from the articles this project started from, corrected where they are wrong. All are
pure; `advise` asks those that the given facts can answer. What it costs and whether spot machines
pay is the bill's affair (`workbench cost`), which machines to take the planner's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.describe import Conditions, Offer, Strategy
from workbench.describe.job import Job
from workbench.describe.job_function import takes_whole_job
from workbench.describe.option import Option, declared
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.estimate.exchange import gradient_bytes
from workbench.estimate.rank import ranks_of
from workbench.planning.advice.gpus import memory_rubric, need_more_gpus, state_bytes
from workbench.planning.advice.learning_rate import (
    Rate,
    batch_limits,
    critical_batch_tokens,
    learning_rate_advice,
    scaled_rate,
)
from workbench.planning.advice.links import all_reduce_time, nvlink_or_pcie
from workbench.planning.advice.machine import checkpoint_advice, instance_sanity, known_offer
from workbench.planning.advice.strategy import ddp_or_fsdp, recompute_cost, zero_savings
from workbench.planning.advice.value import Advice
from workbench.planning.market import Limits

__all__ = [
    "Advice",
    "Rate",
    "RunFacts",
    "advise",
    "all_reduce_time",
    "batch_limits",
    "checkpoint_advice",
    "critical_batch_tokens",
    "ddp_or_fsdp",
    "instance_sanity",
    "known_offer",
    "learning_rate_advice",
    "memory_rubric",
    "need_more_gpus",
    "nvlink_or_pcie",
    "recompute_cost",
    "scaled_rate",
    "state_bytes",
    "zero_savings",
]

_LIMITS = declared(Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run beside its job; each makes one more rule answer."""

    tokens: Annotated[float | None, Option(help="Tokens of the whole run.", above=0)] = None
    """Tokens of the whole run."""
    deadline_hours: Annotated[float | None, _LIMITS["deadline_hours"].option] = None
    """When it has to end."""
    loss: Annotated[
        float | None,
        Option(help="Training loss in nats per token, for the batch [default: 3.0].", above=0),
    ] = None
    """Training loss in nats per token; None = 3.0."""
    rate: Annotated[float | None, Option(help="A learning rate that works.", above=0)] = None
    """A learning rate that works with a global batch of `rate_batch_tokens`."""
    rate_batch_tokens: Annotated[
        float | None, Option(help="Global batch in tokens that the rate is for.", above=0)
    ] = None
    """See `rate`; None = the job's own."""
    offer: Offer | None = None
    """The machine that the GPUs are in."""
    checkpoint_seconds: Annotated[
        float | None, Option(help="Seconds that one checkpoint holds the training up.", above=0)
    ] = None
    """What one checkpoint holds the training up; with `interruption_hours`."""
    interruption_hours: Annotated[
        float | None,
        Option(help="Mean hours between interruptions, for --checkpoint-seconds.", above=0),
    ] = None
    """Mean hours between interruptions of the whole job."""
    conditions: Conditions | None = None
    """What was measured there."""

    def __post_init__(self) -> None:
        check_declared(self)


@takes_whole_job
def advise(job: Job, facts: RunFacts | None = None) -> tuple[Advice, ...]:
    """Every rule that the job and what else is known can answer, the first questions first.

    Args:
        job: what is trained, how it is spread and where; its accelerator must be in the catalog.
        facts: what else is known of the run.

    Raises:
        UsageError: an impossible layout, or an accelerator that is not in the catalog.
    """
    workload, strategy, cluster = job.workload, job.strategy, job.cluster
    if isinstance(cluster, str) or cluster.accelerator is None:
        raise UsageError("The cluster's accelerator is not in the catalog: name a GPU.")
    gpu, count, run_facts = cluster.accelerator, cluster.world_size, facts or RunFacts()
    conditions = run_facts.conditions
    answers = [
        need_more_gpus(job, gpu, run_facts.tokens, run_facts.deadline_hours, conditions),
        memory_rubric(workload, gpu, count),
        batch_limits(workload, strategy, cluster, run_facts.loss),
        recompute_cost(workload, strategy, cluster, conditions),
    ]
    if count > 1:
        answers += [
            ddp_or_fsdp(workload, cluster, conditions, strategy),
            nvlink_or_pcie(workload, strategy, cluster, conditions),
        ]
        if size := gradient_bytes(ranks_of(workload, Strategy.parse("ddp", count))[0]):
            answers.append(all_reduce_time(size, cluster, conditions))
        if not workload.lora_rank:
            answers.append(zero_savings(workload, count))
    if run_facts.rate is not None:
        batch = workload.tokens_per_step(strategy.data_ranks)
        before = batch if run_facts.rate_batch_tokens is None else run_facts.rate_batch_tokens
        answers.append(
            learning_rate_advice(scaled_rate(run_facts.rate, before, batch, workload.optimizer))
        )
    if run_facts.offer is not None:
        answers.append(
            instance_sanity(workload, strategy, run_facts.offer, cluster.nodes, conditions)
        )
    if run_facts.checkpoint_seconds is not None and run_facts.interruption_hours is not None:
        answers.append(
            checkpoint_advice(run_facts.checkpoint_seconds, run_facts.interruption_hours)
        )
    return tuple(answers)
