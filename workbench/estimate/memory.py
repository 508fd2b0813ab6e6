"""Memory of one training process in closed form: competing peaks, the fullest rank wins.

Pure arithmetic on `Workload`, `Strategy` and the device: microseconds, no torch. What is alive when
stands in peaks.py; how large each part is in elements, states, activations, loss, communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.hardware import device_of
from workbench.describe.job_function import takes_job
from workbench.describe.library_refusals import check_offloaded_weights
from workbench.errors import UsageError
from workbench.estimate.card import CPU_CONTEXT_BYTES, card_parts, cautions, check_where, host_bytes
from workbench.estimate.measured import on_device
from workbench.estimate.memory_range import memory_range
from workbench.estimate.parts import Estimate, Peak, StageMemory
from workbench.estimate.peaks import peaks
from workbench.estimate.rank import Rank, ranks_of
from workbench.estimate.slack import slack_bytes
from workbench.estimate.stack_factor import MemoryTerms, facts_of, memory_terms
from workbench.estimate.timing import CALIBRATION
from workbench.units import format_bytes

SOURCES = (
    "states: arXiv 1910.02054; activations: arXiv 2205.05198 and saved tensors under fake tensors",
    "pipeline schedules: arXiv 2104.04473, 2401.10241; peaks: exact simulation (tests/estimate)",
)

_ROUNDING = 16
"""Bytes that a moment's parts may lose when each of them is rounded."""


