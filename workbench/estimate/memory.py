"""Memory of one training process in closed form: competing peaks, the fullest rank wins.

Pure arithmetic on `Workload`, `Strategy` and the device: microseconds, no torch. What is alive when
stands in peaks.py; how large each part is in stages, states, activations, loss and communication.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.job import takes_job
from workbench.errors import UsageError
from workbench.estimate.card import card_parts, slack_bytes
from workbench.estimate.communication import buffers
from workbench.estimate.host_memory import cautions, host_bytes
from workbench.estimate.parts import Estimate, Peak, StageMemory
from workbench.estimate.peaks import peaks
from workbench.estimate.rank import Rank, moved, rank_of
from workbench.estimate.stages import Stage, rank_elements, stages
from workbench.estimate.states import states, widths

SOURCES = (
    "states: arXiv 1910.02054; activations: arXiv 2205.05198 and saved tensors under fake tensors",
    "pipeline schedules: arXiv 2104.04473, 2401.10241; peaks: exact simulation (tests/estimate)",
)

_ROUNDING = 16
"""Bytes that a moment's parts may lose when each of them is rounded."""


@takes_job
def training_memory(
    workload: Workload, strategy: Strategy, where: Cluster | str = "cuda"
) -> Estimate:
    """Peak memory of the fullest rank, in named parts.

    Args:
        workload: What is trained.
        strategy: How it is spread.
        where: A cluster (its card decides whether it fits), or just "cuda" or "cpu".

    Raises:
        UsageError: the layout is impossible (heads not divisible by tp, more stages than blocks).
    """
    check_layout(workload, strategy)
    found = tuple(_stage_memory(workload, strategy, rank) for rank in _ranks(workload, strategy))
    fullest = max(found, key=lambda stage: stage.peak.total_bytes)
    peak = fullest.peak
    reserved = max(stage.peak.total_bytes + stage.slack_bytes for stage in found)
    parts = {name: size for name, size in peak.parts.items() if size}
    extra = card_parts(strategy, where, reserved - peak.total_bytes)
    on_host = host_bytes(workload, strategy, where)
    return Estimate(
        parts={**parts, **extra.parts},
        assumptions=(
            *cautions(workload, where, on_host),
            *assumptions(workload, strategy),
            *extra.assumptions,
        ),
        host_bytes=on_host,
        peak=peak.name,
        peaks={one.name: one.total_bytes for one in fullest.peaks},
        stages=found,
        card_bytes=extra.card_bytes,
        sources=SOURCES,
    )


def needed_bytes(workload: Workload, strategy: Strategy) -> int:
    """`training_memory(workload, strategy, "cuda").on_card_bytes`, and nothing else: for searches.

    Of stages that hold the same, the one with the most micro-batches in flight needs most.

    Raises:
        UsageError: as `training_memory`.
    """
    check_layout(workload, strategy)
    fullest: dict[object, Stage] = {}
    for stage in stages(workload.model, strategy, workload.accumulate):
        known = fullest.get(stage.content)
        if known is None or stage.in_flight > known.in_flight:
            fullest[stage.content] = stage
    reserved = 0
    for stage in fullest.values():
        rank = rank_of(workload, strategy, stage)
        reserved = max(reserved, *_reserved(workload, strategy, rank))
    return sum(card_parts(strategy, "cuda", reserved).parts.values())


def least_bytes(workload: Workload, strategy: Strategy) -> int:
    """No more than `needed_bytes` with any micro-batch and recompute: states and buffers alone."""
    width = widths(workload, strategy)
    stay = strategy.offload or workload.kernels.optimizer_in_backward
    found = {one.content: one for one in stages(workload.model, strategy, workload.accumulate)}
    reserved = 0
    for stage in found.values():
        elements = rank_elements(workload, strategy, stage)
        held = states(workload, strategy, elements)
        talk = buffers(workload, strategy, stage, elements, width)
        step = talk.step + held.step + (0 if stay else held.gradients)
        most = max(step, talk.forward, talk.first_backward, talk.backward)
        reserved = max(reserved, held.weights + held.master + held.optimizer + most)
    whole_bytes = reserved - _ROUNDING
    return sum(card_parts(strategy, "cuda", whole_bytes).parts.values())


