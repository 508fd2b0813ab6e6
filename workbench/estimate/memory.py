"""Memory of one training process in closed form: five competing peaks, the fullest rank wins.

Pure arithmetic on `Workload`, `Strategy` and the device: microseconds, no torch. The moments that
compete are the end of forward, the loss's backward, a block's backward, the end of backward and
the optimizer's step (estimators.md 2.3 and 2.7). Between them memory changes linearly, so the
highest of the five is the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.activations import BlockMemory, block_memory, uses_autocast
from workbench.estimate.card import card_parts, slack_bytes
from workbench.estimate.communication import Buffers, buffers
from workbench.estimate.loss import LossMemory, loss_memory
from workbench.estimate.parts import Estimate, Peak, StageMemory
from workbench.estimate.stages import Elements, Stage, rank_elements, stages
from workbench.estimate.states import States, Widths, states, widths

SOURCES = (
    "states: arXiv 1910.02054; activations: arXiv 2205.05198 and saved tensors under fake tensors",
    "peaks: end of forward, loss, block backward, end of backward, optimizer step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """Everything known of one rank of one stage."""

    stage: Stage
    elements: Elements
    width: Widths
    states: States
    buffers: Buffers
    block: BlockMemory
    blocks: float  # saved bytes of all blocks, one micro-batch
    boundaries: float  # the same where recompute keeps inputs only
    loss: LossMemory
    outside: float
    casts: float  # autocast's low-precision copy of the head


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
    found = tuple(
        _stage_memory(workload, strategy, stage)
        for stage in stages(workload.model, strategy, workload.accumulate)
    )
    fullest = max(found, key=lambda stage: stage.peak.total_bytes)
    peak = fullest.peak
    parts = {name: size for name, size in peak.parts.items() if size}
    extra = card_parts(workload, strategy, where, fullest)
    return Estimate(
        parts={**parts, **extra.parts},
        assumptions=(*assumptions(workload, strategy), *extra.assumptions),
        peak=peak.name,
        peaks={one.name: one.total_bytes for one in fullest.peaks},
        stages=found,
        card_bytes=extra.card_bytes,
        sources=SOURCES,
    )


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
            f"{model.name} has {model.experts} experts; they cannot be split over ep = {strategy.ep}."
        )
    if strategy.pp > 1 and strategy.schedule == "interleaved" and workload.accumulate % strategy.pp:
        raise UsageError(
            f"The interleaved schedule needs a multiple of {strategy.pp} micro-batches, "
            f"not {workload.accumulate}."
        )


def _stage_memory(workload: Workload, strategy: Strategy, stage: Stage) -> StageMemory:
    rank = _rank(workload, strategy, stage)
    peaks = _peaks(workload, strategy, rank)
    return StageMemory(
        stage=stage.index,
        layers=stage.layers,
        in_flight=stage.in_flight,
        peaks=tuple(Peak(name=name, parts=_whole(parts)) for name, parts in peaks),
        slack_bytes=slack_bytes(
            workload,
            strategy,
            block=rank.block.live,
            streams=rank.buffers.other_streams,
            step=rank.states.step,
            peak=max((parts for _, parts in peaks), key=lambda parts: sum(parts.values())),
        ),
    )


def _whole(parts: dict[str, float]) -> dict[str, int]:
    return {name: round(size) for name, size in parts.items()}


def _rank(workload: Workload, strategy: Strategy, stage: Stage) -> _Rank:
    elements = rank_elements(workload, strategy, stage)
    width = widths(workload, strategy)
    kinds = [(moe, n) for moe, n in ((False, stage.dense), (True, stage.moe)) if n]
    inventory = {moe: block_memory(workload, strategy, moe=moe) for moe, _ in kinds}
    largest = max(inventory.values(), key=lambda one: one.live + one.backward)
    blocks = sum(n * inventory[moe].total for moe, n in kinds)
    boundaries = sum(n * inventory[moe].boundary for moe, n in kinds)
    if strategy.recompute == "full":
        count = strategy.recompute_layers
        share = 1.0 if count is None else min(1.0, count / max(1, stage.layers))
        blocks = share * boundaries + (1 - share) * blocks
    if "activations" in strategy.offload:
        blocks = min(blocks, 2 * largest.boundary)
    if workload.trained_layers is not None:  # what is frozen below the first trained block
        blocks *= min(1.0, workload.trained_layers / max(1, stage.layers))
    return _Rank(
        stage=stage,
        elements=elements,
        width=width,
        states=states(workload, strategy, elements),
        buffers=buffers(workload, strategy, stage, elements, width),
        block=largest,
        blocks=blocks,
        boundaries=boundaries,
        loss=loss_memory(workload, strategy)
        if stage.head
        else LossMemory(forward=0, backward=0, kept=0),
        outside=_outside(workload, strategy, stage, largest),
        casts=2.0 * elements.head_matrix * uses_autocast(workload, strategy),
    )


def _outside(workload: Workload, strategy: Strategy, stage: Stage, block: BlockMemory) -> float:
    """Activations outside the blocks: the embedding's result, the final norm's inputs."""
    boundary, total = block.boundary, 0.0
    if stage.head:
        upcast = workload.kernels.norm == "upcast" and workload.model.norm.startswith("rmsnorm")
        total += _final_norm(workload, block, upcast=upcast)
    if stage.embedding and workload.model.dropout:
        total += boundary / 2
    if strategy.pp > 1:
        total += (1 + stage.in_flight) * boundary  # one is received; results wait for backward
    return total


def _final_norm(workload: Workload, block: BlockMemory, *, upcast: bool) -> float:
    """What the norm before the head and the head itself keep."""
    one = block.boundary
    if workload.lora_rank:
        return 2 * one if upcast else one
    return 3 * one if upcast else 2 * one


def _late_gradients(strategy: Strategy, rank: _Rank, everything: float) -> float:
    """Gradients that do not exist yet while the first block's backward runs.

    Its own and the embedding's; with FSDP also those of the block whose reduction is in flight.
    """
    elements, stage = rank.elements, rank.stage
    if not everything or not elements.trained:
        return 0.0
    tied = stage.head and stage.embedding and elements.root_all < 1.5 * elements.head_matrix
    root = 0 if tied or not elements.root else elements.root - elements.head_matrix * stage.head
    blocks = 1
    if strategy.zero_stage is None and strategy.shard_ranks > 1:
        root, blocks = elements.root, 2
    own = blocks * (elements.block + elements.experts) / max(1, stage.layers)
    return everything * min(1.0, (root + own) / elements.trained)


def _peaks(
    workload: Workload, strategy: Strategy, rank: _Rank
) -> list[tuple[str, dict[str, float]]]:
    """The moments of one step, each with everything alive at it."""
    state, stage, block = rank.states, rank.stage, rank.block
    base: dict[str, float] = {
        "parameters": state.weights,
        "master copy": state.master,
        "optimizer states": state.optimizer,
    }
    all_gradients, before = _gradients(workload, strategy, rank)
    waiting_losses = max(0.0, stage.in_flight - 1) * rank.loss.saved
    saved = stage.in_flight * rank.blocks + rank.casts + waiting_losses
    one_less = max(0.0, stage.in_flight - 1) * rank.blocks
    recompute = strategy.recompute == "full"
    working = (block.live if recompute else 0.0) + block.backward
    dequantised = _dequantised(workload, rank)
    head = rank.width.weight * rank.elements.head_matrix * stage.head
    made = min(all_gradients, max(before, float(head * (not workload.lora_rank))))
    fsdp = strategy.zero_stage is None and strategy.shard_ranks > 1
    if fsdp:  # gathered gradients are among the buffers; one block's shard is already there
        made = max(before, rank.width.gradient * rank.elements.largest_block / strategy.shard_ranks)
        made = min(made, all_gradients)
        own = rank.width.compute * rank.elements.largest_block * (not workload.lora_rank)
        working = max(working, float(own))
    first = (block.live + block.backward) if recompute else min(block.total, rank.blocks) + block.backward
    waiting = (1 + stage.in_flight) * block.boundary if strategy.pp > 1 else 0.0
    late = _late_gradients(strategy, rank, all_gradients)
    start = _initialisation(workload, strategy, rank)
    return [
        *([("initialisation", start)] if start else []),
        (
            "forward end",
            base
            | {
                "gradients": before,
                "activations: blocks": saved,
                "activations: outside": rank.outside,
                "logits and loss": rank.loss.forward,
                "communication buffers": rank.buffers.forward,
            },
        ),
        (
            "loss backward",
            base
            | {
                "gradients": before,
                "activations: blocks": saved,
                "activations: outside": rank.outside,
                "logits and loss": rank.loss.backward,
                "communication buffers": rank.buffers.forward,
            },
        ),
        (
            "block backward",
            base
            | {
                "gradients": made,
                "activations: blocks": saved + working,
                "activations: outside": waiting,
                "logits and loss": rank.loss.kept,
                "communication buffers": rank.buffers.backward,
                "dequantisation": dequantised,
            },
        ),
        (
            "end of backward",
            base
            | {
                "gradients": all_gradients - (0 if before else late),
                "activations: blocks": one_less + first,
                "activations: outside": waiting,
                "logits and loss": rank.loss.kept,
                "communication buffers": rank.buffers.backward,
                "dequantisation": dequantised,
            },
        ),
        *_root_reduction(strategy, rank, base, all_gradients, rank.loss.kept),
        (
            "optimizer step",
            base
            | {
                "gradients": all_gradients,
                "communication buffers": rank.buffers.step,
                "logits and loss": rank.loss.kept,
                "optimizer step": state.step,
            },
        ),
    ]


def _root_reduction(
    strategy: Strategy, rank: _Rank, base: dict[str, float], gradients: float, kept: float
) -> list[tuple[str, dict[str, float]]]:
    """FSDP, the very end of backward: the root's gradients are reduced in one piece."""
    if strategy.zero_stage is not None or strategy.shard_ranks == 1 or not rank.elements.root:
        return []
    root = rank.width.gradient * rank.elements.root / strategy.shard_ranks
    parts = {
        "gradients": max(0.0, gradients - root),
        "communication buffers": float(rank.buffers.backward_end),
        "logits and loss": kept,
    }
    return [("root reduction", base | parts)]


