"""The moments of a training step at which memory may be highest, each with everything alive at it.

Between two moments memory changes linearly (blocks hand over activations for gradients at a fixed
rate), so the highest of them is the peak. estimators.md 2.3 and 2.7; met by tests/estimate/grid.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.describe import Strategy, Workload
from workbench.estimate.parts import Peak
from workbench.estimate.rank import Rank

Parts = dict[str, float]


def peaks(workload: Workload, strategy: Strategy, rank: Rank) -> tuple[Peak, ...]:
    """All competing moments of one rank, in the order of the step."""
    moments = (
        *_initialisation(workload, strategy, rank),
        *_forward(workload, strategy, rank),
        _block_backward(workload, strategy, rank),
        _end_of_backward(workload, strategy, rank),
        *_root_reduction(workload, strategy, rank),
        _optimizer_step(workload, strategy, rank),
    )
    return tuple(
        Peak(name=name, parts={part: round(size) for part, size in parts.items()})
        for name, parts in moments
    )


def _states(rank: Rank) -> Parts:
    state = rank.states
    return {
        "parameters": state.weights,
        "master copy": state.master,
        "optimizer states": state.optimizer,
    }


def _initialisation(
    workload: Workload, strategy: Strategy, rank: Rank
) -> Iterator[tuple[str, Parts]]:
    """The whole model beside its shards, where it is built on the card before it is sharded."""
    if not workload.kernels.whole_before_sharding or strategy.shard_ranks == 1:
        return
    elements = rank.elements
    whole = elements.trained * rank.width.weight
    if workload.lora_rank:
        whole = rank.width.frozen * (elements.frozen_linear + elements.frozen_other)
    yield "initialisation", {"parameters": whole + rank.states.weights}


def _forward(workload: Workload, strategy: Strategy, rank: Rank) -> Iterator[tuple[str, Parts]]:
    """The end of forward and the loss's backward: all activations are there."""
    _, before = gradients(workload, strategy, rank)
    earlier_losses = max(0.0, rank.stage.in_flight - 1) * rank.loss.saved
    alive = _states(rank) | {
        "gradients": before,
        "activations: blocks": rank.stage.in_flight * rank.blocks + rank.casts,
        "activations: outside": rank.outside,
        "communication buffers": float(rank.buffers.forward),
    }
    for name, size in (
        ("forward end", rank.loss.forward),
        ("loss backward", rank.loss.backward),
    ):
        yield name, alive | {"logits and loss": size + earlier_losses}


def _block_backward(workload: Workload, strategy: Strategy, rank: Rank) -> tuple[str, Parts]:
    """The last block's backward: all activations, its own working set, few gradients."""
    everything, before = gradients(workload, strategy, rank)
    working = rank.block.backward + (rank.block.live if strategy.recompute == "full" else 0.0)
    learns = not workload.lora_rank
    if rank.is_fsdp:  # gathered gradients are among the buffers; one block's shard is there
        made = rank.width.gradient * rank.elements.largest_block / strategy.shard_ranks
        working = max(working, float(learns * rank.width.compute * rank.elements.largest_block))
    else:
        made = learns * rank.stage.head * rank.width.weight * rank.elements.head_matrix
    return "block backward", _states(rank) | {
        "gradients": min(everything, max(before, float(made))),
        "activations: blocks": rank.stage.in_flight * rank.blocks + rank.casts + working,
        "activations: outside": rank.waiting,
        "logits and loss": rank.loss.kept,
        "communication buffers": float(rank.buffers.backward),
        "dequantisation": rank.dequantised,
    }


def _end_of_backward(workload: Workload, strategy: Strategy, rank: Rank) -> tuple[str, Parts]:
    """The first block's backward: one block's activations, nearly all gradients."""
    everything, before = gradients(workload, strategy, rank)
    late = 0.0 if before else _late_gradients(rank, everything)
    block = rank.block
    own = block.live if strategy.recompute == "full" else min(block.total, rank.blocks)
    others = max(0.0, rank.stage.in_flight - 1) * rank.blocks
    return "end of backward", _states(rank) | {
        "gradients": everything - late,
        "activations: blocks": others + own + block.backward,
        "activations: outside": rank.waiting,
        "logits and loss": rank.loss.kept,
        "communication buffers": float(rank.buffers.backward),
        "dequantisation": rank.dequantised,
    }


def _root_reduction(
    workload: Workload, strategy: Strategy, rank: Rank
) -> Iterator[tuple[str, Parts]]:
    """FSDP, the very end of backward: the root's gradients are reduced in one piece."""
    if not rank.is_fsdp or not rank.elements.root:
        return
    everything, _ = gradients(workload, strategy, rank)
    root = rank.width.gradient * rank.elements.root / strategy.shard_ranks
    yield (
        "root reduction",
        _states(rank)
        | {
            "gradients": max(0.0, everything - root),
            "communication buffers": float(rank.buffers.backward_end),
            "logits and loss": rank.loss.kept,
        },
    )


def _optimizer_step(workload: Workload, strategy: Strategy, rank: Rank) -> tuple[str, Parts]:
    everything, _ = gradients(workload, strategy, rank)
    return "optimizer step", _states(rank) | {
        "gradients": everything,
        "communication buffers": float(rank.buffers.step),
        "logits and loss": rank.loss.kept,
        "optimizer step": float(rank.states.step),
    }


def gradients(workload: Workload, strategy: Strategy, rank: Rank) -> tuple[float, float]:
    """(bytes of all gradients at the end of backward, of those that exist before it starts)."""
    if workload.kernels.optimizer_in_backward:
        largest = max(rank.elements.largest_linear, rank.elements.head_matrix)
        return float(rank.width.weight * largest), 0.0
    everything: float = rank.states.gradients
    if strategy.sync_every_micro_batch is False and workload.accumulate > 1:
        everything = rank.states.gradients_whole
    if _gradients_leave(strategy, rank):
        everything = 0.0
    kept_buffer = workload.kernels.gradient_bytes is not None and not workload.lora_rank
    kept_buffer |= strategy.bucket_views and strategy.dp_replicate > 1  # views of the buckets
    return everything, everything if workload.accumulate > 1 or kept_buffer else 0.0


def _gradients_leave(strategy: Strategy, rank: Rank) -> bool:
    """DeepSpeed from stage 2 moves gradients to its offloaded optimizer, FSDP moves all or none."""
    if rank.is_fsdp:
        return "parameters" in strategy.offload
    return "optimizer" in strategy.offload and strategy.zero_stage in {2, 3}


def _late_gradients(rank: Rank, everything: float) -> float:
    """Gradients that do not exist yet while the first block's backward runs.

    Its own and the embedding's; with FSDP also those of the block whose reduction is in flight.
    """
    elements, stage = rank.elements, rank.stage
    if not everything or not elements.trained:
        return 0.0
    tied = stage.head and stage.embedding and elements.root_all < 1.5 * elements.head_matrix
    root = 0 if tied or not elements.root else elements.root - elements.head_matrix * stage.head
    blocks = 1
    if rank.is_fsdp:
        root, blocks = elements.root, 2
    own = blocks * (elements.block + elements.experts) / max(1, stage.layers)
    return everything * min(1.0, (root + own) / elements.trained)