@takes_job
def training_memory(
    workload: Workload,
    strategy: Strategy,
    where: Cluster | str = "cuda",
    *,
    is_named: bool = False,
) -> Estimate:
    """Peak memory of the fullest rank, in named parts, with a range.

    Args:
        workload: What is trained.
        strategy: How it is spread.
        where: A cluster (its card decides whether it fits), or just "cuda" or "cpu".
        is_named: Whether the trainer is known; the range is wider where it is only assumed.

    Raises:
        UsageError: the layout is impossible (heads not divisible by tp, more stages than blocks).
    """
    check_where(where)
    check_layout(workload, strategy)
    workload = on_device(workload, where)
    ranks = ranks_of(workload, strategy)
    by_stage = tuple(_stage_memory(rank) for rank in ranks)
    fullest = max(by_stage, key=lambda stage: stage.peak.total_bytes)
    peak = fullest.peak
    device = device_of(where)
    terms = _terms(workload, where)
    reserved_by_stage = [stage.peak.total_bytes + stage.slack_bytes for stage in by_stage]
    library_bytes = CPU_CONTEXT_BYTES if device == "cpu" else 0
    changes = [
        _change(terms, rank, stage.peak.total_bytes, library_bytes)
        for rank, stage in zip(ranks, by_stage, strict=True)
    ]
    reserved, change = max(zip(reserved_by_stage, changes, strict=True), key=sum)
    parts = {name: size for name, size in peak.parts.items() if size}
    extra = card_parts(strategy, where, reserved - peak.total_bytes)
    on_host = host_bytes(ranks, where)
    spread = memory_range(workload, strategy, is_named=is_named or terms.is_measured)
    spread = spread.centred() if terms.is_measured else spread
    return Estimate(
        parts={**parts, **({CALIBRATION: change} if change else {}), **extra.parts},
        assumptions=(
            *cautions(workload, where, on_host),
            *assumptions(workload, strategy),
            *extra.assumptions,
            spread.text,
            *terms.sentences,
        ),
        low=spread.low,
        high=spread.high,
        host_bytes=on_host,
        peak=peak.name,
        peaks={moment.name: moment.total_bytes for moment in fullest.peaks},
        stages=by_stage,
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
    fullest: dict[object, Rank] = {}
    for rank in ranks_of(workload, strategy):
        previous = fullest.get(rank.stage.content)
        if previous is None or rank.stage.in_flight > previous.stage.in_flight:
            fullest[rank.stage.content] = rank
    terms = _terms(workload, "cuda")
    reserved = 0
    for rank in fullest.values():
        moments = peaks(rank)
        tensors = max(moment.total_bytes for moment in moments)
        size = max(_with_slack(rank, moments)) + _change(terms, rank, tensors)
        reserved = max(reserved, size)
    return sum(card_parts(strategy, "cuda", reserved).parts.values())


def least_bytes(workload: Workload, strategy: Strategy) -> int:
    """A lower bound of `needed_bytes` over micro-batches and recompute: states and buffers."""
    stay = strategy.offload or workload.kernels.optimizer_in_backward
    reserved, terms = 0, _terms(workload, "cuda")
    for rank in {rank.stage.content: rank for rank in ranks_of(workload, strategy)}.values():
        states, buffers = rank.states, rank.buffers
        step = buffers.step + states.step + (0 if stay else states.gradients)
        most = max(step, buffers.forward, buffers.first_backward, buffers.backward)
        size = states.weights + states.master + states.optimizer + most
        reserved = max(reserved, size + _change(terms, rank, size))
    return sum(card_parts(strategy, "cuda", reserved - _ROUNDING).parts.values())


def check_layout(workload: Workload, strategy: Strategy) -> None:
    """Refuse layouts that no library can run.

    Raises:
        UsageError: with what is allowed.
    """
    model = workload.model
    check_offloaded_weights(strategy)
    last = workload.trained_layers
    if last is not None and last > model.layers and model.kind != "module":
        raise UsageError(
            f"{model.name} has {model.layers} blocks: its last {last:,} cannot be trained. Use "
            f"trained_layers {model.layers} or less, or leave it out to train everything."
        )
    if strategy.tp > 1 and workload.quantization != "none":
        raise UsageError(
            f"{workload.quantization} weights cannot be split over tp = {strategy.tp}. "
            "Use fsdp, zero3 or pp, which keep each matrix whole while it computes."
        )
    if strategy.tp > 1 and model.kind != "module":
        check_tensor(model, strategy.tp)
    if strategy.cp > 1 and workload.sequence % strategy.cp:
        remedy = f"Use a multiple of {strategy.cp} as seq_len, or another cp."
        if model.kind in {"vision", "module"}:
            remedy = "They are fixed: use cp 1."
        raise UsageError(
            f"A sequence of {workload.sequence} tokens cannot be split over cp = {strategy.cp}. "
            f"{remedy}"
        )
    if strategy.ep > 1 and not model.experts:
        raise UsageError(
            f"{model.name} has no experts to spread over ep = {strategy.ep}. Leave ep out."
        )
    if strategy.ep > 1 and model.experts % strategy.ep:
        raise UsageError(
            f"{model.name} has {model.experts} experts: ep = {strategy.ep} does not divide them. "
            f"{_ways('ep', model.experts)}"
        )
    chunked = strategy.pipeline.schedule == "interleaved" or strategy.pipeline.virtual_stages > 1
    if strategy.pp > 1 and chunked and workload.accumulate % strategy.pp:
        raise UsageError(
            f"The interleaved schedule needs a multiple of {strategy.pp} micro-batches, "
            f"not {workload.accumulate}. Use a multiple as accumulate, or schedule 1f1b."
        )


def check_tensor(model: Model, tp: int) -> None:
    """Refuse a tensor-parallel degree that leaves heads or columns over.

    Key/value heads are divided, or copied where there are fewer than ranks.
    """
    reason = _left_over(model, tp)
    if reason:
        good = [ways for ways in range(2, model.heads + 1) if not _left_over(model, ways)]
        raise UsageError(f"{reason} {_use('tp', good)}")


def _left_over(model: Model, tp: int) -> str:
    """Why a tensor-parallel degree leaves heads or columns over; "" = it does not."""
    inner, shared = model.mlp_hidden or model.expert_hidden, model.key_value_heads
    if model.heads % tp:
        return f"{model.heads} attention heads cannot be split over tp = {tp}."
    if shared % tp and tp % shared:
        return f"{shared} key/value heads cannot be shared out over tp = {tp}."
    return f"The MLP's width {inner} cannot be split over tp = {tp}." if inner % tp else ""


def _ways(degree: str, count: int) -> str:
    return _use(degree, [ways for ways in range(2, count + 1) if count % ways == 0])


def _use(degree: str, good: Sequence[int]) -> str:
    """What to give instead."""
    if not good:
        return f"No other number does: leave {degree} out."
    return f"Use {'one of ' * (len(good) > 1)}{', '.join(map(str, good[:8]))}."


def _terms(workload: Workload, where: Cluster | str) -> MemoryTerms:
    """What measured runs of its stack say about the workload's memory."""
    calibration = workload.calibration
    if calibration is None:
        return MemoryTerms()
    if isinstance(where, str):
        return memory_terms(calibration, facts_of(calibration, workload, where))
    arch = where.accelerator.arch if where.accelerator else ""
    return memory_terms(calibration, facts_of(calibration, workload, where.device, arch))


def _change(terms: MemoryTerms, rank: Rank, tensors: int, library_bytes: int = 0) -> int:
    """Bytes by which the terms change what a rank takes."""
    states = rank.states
    return terms.correction(
        states.weights + states.master + states.optimizer, tensors, library_bytes
    )


def _stage_memory(rank: Rank) -> StageMemory:
    """The peaks of one rank, and what the allocator reserves beyond the highest of them.

    It never gives back what any moment needed.
    """
    stage, moments = rank.stage, peaks(rank)
    highest = max(moment.total_bytes for moment in moments)
    return StageMemory(
        stage=stage.index,
        layers=stage.layers,
        in_flight=stage.in_flight,
        peaks=moments,
        slack_bytes=max(_with_slack(rank, moments)) - highest,
    )


def _with_slack(rank: Rank, moments: tuple[Peak, ...]) -> Iterator[int]:
    """Bytes that the allocator has taken at each moment."""
    return (moment.total_bytes + slack_bytes(rank, moment.parts) for moment in moments)


_FULL_LOGITS = 16 * 2**30
"""Bytes of full logits from which an estimate without them says so."""


def _without_fused_loss(workload: Workload, strategy: Strategy) -> Iterator[str]:
    """What a long sequence would take if its loss were not the one that is assumed."""
    if workload.loss == "full" or workload.model.one_answer:
        return
    logits = 4 * workload.kernels.logits_copies * workload.tokens / strategy.cp
    size = logits * workload.model.vocab / strategy.tp
    if size >= _FULL_LOGITS:
        yield (
            f"loss {workload.loss}: with the logits of all tokens at once (loss full) these alone "
            f"would take {format_bytes(round(size))}"
        )


def assumptions(workload: Workload, strategy: Strategy) -> tuple[str, ...]:
    """What the numbers rest on, in words."""
    kernels = workload.kernels
    sentences = [
        (
            f"{workload.precision}, {workload.optimizer}, attention {workload.attention}, "
            f"loss {workload.loss}, recompute {strategy.recompute}"
        ),
        f"norms {kernels.norm}, MLP {kernels.activation}{', compiled' * kernels.compiled}",
    ]
    sentences.extend(_without_fused_loss(workload, strategy))
    traced = workload.model.traced
    measured = workload.model.measured
    if measured is not None:
        sentences = [
            f"{workload.precision}, {workload.optimizer}, recompute {strategy.recompute}",
            "attention, loss and kernels as measured",
            f"a measured step: {measured.source}",
            *measured.notes,
        ]
        if workload.precision != measured.precision:
            sentences.append(f"measured in {measured.precision}: scaled by the bytes of a value")
    elif traced is not None:
        sentences.append(
            "activations per sample as traced, the loss left out"
            if traced.saved_bytes is not None
            else "activations were not traced (no example inputs) and are not counted"
        )
    if workload.model.experts:
        sentences.append("routing is balanced: every expert sees the same number of tokens")
    if strategy.zero_stage is not None:
        sentences.append(
            "DeepSpeed's default buckets" if strategy.reduce_bucket is None else "own buckets"
        )
    if strategy.pp > 1:
        sentences.append(
            f"schedule {strategy.pipeline.schedule}, {workload.accumulate} micro-batches per step"
        )
    if workload.optimizer.startswith("paged"):
        sentences.append("paged optimizer states live in unified memory and count as off the card")
    return tuple(sentences)