def _initialisation(workload: Workload, strategy: Strategy, rank: _Rank) -> dict[str, float]:
    """The whole model beside its shards, where it is built on the card before it is sharded."""
    if not workload.kernels.whole_before_sharding or strategy.shard_ranks == 1:
        return {}
    whole = rank.elements.trained * rank.width.weight
    if workload.lora_rank:
        whole = rank.width.frozen * (rank.elements.frozen_linear + rank.elements.frozen_other)
    return {"parameters": whole + rank.states.weights}


def _gradients(workload: Workload, strategy: Strategy, rank: _Rank) -> tuple[float, float]:
    """(all gradients at the end of backward, those that exist before it starts)."""
    state = rank.states
    if workload.kernels.optimizer_in_backward:
        largest = max(rank.elements.largest_linear, rank.elements.head_matrix)
        return float(rank.width.weight * largest), 0.0
    everything: float = state.gradients
    if strategy.sync_every_micro_batch is False and workload.accumulate > 1:
        everything = state.gradients_whole
    if "optimizer" in strategy.offload and strategy.zero_stage in {None, 2, 3}:
        everything = 0.0
    kept_buffer = workload.kernels.gradient_bytes is not None and not workload.lora_rank
    kept_buffer |= strategy.bucket_views and strategy.dp_replicate > 1  # views of the buckets
    return everything, everything if workload.accumulate > 1 or kept_buffer else 0.0


def _dequantised(workload: Workload, rank: _Rank) -> float:
    """One weight of a quantized linear, in its own type and in compute precision."""
    if workload.quantization == "none":
        return 0.0
    return float(2 * rank.width.compute * rank.elements.largest_linear)


def assumptions(workload: Workload, strategy: Strategy) -> tuple[str, ...]:
    """What the numbers rest on, in words."""
    kernels = workload.kernels
    said = [
        f"{workload.precision}, {workload.optimizer}, attention {workload.attention}, "
        f"loss {workload.loss}, recompute {strategy.recompute}",
        f"norms {kernels.norm}, MLP activation {kernels.activation}"
        + (", compiled" if kernels.compiled else ""),
    ]
    if workload.model.experts:
        said.append("routing is balanced: every expert sees the same number of tokens")
    if strategy.zero_stage is not None:
        said.append("DeepSpeed's default buckets" if strategy.reduce_bucket is None else "own buckets")
    if strategy.pp > 1:
        said.append(f"schedule {strategy.schedule}, {workload.accumulate} micro-batches per step")
    if workload.optimizer.startswith("paged"):
        said.append("paged optimizer states live in unified memory and count as off the card")
    return tuple(said)
