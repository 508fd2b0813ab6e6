"""What one transformer block keeps for backward, by name, and what its backward needs besides.

The inventory follows tensors that autograd saves, checked tensor by tensor with fake tensors: a
linear keeps its input only where its weight or adapter is trained, SDPA keeps q, k, v, its result
and the log-sum-exp, a plain-PyTorch RMSNorm keeps an fp32 copy.
Bytes are per micro-batch and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from workbench.estimate.attention import scoring_share
from workbench.estimate.context import RankContext
from workbench.estimate.elements import cast_elements
from workbench.estimate.inventory import (
    adapters_bytes,
    attention_bytes,
    mlp_bytes,
    norms_bytes,
    scores_bytes,
)
from workbench.estimate.stages import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """Bytes of one block on one rank for one micro-batch."""

    saved: Mapping[str, float]
    """Kept from forward to backward, by what keeps it; recomputed parts already left out."""
    boundary: float
    """The block's input, which full recompute keeps."""
    live: float
    """Everything one block holds while it is recomputed or run: `saved` without any recompute."""
    backward: float
    """Gradients and scratch alive at the worst moment of the block's backward, beyond `live`."""
    backward_from_host: float
    """The same where `saved` is in host memory: with what the operation fetches from there."""
    norm_backward: float
    """Scratch of one norm's backward on the residual stream, beyond everything saved."""
    casts: float
    """Low-precision copies of weights that autocast keeps until the end of backward."""

    @property
    def total(self) -> float:
        """All saved bytes, weight casts included."""
        return sum(self.saved.values()) + self.casts


