"""The moments of a training step at which memory may be highest, each with everything alive at it.

Between two moments memory changes linearly (blocks hand over activations for gradients at a fixed
rate), so the highest of them is the peak; tests/estimate/grid.py holds them against the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.estimate.context import RankContext
from workbench.estimate.measured import measured_moments
from workbench.estimate.parts import Peak
from workbench.estimate.rank import Rank

Parts = dict[str, float]
_Gradients = tuple[float, float]
"""Bytes of all at the end of backward, and of those that exist before it starts."""


def peaks(rank: Rank) -> tuple[Peak, ...]:
    """All competing moments of one rank, in the order of the step, each at its highest."""
    highest: dict[str, Peak] = {}
    for name, parts in _moments(rank, _gradients(rank)):
        peak = Peak(name=name, parts={part: round(size) for part, size in parts.items()})
        if name not in highest or peak.total_bytes > highest[name].total_bytes:
            highest[name] = peak
    return tuple(highest.values())


def _moments(rank: Rank, gradients: _Gradients) -> Iterator[tuple[str, Parts]]:
    yield from _initialisation(rank)
    measured = rank.context.model.measured
    if measured is not None:
        yield from measured_moments(rank, measured, gradients)
        return
    yield from (
        *_forward(rank, gradients),
        *_block_backward(rank, gradients),
        *_end_of_backward(rank, gradients),
        *_root_reduction(rank, gradients),
        _optimizer_step(rank, gradients),
    )


def _states(rank: Rank) -> Parts:
    state = rank.states
    return {
        "parameters": state.weights,
        "master copy": state.master,
        "optimizer states": state.optimizer,
    }


def _initialisation(rank: Rank) -> Iterator[tuple[str, Parts]]:
    """The whole model beside its shards, where it is built on the card before it is sharded."""
    context = rank.context
    if not context.kernels.whole_before_sharding or context.strategy.shard_ranks == 1:
        return
    elements = rank.elements
    unsharded = elements.trained * context.width.weight
    if not context.trains:
        unsharded = context.width.frozen * (elements.frozen_linear + elements.frozen_other)
    yield "initialisation", {"parameters": unsharded + rank.states.weights}


def _forward(rank: Rank, gradients: _Gradients) -> Iterator[tuple[str, Parts]]:
    """The end of forward and the loss's backward: all activations are there."""
    for flying, before in _micro_batches(rank, gradients):
        earlier_losses = max(0.0, flying - 1) * rank.loss.saved
        alive = _states(rank) | {
            "gradients": before,
            "activations: blocks": flying * rank.blocks.on_card + rank.casts,
            "activations: outside": rank.outside,
            "communication buffers": float(rank.buffers.forward),
        }
        yield (
            "forward end",
            alive
            | {
                "activations: blocks": alive["activations: blocks"] + rank.earlier_inputs,
                "logits and loss": rank.loss.forward + earlier_losses,
            },
        )
        yield "loss backward", alive | {"logits and loss": rank.loss.backward + earlier_losses}


def _micro_batches(rank: Rank, gradients: _Gradients) -> Iterator[tuple[float, float]]:
    """(micro-batches in flight, bytes of gradients that exist before the next backward).

    GPipe runs all forwards first: its gradients come when one micro-batch less is in flight.
    """
    everything, before = gradients
    flying = rank.stage.in_flight
    all_at_once = flying == rank.context.workload.accumulate > 1
    if all_at_once and before == everything and not _buffered(rank.context):
        yield flying, 0.0
        yield flying - 1, everything
    else:
        yield flying, before


def _block_backward(rank: Rank, gradients: _Gradients) -> Iterator[tuple[str, Parts]]:
    """The last blocks' backward: all activations, one working set, few gradients."""
    everything, _ = gradients
    context, working = rank.context, _working(rank)
    head = rank.stage.head * context.width.weight * rank.elements.head_matrix
    head_gradient = float(head) if context.trains and not context.is_fsdp else 0.0
    waits = 0.0 if _fetches(rank) else rank.blocks.on_card
    for flying, before in _micro_batches(rank, gradients):
        alive = _states(rank) | {
            "gradients": min(everything, max(before, head_gradient)),
            "activations: blocks": flying * waits + rank.casts + working,
            "activations: outside": rank.waiting,
            "logits and loss": rank.loss.returned_logits,
            "communication buffers": float(rank.buffers.first_backward),
            "dequantisation": rank.dequantised,
        }
        yield "block backward", alive
        # Before any block: the norm in front of the head.
        before_blocks = (
            flying * rank.blocks.on_card + rank.casts + rank.blocks.largest.norm_backward
        )
        yield "block backward", alive | {"activations: blocks": before_blocks}
        yield "block backward", alive | _second_block(rank, gradients, alive)


def _second_block(rank: Rank, gradients: _Gradients, first: Parts) -> Parts:
    """What differs one block later: its gradients are being reduced, its activations are gone."""
    context, block = rank.context, rank.blocks.largest
    freed = block.boundary if context.strategy.recompute == "full" else block.total
    if _fetches(rank):
        freed = 0.0  # it was in host memory
    gradient, more = 0.0, 0.0
    if context.is_fsdp:  # gathered gradients are among the buffers; one block's shard is there
        largest, ranks = rank.elements.largest_block, context.strategy.shard_ranks
        gradient = context.width.gradient * largest / ranks
        own = context.width.compute * largest * context.trains
        more = max(0.0, own - _working(rank))
    everything, _ = gradients
    return {
        "gradients": min(everything, max(first["gradients"], gradient)),
        "activations: blocks": max(0.0, first["activations: blocks"] - freed) + more,
        "communication buffers": float(rank.buffers.backward),
    }


