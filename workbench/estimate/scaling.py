"""The scaling curve: what each GPU still does as their number grows, and what takes the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import StepTime

MODES = ("weak", "strong")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One number of GPUs on the curve."""

    gpus: int
    """Ranks."""
    step: StepTime
    """The estimate at that size."""
    efficiency: float
    """Tokens per second and GPU over those of the curve's first point."""
    lost: Mapping[str, float]
    """Cause -> share of the time that it takes beyond the first point; they sum to 1 - efficiency.
    Negative where a part shrinks (weights and states are spread over more ranks)."""


def scaling(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    *,
    gpus: Sequence[int],
    mode: str = "weak",
    conditions: Conditions | None = None,
) -> tuple[ScalingPoint, ...]:
    """Efficiency at several sizes; data-parallel ranks grow, all other degrees stay.

    Args:
        workload: What is trained, as on the first size.
        strategy: How it is spread on the first size.
        cluster: GPU, GPUs per node, fabric; its number of nodes is replaced.
        gpus: Sizes, rising; each a multiple of the ranks of one replica.
        mode: weak = the same work per GPU, the global batch grows; strong = the same global batch,
            fewer micro-batches per step (then smaller ones) on more GPUs.
        conditions: As for `step_time`.

    Raises:
        UsageError: a size that the layout or the batch cannot have.
    """
    if mode not in MODES:
        raise UsageError(f"mode must be weak or strong, not {mode!r}.")
    if not gpus or list(gpus) != sorted(set(gpus)):
        raise UsageError("gpus must be rising numbers, such as 8, 16, 32.")
    steps = [
        _at(workload, strategy, cluster, size, mode, first=gpus[0], conditions=conditions)
        for size in gpus
    ]
    return tuple(_point(step, steps[0]) for step in steps)


def _at(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    size: int,
    mode: str,
    *,
    first: int,
    conditions: Conditions | None,
) -> StepTime:
    inner = strategy.tp * strategy.cp * strategy.pp
    per_node = max(1, len(cluster.gpus))
    if size % inner or (size > per_node and size % per_node):
        raise UsageError(
            f"{size} GPUs are not a whole number of replicas of {inner} on nodes of {per_node}. "
            f"Use a multiple of {max(inner, per_node)}."
        )
    ranks = size // inner
    grown = (
        replace(strategy, dp_replicate=ranks)
        if strategy.dp_shard == 1
        else replace(strategy, dp_shard=max(1, ranks // strategy.dp_replicate))
    )
    if mode == "strong":
        before = first // inner
        total = workload.micro_batch * workload.accumulate * before
        micro, accumulate = spread(total, ranks, workload.micro_batch)
        workload = replace(workload, micro_batch=micro, accumulate=accumulate)
    node_group = replace(
        cluster, nodes=max(1, size // per_node), gpus=cluster.gpus[: min(per_node, size)]
    )
    return step_time(workload, grown, node_group, conditions)


def spread(sequences: int, ranks: int, micro_batch: int) -> tuple[int, int]:
    """Micro-batch and accumulation of the same global batch on `ranks` data ranks.

    First fewer micro-batches, then smaller ones than `micro_batch`.

    Raises:
        UsageError: it cannot be divided.

    >>> spread(32, 2, 8), spread(32, 8, 8)
    ((8, 2), (4, 1))
    """
    if sequences % ranks:
        raise UsageError(
            f"A global batch of {sequences} sequences cannot be spread over {ranks} data ranks. "
            "Use a divisor, or mode='weak'."
        )
    share = sequences // ranks
    micro = min(micro_batch, share)
    while share % micro:
        micro -= 1
    return micro, share // micro


def _point(step: StepTime, base: StepTime) -> ScalingPoint:
    """Time per token and GPU, part by part, against the first point's."""
    now, before = step.tokens / step.gpus, base.tokens / base.gpus
    seconds = step.step_seconds / now
    names = {**step.parts, **base.parts}
    lost = {
        name: (step.parts.get(name, 0.0) / now - base.parts.get(name, 0.0) / before) / seconds
        for name in names
    }
    return ScalingPoint(
        gpus=step.gpus,
        step=step,
        efficiency=(base.step_seconds / before) / seconds,
        lost={name: share for name, share in lost.items() if abs(share) > 1e-9},
    )
