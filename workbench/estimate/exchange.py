"""What data-parallel ranks exchange, and how much of it compute does not hide.

DDP reduces gradients bucket by bucket beside the last micro-batch's backward (arXiv 2006.15704).
FSDP and ZeRO-3 gather each block's weights before forward and again before backward and reduce
its gradients behind it, each beside the neighbouring block's compute (arXiv 2304.11277). ZeRO-1 and
-2 reduce gradients like DDP and gather the new weights after the optimizer's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from workbench.describe import Strategy, Workload
from workbench.describe.counting import block_linears
from workbench.estimate.communication import DEEPSPEED_BUCKET
from workbench.estimate.context import StateWidths
from workbench.estimate.fitted import fitted
from workbench.estimate.network import Group, Groups, Links
from workbench.estimate.rank import Rank

DDP_BUCKET = 25 * 2**20
"""Bytes of DDP's default bucket (torch: bucket_cap_mb), in the type of the weights' gradients."""
TOPK_DENSITY = 0.01
"""Share of the gradients that our recipes' top-k hook sends unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Exposed seconds of data parallelism."""

    forward: float = 0.0
    """Per micro-batch's forward."""
    backward: float = 0.0
    """Per micro-batch's backward."""
    once: float = 0.0
    """Once per optimizer step."""


def exchange(
    rank: Rank,
    network: Links,
    peers: Groups,
    *,
    forward: float,
    backward: float,
) -> Exchange:
    """Exposed data-parallel communication of `rank` beside so many seconds of compute."""
    context = rank.context
    if context.strategy.data_ranks * context.strategy.cp == 1:
        return Exchange()
    if context.ways.weights > 1:
        return _sharded(rank, network, peers, forward=forward, backward=backward)
    return Exchange(once=_once(rank, network, peers, fitted("hideable") * backward))


def _sharded(
    rank: Rank,
    network: Links,
    peers: Groups,
    *,
    forward: float,
    backward: float,
) -> Exchange:
    context, elements = rank.context, rank.elements
    strategy, width = context.strategy, context.width
    frozen = not context.trains
    per_weight = width.quantized if frozen else width.compute
    layers, entered = max(1, rank.stage.layers), rank.stage.trained
    block = _block(rank)
    gather = sum(
        part.pieces * network.gather_seconds(per_weight * part.elements / part.pieces, part.group)
        for part in _parts(block, rank, peers)
    )
    root = network.gather_seconds(width.compute * elements.root_all, peers.shard)
    reduced = 0.0 if frozen else _reduce_seconds(block, rank, network, peers)
    keeps = strategy.keeps_gathered_weights and strategy.zero_stage != 3
    ahead = layers * _exposed(gather, forward / layers, strategy) + root
    backward_gather = 0.0 if keeps else gather
    per_block = backward / entered if entered else 0.0
    in_backward = entered * _exposed(backward_gather + reduced, per_block, strategy)
    reduce_root = 0.0 if frozen else root
    once = reduced + gather
    if strategy.reduces_once:  # in the last micro-batch alone
        without = entered * _exposed(backward_gather, per_block, strategy)
        once += in_backward - without + reduce_root
        in_backward, reduce_root = without, 0.0
    if keeps and strategy.pp > 1:  # a stage that keeps its weights gathers them once per step
        once += ahead
        ahead = 0.0
    return Exchange(
        forward=ahead,
        backward=in_backward + reduce_root + (0.0 if frozen else root),
        once=once,
    )


class _BlockWeights(NamedTuple):
    """Elements of the mean block of a stage on one rank."""

    dense: float
    experts: float


class _Part(NamedTuple):
    """What of a block one group of ranks gathers."""

    elements: float
    pieces: float
    """Collectives that it takes."""
    group: Group


def _block(rank: Rank) -> _BlockWeights:
    elements, layers = rank.elements, max(1, rank.stage.layers)
    experts = elements.experts + elements.frozen_experts
    weights = elements.block + elements.experts + elements.frozen_linear + elements.frozen_other
    frozen_root = elements.root_all - elements.root
    return _BlockWeights(max(0.0, weights - experts - frozen_root) / layers, experts / layers)


def _parts(block: _BlockWeights, rank: Rank, peers: Groups) -> list[_Part]:
    """Dense weights among all ranks, experts among those that hold the same ones."""
    dense, experts = _pieces(rank)
    if rank.context.strategy.ep == 1 or not block.experts:
        return [_Part(block.dense + block.experts, dense + experts, peers.shard)]
    return [
        _Part(block.dense, dense, peers.shard),
        _Part(block.experts, max(1.0, experts), peers.expert_shard),
    ]


def _reduce_seconds(block: _BlockWeights, rank: Rank, network: Links, peers: Groups) -> float:
    """Gradients of a block, to the ranks that hold their shards and then between the replicas."""
    size, total = _reduced(rank.context.workload), 0.0
    for part in _parts(block, rank, peers):
        total += network.gather_seconds(size * part.elements, part.group)
        if peers.replicate.size > 1:
            own = size * part.elements / part.group.size
            total += network.reduce_seconds(own, peers.replicate)
    return total


def host_seconds(rank: Rank, launches: float) -> float:
    """Host time of one forward of `rank`: the launches, and what the wrappers' hooks add.

    `launches` are seconds without any wrapper.
    """
    if rank.context.ways.weights == 1:
        return launches
    pieces = sum(_pieces(rank)) if rank.context.strategy.zero_stage == 3 else 0.0
    return fitted("wrapped") * launches + pieces * rank.stage.layers * fitted("zero3_piece_seconds")