_NO_BLOCK = BlockMemory(
    saved={},
    boundary=0.0,
    live=0.0,
    backward=0.0,
    backward_from_host=0.0,
    norm_backward=0.0,
    casts=0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBlocks:
    """Bytes of all blocks of one stage on one rank for one micro-batch."""

    largest: BlockMemory
    """The block that holds most."""
    on_card: float
    """What all blocks keep for backward on the card."""
    on_host: float = 0.0
    """What they keep in host memory."""


def stage_blocks(context: RankContext, stage: Stage) -> StageBlocks:
    """What the blocks of `stage` keep, recompute and offload taken into account."""
    if context.model.traced is not None:
        return _module(context)
    inventory = {kind.moe: _block(context, moe=kind.moe) for kind in stage.kinds}
    largest = max(
        inventory.values(), key=lambda block: block.live + block.backward, default=_NO_BLOCK
    )
    saved = sum(kind.trained * inventory[kind.moe].total for kind in stage.kinds)
    strategy = context.strategy
    if strategy.recompute == "full":
        boundaries = sum(kind.trained * inventory[kind.moe].boundary for kind in stage.kinds)
        share = stage.recomputed(strategy)
        saved = share * boundaries + (1 - share) * saved
    card = min(saved, 2 * largest.boundary) if "activations" in strategy.offload else saved
    return StageBlocks(largest=largest, on_card=card, on_host=saved - card)


def _block(context: RankContext, *, moe: bool) -> BlockMemory:
    """Inventory of one block; `moe` chooses the block with routed experts."""
    inventory = {
        "norms": norms_bytes(context),
        "attention": attention_bytes(context),
        "scores": scores_bytes(context),
        "mlp": mlp_bytes(context, moe=moe),
    }
    adapters = adapters_bytes(context)
    if adapters:
        inventory["adapters"] = adapters
    if context.model.dropout:
        inventory["dropout masks"] = 2 * context.residual
    saved, gradients = _after_selective(context, inventory, moe=moe), _gradients(context, moe=moe)
    if saved.get("scores"):  # a linear block keeps none: the mean of all blocks
        saved = {**saved, "scores": saved["scores"] * scoring_share(context.model)}
    flow = _residual_gradients(context)
    in_attention = gradients.attention + _of_scores(context, inventory)
    fetched = _fetched(context, inventory, saved, gradients, moe=moe)
    return BlockMemory(
        saved=saved,
        boundary=context.residual_bytes * context.residual,
        live=sum(inventory.values()),
        backward=max(gradients.mlp, in_attention - inventory["mlp"]) + flow,
        backward_from_host=max(gradients.mlp + fetched.mlp, in_attention + fetched.attention)
        + flow,
        norm_backward=_norm_backward(context),
        casts=2.0 * cast_elements(context, moe=moe) if context.autocast else 0.0,
    )


def _module(context: RankContext) -> StageBlocks:
    """A traced module, scaled to this batch.

    Traced bytes are per sample and without the loss; where they were not measured (no example
    inputs) activations count as 0 and the estimate's assumptions say so.
    """
    traced = context.model.traced
    assert traced is not None
    scale = context.workload.micro_batch * context.width.compute / traced.precision_bytes
    live = scale * (traced.largest_block_saved_bytes or 0)
    boundaries = scale * (traced.boundary_bytes or 0)
    saved = scale * (traced.saved_bytes or 0)
    if context.strategy.recompute == "full" and traced.boundary_bytes is not None:
        saved = max(0.0, boundaries + saved - traced.blocks * live)
    block = BlockMemory(
        saved={"block": live},
        boundary=boundaries / max(1, traced.blocks),
        live=live,
        norm_backward=0.0,
        backward=live / 2,  # gradients of what the block's widest operation keeps
        backward_from_host=live,
        casts=0.0,
    )
    return StageBlocks(largest=block, on_card=saved)


def _after_selective(
    context: RankContext, inventory: dict[str, float], *, moe: bool
) -> dict[str, float]:
    """The inventory without what selective recompute makes again."""
    if context.strategy.recompute != "selective":
        return inventory
    saved, parts = dict(inventory), context.strategy.recompute_parts
    if "op" in parts:
        return _every_second_matmul(context)
    if "attention" in parts:
        saved["scores"] = 0.0
    if "mlp" in parts or ("moe" in parts and moe):
        saved["mlp"] = 0.0
    if "norm" in parts:
        saved["norms"] = context.model.norms_per_block * context.width.compute * context.residual
    return saved


def _every_second_matmul(context: RankContext) -> dict[str, float]:
    """Op-level policy of torchtitan: matmuls 1, 3, 5, 7 of a block and SDPA's result are kept."""
    model, c, residual = context.model, context.width.compute, context.residual
    split = context.tokens / context.strategy.tp
    saved_widths = model.query_width + model.value_width + model.mlp_hidden
    return {
        "block input": context.residual_bytes * residual,
        # Eager mode also keeps the down projection's result, which nothing in backward needs.
        "matmuls": c * (split * saved_widths + residual * (not context.kernels.compiled)),
        "attention": split * (c * model.attention_width + 4 * model.heads),
    }


def _norm_backward(context: RankContext) -> float:
    """A plain-PyTorch RMSNorm's backward holds five fp32 tensors; a kernel only its gradients."""
    return (20 if context.upcasts_norms else 2 * context.residual_bytes) * context.residual


class _Operations(NamedTuple):
    """Bytes of the worst operation in backward of a block's two halves."""

    mlp: float
    attention: float


def _gradients(context: RankContext, *, moe: bool) -> _Operations:
    """Gradients alive at the worst operation of each half, those of the scores left out."""
    model, c, tokens = context.model, context.width.compute, context.tokens
    tp = context.strategy.tp
    # Beyond what is saved: the product's gradient; in eager mode also those of both its factors,
    # less the product itself, which the down projection has let go of by then.
    pieces = 2 if model.gated_mlp and context.kernels.activation == "separate" else 1
    if moe:
        rows = tokens * model.experts_per_token
        in_mlp = pieces * c * rows * model.expert_hidden + 2 * c * rows * model.hidden
    else:
        in_mlp = pieces * c * model.mlp_hidden * tokens / tp
    width = model.query_width + model.key_width + model.value_width + model.attention_width
    return _Operations(in_mlp / context.mlp_slices(tokens), c * tokens * width / tp)


def _of_scores(context: RankContext, inventory: Mapping[str, float]) -> float:
    """What attention's own backward adds: gradients of the scores, or flash's fp32 dq."""
    if context.workload.attention == "eager":
        # Gradients of the probabilities and of the scores; a low-precision copy of the
        # probabilities has been let go of by then.
        return (1 if context.softmax_in_fp32 else 2) * inventory["scores"]
    return 4 * context.tokens * context.model.query_width / context.strategy.tp


def _residual_gradients(context: RankContext) -> float:
    """Gradients of the residual stream beside those of any operation."""
    gathered = context.gathered if context.gathered > context.residual else 0.0
    return 2 * context.residual_bytes * context.residual + 2 * context.width.compute * gathered


def _fetched(
    context: RankContext,
    inventory: Mapping[str, float],
    saved: Mapping[str, float],
    gradients: _Operations,
    *,
    moe: bool,
) -> _Operations:
    """What the worst operation of each half reads of the tensors that are in host memory.

    The product's two factors with the product's gradient, which `_gradients` counts instead of
    the product; attention's inputs and result, as large as their gradients, and its scores. A half
    that is recomputed is on the card.
    """
    model, c, tokens = context.model, context.width.compute, context.tokens
    inner = model.mlp_hidden * tokens / context.strategy.tp
    if moe:
        inner = tokens * model.experts_per_token * model.expert_hidden
    mlp = (3 if model.gated_mlp else 2) * c * inner / context.mlp_slices(tokens)
    if not saved.get("mlp"):
        mlp = inventory["mlp"]
    return _Operations(mlp, gradients.attention + inventory["scores"])