def _working(rank: Rank) -> float:
    """What a block's backward holds beyond everything saved."""
    block, recomputes = rank.blocks.largest, rank.context.strategy.recompute == "full"
    if not _enters_blocks(rank):
        return 0.0
    if _fetches(rank):
        return block.backward_from_host
    return block.backward + (block.live if recomputes else 0.0)


def _enters_blocks(rank: Rank) -> bool:
    """Whether backward goes through any block of the stage: not where the head alone is trained."""
    return rank.stage.trained > 0 or rank.context.model.traced is not None


def _fetches(rank: Rank) -> bool:
    """Whether a block's own saved tensors come back from host memory, one operation at a time."""
    strategy = rank.context.strategy
    return "activations" in strategy.offload and strategy.recompute != "full"


def _end_of_backward(rank: Rank, gradients: _Gradients) -> Iterator[tuple[str, Parts]]:
    """The first block's backward: one block's activations, nearly all gradients; the embedding."""
    everything, before = gradients
    late = 0.0 if before else _late_gradients(rank, everything)
    block = rank.blocks.largest
    recomputes = rank.context.strategy.recompute == "full"
    own = block.live if recomputes else min(block.total, rank.blocks.on_card)
    working = block.backward_from_host if _fetches(rank) else own + block.backward
    working *= _enters_blocks(rank)
    others = max(0.0, rank.stage.in_flight - 1) * rank.blocks.on_card
    rest = _states(rank) | {
        "activations: outside": rank.waiting,
        "logits and loss": rank.loss.returned_logits,
        "communication buffers": float(rank.buffers.backward),
    }
    yield (
        "end of backward",
        rest
        | {
            "gradients": everything - late,
            "activations: blocks": others + working,
            "dequantisation": rank.dequantised,
        },
    )
    if _ties(rank) and rank.elements.root and everything:
        yield "end of backward", rest | _tied_sum(rank, everything, before, others)


def _tied_sum(rank: Rank, everything: float, before: float, others: float) -> Parts:
    """Tied embeddings: the head's gradient, the embedding's dense one, and their sum at once."""
    matrix = float(rank.elements.head_matrix)
    if rank.context.is_fsdp:  # unsharded and not yet reduced, beside the gathered root
        in_flight = rank.context.width.gradient * rank.elements.largest_block
        gathered = rank.buffers.root + 3.0 * rank.context.width.compute * matrix + in_flight
        parts = {"gradients": everything, "communication buffers": gathered}
    else:
        copies = 3.0 if before else 2.0  # beyond the one among all gradients
        parts = {"gradients": everything + copies * rank.context.width.weight * matrix}
    return parts | {"activations: blocks": others}


def _root_reduction(rank: Rank, gradients: _Gradients) -> Iterator[tuple[str, Parts]]:
    """FSDP, the very end of backward: the root's gradients are reduced in one piece."""
    if not rank.context.is_fsdp or not rank.elements.root:
        return
    everything, before = gradients
    ranks = rank.context.strategy.shard_ranks
    root = rank.context.width.gradient * rank.elements.root / ranks
    gradient_bytes = (
        everything + root if before else max(0.0, everything - root)
    )  # new ones are added
    yield (
        "root reduction",
        _states(rank)
        | {
            "gradients": gradient_bytes,
            "communication buffers": float(rank.buffers.backward_end),
            "logits and loss": rank.loss.returned_logits,
        },
    )


def _optimizer_step(rank: Rank, gradients: _Gradients) -> tuple[str, Parts]:
    everything, _ = gradients
    return "optimizer step", _states(rank) | {
        "gradients": everything,
        "communication buffers": float(rank.buffers.step),
        "optimizer step": float(rank.states.step),
    }


def _gradients(rank: Rank) -> _Gradients:
    """(bytes of all gradients at the end of backward, of those that exist before it starts)."""
    context = rank.context
    workload, strategy = context.workload, context.strategy
    if context.kernels.optimizer_in_backward:
        largest = max(rank.elements.largest_linear, rank.elements.head_matrix)
        return float(context.width.weight * largest), 0.0
    everything: float = rank.states.gradients
    if strategy.reduces_once and workload.accumulate > 1:
        everything = rank.states.gradients_unsharded
    if context.gradients_leave:
        everything = 0.0
    plain = strategy.shard_ranks == 1 and strategy.zero_stage is None
    views = strategy.ddp.bucket_views and strategy.dp_replicate > 1 and plain
    exist_before = workload.accumulate > 1 or views or _buffered(context)
    return everything, everything if exist_before else 0.0


def _buffered(context: RankContext) -> bool:
    """Whether gradients live in a buffer of their own all the time (Megatron, DeepSpeed's bf16)."""
    return context.kernels.gradient_bytes is not None and context.trains


def _ties(rank: Rank) -> bool:
    """Whether embedding and head share one matrix on this rank."""
    stage, elements = rank.stage, rank.elements
    return stage.head and stage.embedding and elements.root_all < 1.5 * elements.head_matrix


def _late_gradients(rank: Rank, everything: float) -> float:
    """Gradients that do not exist yet while the first block's backward runs.

    Its own and the embedding's; with FSDP also those of the block whose reduction is in flight.
    """
    elements, stage = rank.elements, rank.stage
    if not everything or not elements.trained:
        return 0.0
    root = (
        0 if _ties(rank) or not elements.root else elements.root - elements.head_matrix * stage.head
    )
    blocks = 1
    if rank.context.is_fsdp:
        root, blocks = elements.root, 2
    own = blocks * (elements.block + elements.experts) / max(1, stage.layers)
    return everything * min(1.0, (root + own) / elements.trained)
