"""Buffers that data-parallel libraries hold: gathered weights, reduction buckets, prefetch.

FSDP2 (torch/distributed/fsdp/_fully_shard): root stays gathered from forward to the end of
backward, one block ahead is prefetched, the reduce-scatter input of one block is in flight.
DeepSpeed (runtime/zero/config.py): reduce and allgather buckets of 5e8 elements, stage 3 gathers
up to 1e9 live parameters and prefetches 5e7.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.estimate.context import RankContext
from workbench.estimate.elements import Elements
from workbench.estimate.stages import Stage

DEEPSPEED_BUCKET = 500_000_000
DEEPSPEED_PREFETCH = 50_000_000
DEEPSPEED_LIVE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Bytes of communication buffers at each phase, on one rank."""

    forward: int
    """Gathered weights (and prefetch) at the end of forward and during the loss."""
    first_backward: int
    """During the last block's backward, the first to run: no reduction is in flight yet."""
    backward: int
    """Gathered weights and gradients in flight during a later block's backward."""
    backward_end: int
    """The same when the last gradients of the root are reduced."""
    step: int
    """During the optimizer's step."""
    root: float = 0.0
    """FSDP: the gathered root (embedding, head, final norm) alone."""
    other_streams: int = 0
    """What other streams of the allocator hold at their own busiest moment: never reused by the
    main one."""


def buffers(context: RankContext, stage: Stage, elements: Elements) -> Buffers:
    """Communication buffers of one rank of `stage`."""
    strategy = context.strategy
    if strategy.zero_stage is not None:
        return _deepspeed(context, elements)
    if context.is_fsdp:
        return _fsdp(context, stage, elements)
    buckets = strategy.dp_replicate > 1 and not strategy.ddp.bucket_views
    size = elements.trained * context.width.gradient if buckets else 0
    return Buffers(forward=size, first_backward=size, backward=size, backward_end=size, step=size)


def _fsdp(context: RankContext, stage: Stage, elements: Elements) -> Buffers:
    width, trains = context.width, context.trains
    root = width.compute * elements.root_all
    block = (width.compute if trains else width.quantized) * elements.largest_block
    reduced = width.gradient * elements.largest_block * trains  # reduce-scatter input in flight
    # The head's gradient, not yet reduced.
    head = width.compute * elements.head_matrix * stage.head * trains
    if context.strategy.keeps_gathered_weights:
        ahead = first = block * stage.layers
        later = block * max(1, stage.layers - 1)
    else:
        ahead, first = block, block * min(2, stage.layers)
        later = block * max(1, min(2, stage.layers - 1))  # the next is prefetched
    largest = max(elements.root_all, elements.largest_block)
    return Buffers(
        forward=int(root + ahead),
        first_backward=int(root + head + first),
        backward=int(root + head + reduced + later),
        backward_end=int(root + width.gradient * elements.root_all * trains),
        step=0,
        root=root,
        other_streams=int(
            block + trains * width.gradient * largest * (1 + 1 / context.strategy.shard_ranks)
        ),
    )


def _deepspeed(context: RankContext, elements: Elements) -> Buffers:
    strategy, options, width = context.strategy, context.strategy.deepspeed, context.width
    trained = elements.trained
    bucket = min(strategy.reduce_bucket or DEEPSPEED_BUCKET, trained) * width.gradient
    if strategy.zero_stage != 3:
        gather = min(options.gather_bucket or DEEPSPEED_BUCKET, trained) * width.compute
        if context.ways.optimizer == 1:
            bucket = gather = 0
        return Buffers(
            forward=int(bucket),
            first_backward=int(bucket),
            backward=int(bucket),
            backward_end=int(bucket),
            step=int(bucket + gather),
            other_streams=int(gather),
        )
    weights = (
        elements.block
        + elements.experts
        + elements.root_all
        + elements.frozen_linear
        + elements.frozen_other
    )
    live = (
        min(max(options.live_parameters or DEEPSPEED_LIVE, elements.largest_linear), weights)
        * width.compute
    )
    ahead = min(options.gather_bucket or DEEPSPEED_PREFETCH, weights) * width.compute
    if context.ways.weights == 1 and "parameters" not in strategy.offload:
        live = ahead = 0
    ahead = min(ahead, weights * width.compute - live)
    # A head larger than a bucket is reduced on its own: its gradient and the copy that is sent.
    bucket = max(bucket, 2 * width.compute * elements.head_matrix * context.trains)
    return Buffers(
        forward=int(live + ahead),
        first_backward=int(live + ahead),
        backward=int(live + ahead + bucket),
        backward_end=int(live + bucket),
        step=int(bucket),
        other_streams=int(width.compute * elements.root_all),
    )
