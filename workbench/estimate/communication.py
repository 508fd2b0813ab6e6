"""Buffers that data-parallel libraries hold: gathered weights, reduction buckets, prefetch.

FSDP2 (torch/distributed/fsdp/_fully_shard): root stays gathered from forward to the end of
backward, one block ahead is prefetched, the reduce-scatter input of one block is in flight.
DeepSpeed (runtime/zero/config.py): reduce and allgather buckets of 5e8 elements, stage 3 gathers
up to 1e9 live parameters and prefetches 5e7.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import Strategy, Workload
from workbench.estimate.stages import Elements, Stage
from workbench.estimate.states import Widths, shards

DDP_BUCKET_BYTES = 25 * 2**20
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
    is_fsdp: bool = False
    """Whether these are FSDP's."""
    other_streams: int = 0
    """What other streams of the allocator hold at their own busiest moment: never reused by the
    main one."""


def buffers(
    workload: Workload, strategy: Strategy, stage: Stage, rank: Elements, width: Widths
) -> Buffers:
    """Communication buffers of one rank of `stage`."""
    ways = shards(strategy)
    if strategy.zero_stage is not None:
        return _deepspeed(workload, strategy, rank, width)
    if ways["weights"] > 1:
        return _fsdp(workload, strategy, stage, rank, width)
    if strategy.dp_replicate > 1:
        size = 0 if strategy.ddp.bucket_views else rank.trained * width.gradient
        return _same(size)
    return _same(0)


def _same(size: int) -> Buffers:
    return Buffers(forward=size, first_backward=size, backward=size, backward_end=size, step=size)


def _gathered(rank: Elements, workload: Workload, width: Widths) -> tuple[float, float]:
    """Bytes of the gathered root and of one gathered block."""
    frozen = bool(workload.lora_rank)
    block = width.quantized if frozen else width.compute
    return width.compute * rank.root_all, block * rank.largest_block


def _fsdp(
    workload: Workload, strategy: Strategy, stage: Stage, rank: Elements, width: Widths
) -> Buffers:
    ranks = strategy.shard_ranks
    root, block = _gathered(rank, workload, width)
    trains = not workload.lora_rank
    reduced = width.gradient * rank.largest_block * trains  # reduce-scatter input in flight
    head = width.compute * rank.head_matrix * stage.head * trains  # its gradient, not yet reduced
    if strategy.fsdp.reshard_after_forward:
        ahead, first = block, block * min(2, stage.layers)
        later = block * max(1, min(2, stage.layers - 1))  # the next is prefetched
    else:
        ahead = first = block * stage.layers
        later = block * max(1, stage.layers - 1)
    return Buffers(
        forward=int(root + ahead),
        first_backward=int(root + head + first),
        backward=int(root + head + reduced + later),
        backward_end=int(root + width.gradient * rank.root_all * trains),
        step=0,
        root=root,
        is_fsdp=True,
        other_streams=int(
            block
            + trains * width.gradient * max(rank.root_all, rank.largest_block) * (1 + 1 / ranks)
        ),
    )


def _deepspeed(workload: Workload, strategy: Strategy, rank: Elements, width: Widths) -> Buffers:
    trained = rank.trained
    bucket = min(strategy.reduce_bucket or DEEPSPEED_BUCKET, trained) * width.gradient
    if strategy.zero_stage != 3:
        gather = min(strategy.deepspeed.gather_bucket or DEEPSPEED_BUCKET, trained) * width.compute
        if shards(strategy)["optimizer"] == 1:
            bucket = gather = 0
        return Buffers(
            forward=int(bucket),
            first_backward=int(bucket),
            backward=int(bucket),
            backward_end=int(bucket),
            step=int(bucket + gather),
            other_streams=int(gather),
        )
    weights = rank.block + rank.experts + rank.root_all + rank.frozen_linear + rank.frozen_other
    live = (
        min(max(strategy.deepspeed.live_parameters or DEEPSPEED_LIVE, rank.largest_linear), weights)
        * width.compute
    )
    ahead = min(strategy.deepspeed.gather_bucket or DEEPSPEED_PREFETCH, weights) * width.compute
    if shards(strategy)["weights"] == 1 and "parameters" not in strategy.offload:
        live = ahead = 0
    ahead = min(ahead, weights * width.compute - live)
    # A head larger than a bucket is reduced on its own: its gradient and the copy that is sent.
    head = 2 * width.compute * rank.head_matrix * (not workload.lora_rank)
    bucket = max(bucket, head)
    return Buffers(
        forward=int(live + ahead),
        first_backward=int(live + ahead),
        backward=int(live + ahead + bucket),
        backward_end=int(live + bucket),
        step=int(bucket),
        other_streams=int(width.compute * rank.root_all),
    )
