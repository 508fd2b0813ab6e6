"""What one transformer block keeps for backward, by name, and what its backward needs besides.

The inventory follows tensors that autograd saves, checked tensor by tensor with fake tensors
(estimators.md 2.2): a linear keeps its input only where its weight or adapter is trained, SDPA
keeps q, k, v, its result and the log-sum-exp, a plain-PyTorch RMSNorm keeps an fp32 copy.
Bytes are per micro-batch and rank.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.describe import Model, Strategy, Workload
from workbench.describe.counting import block_linears
from workbench.estimate.inventory import (
    Shape,
    adapters_bytes,
    attention_bytes,
    mlp_bytes,
    norms_bytes,
    scores_bytes,
    shape_of,
    softmax_in_fp32,
    tiles,
    uses_autocast,
)
from workbench.estimate.stages import split_linear
from workbench.estimate.states import widths


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
    norm_backward: float
    """Scratch of one norm's backward on the residual stream, beyond everything saved."""
    casts: float
    """Low-precision copies of weights that autocast keeps until the end of backward."""

    @property
    def total(self) -> float:
        """All saved bytes, weight casts included."""
        return sum(self.saved.values()) + self.casts


@functools.lru_cache(maxsize=4096)
def block_memory(workload: Workload, strategy: Strategy, *, moe: bool) -> BlockMemory:
    """Inventory of one block; `moe` chooses the block with routed experts."""
    model, width = workload.model, widths(workload, strategy)
    shape = shape_of(workload, strategy, width)
    norms = norms_bytes(workload, shape)
    attention = attention_bytes(workload, shape)
    scores = scores_bytes(workload, shape)
    mlp = mlp_bytes(workload, shape, strategy, moe=moe)
    adapters = adapters_bytes(workload, shape)
    everything = {"norms": norms, "attention": attention, "scores": scores, "mlp": mlp}
    if adapters:
        everything["adapters"] = adapters
    if model.dropout:
        everything["dropout masks"] = 2 * shape.residual
    live = sum(everything.values())
    casts = 0.0
    if uses_autocast(workload, strategy):
        casts = 2.0 * _cast_elements(model, strategy, moe=moe)
    kept = _after_selective(everything, workload, strategy, shape)
    return BlockMemory(
        saved=kept,
        boundary=shape.r * shape.residual,
        live=live,
        backward=_backward(workload, shape, scores=scores, mlp=mlp, moe=moe),
        norm_backward=_norm_backward(workload, shape),
        casts=casts,
    )


def module_memory(workload: Workload, strategy: Strategy) -> tuple[BlockMemory, float]:
    """(largest block, bytes that all blocks keep) of a traced module, scaled to this batch.

    Traced bytes are per sample and without the loss; where they were not measured (no example
    inputs) activations count as 0 and the estimate's assumptions say so.
    """
    traced = workload.model.traced
    assert traced is not None
    scale = workload.micro_batch * widths(workload, strategy).compute / traced.precision_bytes
    live = scale * (traced.largest_block_saved_bytes or 0)
    boundaries = scale * (traced.boundary_bytes or 0)
    everything = scale * (traced.saved_bytes or 0)
    block = BlockMemory(
        saved={"block": live},
        boundary=boundaries / max(1, traced.blocks),
        live=live,
        norm_backward=0.0,
        backward=live / 2,  # gradients of what the block's widest operation keeps
        casts=0.0,
    )
    kept = everything
    if strategy.recompute == "full" and traced.boundary_bytes is not None:
        kept = max(0.0, boundaries + everything - traced.blocks * live)
    return block, kept


def _cast_elements(model: Model, strategy: Strategy, *, moe: bool) -> int:
    """Weights whose cast stays until backward: what is recomputed casts again."""
    parts = strategy.recompute_parts if strategy.recompute == "selective" else ()
    if "op" in parts:
        return 0
    outside = {"q", "k", "v", "o", "q_a", "q_b", "kv_a", "kv_b"}
    return sum(
        split_linear(one, model, strategy)
        for one in block_linears(model, moe=moe)
        if "mlp" not in parts or one.name in outside
    )


def _after_selective(
    everything: dict[str, float], workload: Workload, strategy: Strategy, shape: Shape
) -> dict[str, float]:
    if strategy.recompute != "selective":
        return everything
    kept = dict(everything)
    parts, model, c = strategy.recompute_parts, workload.model, shape.c
    if "op" in parts:
        return _every_second_matmul(workload, shape)
    if "attention" in parts:
        kept["scores"] = 0.0
    if "mlp" in parts or "moe" in parts:
        kept["mlp"] = 0.0
    if "norm" in parts:
        kept["norms"] = model.norms_per_block * c * shape.residual
    return kept


def _every_second_matmul(workload: Workload, shape: Shape) -> dict[str, float]:
    """Op-level policy of torchtitan: matmuls 1, 3, 5, 7 of a block and SDPA's result are kept."""
    model, c = workload.model, shape.c
    split = shape.tokens / shape.tp
    kept = model.query_width + model.value_width + model.mlp_hidden
    return {
        "block input": shape.r * shape.residual,
        # Eager mode also keeps the down projection's result, which nothing in backward needs.
        "matmuls": c * (split * kept + shape.residual * (not workload.kernels.compiled)),
        "attention": split * (c * model.attention_width + 4 * model.heads),
    }


def _norm_backward(workload: Workload, shape: Shape) -> float:
    """A plain-PyTorch RMSNorm's backward holds five fp32 tensors; a kernel only its gradients."""
    plain = workload.kernels.norm == "upcast" and workload.model.norm.startswith("rmsnorm")
    return (20 if plain else 2 * shape.r) * shape.residual


def _backward(workload: Workload, shape: Shape, *, scores: float, mlp: float, moe: bool) -> float:
    """Gradients alive at the worst moment of a block's backward: in the MLP or in attention."""
    model, c = workload.model, shape.c
    # Beyond what is saved: the product's gradient; in eager mode also those of both its factors,
    # less the product itself, which the down projection has let go of by then.
    pieces = 2 if model.gated_mlp and workload.kernels.activation == "separate" else 1
    if moe:
        rows = shape.tokens * model.experts_per_token
        in_mlp = pieces * c * rows * model.expert_hidden + 2 * c * rows * model.hidden
    else:
        in_mlp = pieces * c * model.mlp_hidden * shape.tokens / shape.tp
    if workload.kernels.tiled_mlp:
        in_mlp /= tiles(workload, shape.tokens)
    width = model.query_width + model.key_width + model.value_width + model.attention_width
    in_attention = c * shape.tokens * width / shape.tp
    if workload.attention == "eager":
        # Gradients of the probabilities and of the scores; a low-precision copy of the
        # probabilities has been let go of by then.
        in_attention += scores if softmax_in_fp32(workload, shape) else 2 * scores
    else:
        in_attention += 4 * shape.tokens * model.query_width / shape.tp  # flash: fp32 dq
    residual = 2 * shape.r * shape.residual
    gathered = 2 * c * shape.gathered if shape.gathered > shape.residual else 0.0
    return max(in_mlp, in_attention - mlp) + residual + gathered