def _pieces(rank: Rank) -> tuple[float, float]:
    """Collectives per block, for dense weights and for experts.

    FSDP gathers a block at once, ZeRO-3 one module after another.
    """
    model, strategy, moe = rank.context.model, rank.context.strategy, bool(rank.stage.moe)
    if strategy.zero_stage != 3:
        return 1.0, 0.0
    linears = len(block_linears(model, moe=moe))
    experts = model.experts / strategy.ep * (3 if model.gated_mlp else 2) if moe else 0
    return linears + 2.0, experts


def _exposed(communication: float, compute: float, strategy: Strategy) -> float:
    """Seconds that communication adds to compute running beside it."""
    if strategy.overlap_gradients is False:
        return communication
    hidden = min(communication, compute)
    return communication - hidden + fitted("contention") * hidden


def _reduced(workload: Workload) -> float:
    """Bytes per element in which FSDP reduces gradients: fp32, or the weights' own type."""
    if workload.kernels.reduce_bytes is not None:
        return workload.kernels.reduce_bytes
    return 2.0 if workload.precision.endswith("-pure") else 4.0


def _compressed(per_gradient: float, strategy: Strategy, hidden: int) -> float:
    """Bytes per gradient after DDP's communication hook."""
    if strategy.ddp.comm_hook in {"fp16", "bf16"}:
        return 2.0
    if strategy.ddp.comm_hook == "powersgd":  # torch's rank 1: two vectors for a matrix
        return per_gradient * 2 / hidden
    if strategy.ddp.comm_hook == "topk":  # values and indices, gathered from each rank
        return 8 * TOPK_DENSITY * strategy.dp_replicate / 2
    return per_gradient


def _bucket(strategy: Strategy, width: StateWidths) -> float:
    """Gradients that are reduced in one message; all of them where none is overlapped by DDP."""
    if strategy.reduce_bucket:
        return strategy.reduce_bucket
    if strategy.zero_stage is not None:
        return DEEPSPEED_BUCKET
    own = 4 if width.gradient == 4 else width.compute  # 6: an fp32 sum beside the weights' own
    return math.inf if strategy.overlap_gradients is False else DDP_BUCKET / own


def _in_buckets(
    collective: Callable[[float, Group], float], size: float, bucket: float, group: Group
) -> float:
    """Seconds of `size` bytes sent in messages of `bucket` bytes, one after another."""
    messages = max(1, math.ceil(size / bucket))
    return messages * collective(size / messages, group)


def _per_gradient(rank: Rank) -> float:
    """Bytes on the wire of a gradient that plain data parallelism or ZeRO-1/2 reduces."""
    workload, strategy, width = rank.context.workload, rank.context.strategy, rank.context.width
    per_gradient = width.gradient if width.gradient in {2, 4} else 2
    if workload.kernels.reduce_bytes is not None:
        per_gradient = workload.kernels.reduce_bytes
    elif strategy.zero_stage is not None and workload.kernels.gradient_bytes is None:
        per_gradient = width.compute  # DeepSpeed reduces in the compute type
    return _compressed(per_gradient, strategy, workload.model.hidden)


def gradient_bytes(rank: Rank) -> float:
    """Bytes of all gradients of a rank as plain data parallelism sends them."""
    elements, adapter = rank.elements, rank.context.width.adapter
    own = elements.trained - elements.adapters
    return _per_gradient(rank) * own + adapter * elements.adapters


def _once(rank: Rank, network: Links, peers: Groups, compute: float) -> float:
    """Gradients of plain data parallelism and ZeRO-1/2, reduced once per step during `compute`."""
    context, elements = rank.context, rank.elements
    strategy, width = context.strategy, context.width
    per_gradient = _per_gradient(rank)
    size = per_gradient * (elements.block + elements.root) + width.adapter * elements.adapters
    experts = per_gradient * elements.experts
    bucket = per_gradient * _bucket(strategy, width)
    if strategy.zero_stage is None:
        total = _in_buckets(network.reduce_seconds, size, bucket, peers.data)
        total += _in_buckets(network.reduce_seconds, experts, bucket, peers.expert_data)
        return _exposed(total, compute, strategy)
    # ZeRO within a group: reduced there, then between the groups; gathered in the group alone
    to_all = context.kernels.gradients_to_all
    collective = network.reduce_seconds if to_all else network.gather_seconds
    reduce = _in_buckets(collective, size, bucket, peers.shard)
    part = 1 / strategy.shard_ranks
    reduce += _in_buckets(network.reduce_seconds, size * part, bucket * part, peers.replicate)
    reduce += _in_buckets(network.gather_seconds, experts, bucket, peers.expert_data)
    ratio = width.compute / per_gradient
    gathered = width.compute * (strategy.deepspeed.gather_bucket or DEEPSPEED_BUCKET)
    # a rank's own part is the least that is gathered at once, however small the buffer
    gathered = max(gathered, size * ratio * part)
    gather_back = _in_buckets(network.gather_seconds, size * ratio, gathered, peers.shard)
    gather_back += _in_buckets(network.gather_seconds, experts * ratio, gathered, peers.expert_data)
    gather = (
        _exposed(gather_back, compute / 2, strategy) if strategy.overlap_gradients else gather_back
    )
    return _exposed(reduce, compute, strategy) + gather