def check_layout(workload: Workload, strategy: Strategy) -> None:
    """Refuse layouts that no library can run.

    Raises:
        UsageError: with what is allowed.
    """
    model = workload.model
    if strategy.tp > 1 and model.kind != "module":
        if model.heads % strategy.tp:
            good = [str(tp) for tp in range(2, model.heads + 1) if model.heads % tp == 0][:8]
            raise UsageError(
                f"{model.heads} attention heads cannot be split over tp = {strategy.tp}. "
                f"Use one of {', '.join(good)}."
            )
        inner = model.mlp_hidden or model.expert_hidden
        if inner % strategy.tp:
            raise UsageError(f"The MLP's width {inner} cannot be split over tp = {strategy.tp}.")
    if strategy.cp > 1 and workload.sequence % strategy.cp:
        raise UsageError(
            f"A sequence of {workload.sequence} tokens cannot be split over cp = {strategy.cp}."
        )
    if strategy.ep > 1 and (not model.experts or model.experts % strategy.ep):
        raise UsageError(
            f"{model.name} has {model.experts} experts: ep = {strategy.ep} does not divide them."
        )
    chunked = strategy.pipeline.schedule == "interleaved" or strategy.pipeline.virtual_stages > 1
    if strategy.pp > 1 and chunked and workload.accumulate % strategy.pp:
        raise UsageError(
            f"The interleaved schedule needs a multiple of {strategy.pp} micro-batches, "
            f"not {workload.accumulate}."
        )


def _ranks(workload: Workload, strategy: Strategy) -> Iterator[Rank]:
    """One rank of each stage; stages of equal content are worked out once."""
    made: dict[object, Rank] = {}
    for stage in stages(workload.model, strategy, workload.accumulate):
        known = made.get(stage.content)
        if known is None:
            made[stage.content] = known = rank_of(workload, strategy, stage)
        yield known if known.stage == stage else moved(known, workload, strategy, stage)


def _stage_memory(workload: Workload, strategy: Strategy, rank: Rank) -> StageMemory:
    stage = rank.stage
    moments = peaks(workload, strategy, rank)
    return StageMemory(
        stage=stage.index,
        layers=stage.layers,
        in_flight=stage.in_flight,
        peaks=moments,
        slack_bytes=_slack(workload, strategy, rank, moments),
    )


def _slack(workload: Workload, strategy: Strategy, rank: Rank, moments: tuple[Peak, ...]) -> int:
    """Reserved beyond the highest peak: the allocator never gives back what any moment needed."""
    reserved = max(_with_slack(workload, strategy, rank, moments))
    return reserved - max(moment.total_bytes for moment in moments)


def _reserved(workload: Workload, strategy: Strategy, rank: Rank) -> Iterator[int]:
    return _with_slack(workload, strategy, rank, peaks(workload, strategy, rank))


def _with_slack(
    workload: Workload, strategy: Strategy, rank: Rank, moments: tuple[Peak, ...]
) -> Iterator[int]:
    """Bytes that the allocator has taken at each moment."""
    for moment in moments:
        yield moment.total_bytes + slack_bytes(
            workload,
            strategy,
            block=rank.block.live,
            streams=rank.buffers.other_streams,
            step=rank.states.step,
            peak=moment.parts,
        )


def assumptions(workload: Workload, strategy: Strategy) -> tuple[str, ...]:
    """What the numbers rest on, in words."""
    kernels = workload.kernels
    said = [
        (
            f"{workload.precision}, {workload.optimizer}, attention {workload.attention}, "
            f"loss {workload.loss}, recompute {strategy.recompute}"
        ),
        f"norms {kernels.norm}, MLP {kernels.activation}{', compiled' * kernels.compiled}",
    ]
    traced = workload.model.traced
    if traced is not None:
        measured = traced.saved_bytes is not None
        said.append(
            "activations per sample as traced, the loss left out"
            if measured
            else "activations were not traced (no example inputs) and are not counted"
        )
    if workload.model.experts:
        said.append("routing is balanced: every expert sees the same number of tokens")
    if strategy.zero_stage is not None:
        said.append(
            "DeepSpeed's default buckets" if strategy.reduce_bucket is None else "own buckets"
        )
    if strategy.pp > 1:
        said.append(
            f"schedule {strategy.pipeline.schedule}, {workload.accumulate} micro-batches per step"
        )
    if workload.optimizer.startswith("paged"):
        said.append("paged optimizer states live in unified memory and count as off the card")
    return tuple(said)
