"""What the allocator takes beyond the tensors: fragments, and what other streams hold.

DeepSpeed's engine and batches of varying length cannot be replayed without a GPU, and replays of
the others give a share and no law: these constants have no source. fitted_memory.csv lists them,
each with its bounds; `make fit` refits them, also with each source of published runs left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from workbench.estimate.fitted import read_constants
from workbench.estimate.rank import Rank

PATH = Path(__file__).with_name("fitted_memory.csv")
_ACTIVATIONS = ("activations: blocks", "activations: outside", "logits and loss")


@functools.cache
def shares() -> Mapping[str, float]:
    """The values in use, by name."""
    return {name: constant.value for name, constant in read_constants(PATH).items()}


def slack_bytes(
    rank: Rank, peak: Mapping[str, float], values: Mapping[str, float] | None = None
) -> int:
    """Reserved minus allocated at the moment of `peak`; `values` of the constants for a fit."""
    share = values or shares()
    context, streams = rank.context, rank.buffers.other_streams
    workload, strategy, kernels = context.workload, context.strategy, context.kernels
    moving = sum(peak.get(name, 0.0) for name in _ACTIVATIONS)
    varies = share["variable_length"] * moving if workload.variable_length else 0.0
    if strategy.zero_stage is not None:
        at_step = "optimizer step" in peak
        most = share["deepspeed_buffers"] * moving
        elsewhere = 0.0 if at_step else min(rank.states.step + streams, most)
        return round(share["deepspeed"] * moving + elsewhere + varies)
    full_logits = workload.loss in {"full", "chunked-output"} and context.model.kind != "vision"
    full_logits = full_logits and not context.model.classes
    full_logits = full_logits and not kernels.compiled_loss
    logits = 4 * context.tokens * context.model.vocab / strategy.tp if full_logits else 0.0
    fragments = share["logits"] * logits + rank.blocks.largest.live
    if not streams and context.trains:  # gradients fill what activations leave
        recomputed = _made_again(rank)
        fragments *= (1 - recomputed) * share["reuse_none"] + recomputed * share["reuse_full"]
    if kernels.expandable_segments:
        fragments /= 2
    return round(min(fragments, sum(peak.values())) + streams + varies)


def _made_again(rank: Rank) -> float:
    """Share of the blocks' activations that backward makes again, so that they are not kept."""
    largest = rank.blocks.largest
    total = rank.stage.layers * (largest.live + largest.casts)
    return (
        min(1.0, max(0.0, 1 - (rank.blocks.on_card + rank.blocks.on_host) / total))
        if total
        else 0.0
    )
