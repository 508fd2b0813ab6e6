"""What one transformer block keeps for backward, by name, and what its backward needs besides.

The inventory follows tensors that autograd saves, checked tensor by tensor with fake tensors
(estimators.md 2.2): a linear keeps its input only where its weight or adapter is trained, SDPA
keeps q, k, v, its result and the log-sum-exp, a plain-PyTorch RMSNorm keeps an fp32 copy.
Bytes are per micro-batch and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.describe import Model, Strategy, Workload
from workbench.describe.counting import block_linears
from workbench.estimate.stages import split_linear
from workbench.estimate.states import Widths, widths


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


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes per rank that all parts of the inventory share."""

    tokens: float
    sequence: float
    residual: float  # elements of one residual-wide tensor, split by sequence parallelism
    gathered: float  # the same before a linear of a sequence-parallel layer keeps it
    c: int  # bytes computed with
    r: int  # bytes of the residual stream
    tp: int


def uses_autocast(workload: Workload, strategy: Strategy) -> bool:
    """Whether fp32 weights are cast per operation (torch.autocast) instead of ahead of time."""
    if workload.kernels.separate_casts is not None:
        return workload.kernels.separate_casts
    width = widths(workload, strategy)
    sharded = strategy.shard_ranks > 1
    return width.weight == 4 and width.compute == 2 and not sharded and not workload.lora_rank


def block_memory(workload: Workload, strategy: Strategy, *, moe: bool) -> BlockMemory:
    """Inventory of one block; `moe` chooses the block with routed experts."""
    model, width = workload.model, widths(workload, strategy)
    shape = _shape(workload, strategy, width)
    norms = _norms(workload, shape)
    attention = _attention(workload, shape)
    scores = _scores(workload, shape)
    mlp = _mlp(workload, shape, strategy, moe=moe)
    adapters = _adapters(workload, shape)
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


def _shape(workload: Workload, strategy: Strategy, width: Widths) -> _Shape:
    tokens = workload.tokens / strategy.cp
    split = strategy.tp if strategy.sequence_parallel else 1
    residual = tokens * workload.model.hidden / split
    whole = tokens * workload.model.hidden if workload.kernels.gathered_inputs else residual
    return _Shape(
        tokens=tokens,
        sequence=workload.sequence,
        residual=residual,
        gathered=whole,
        c=width.compute,
        r=4 if uses_autocast(workload, strategy) else width.compute,
        tp=strategy.tp,
    )


def _keeps_input(workload: Workload, *targets: str) -> bool:
    """Whether a linear of these keeps its input: it does where it learns."""
    return not workload.lora_rank or bool(set(targets) & set(workload.lora_targets))


def _norms(workload: Workload, shape: _Shape) -> float:
    """Norms on the residual stream with the results that the linears behind them keep."""
    model, c = workload.model, shape.c
    trained = not workload.lora_rank
    weighted = trained and not model.norm.endswith("-plain")
    if model.norm.startswith("rmsnorm") and workload.kernels.norm == "upcast":
        one = 4 * shape.residual + (shape.r * shape.residual if weighted else 0)
    else:
        one = shape.r * shape.residual
    readers = [("q", "k", "v"), ("gate", "up")]
    results = 0.0
    for targets in readers:
        if not _keeps_input(workload, *targets):
            continue
        copies = 1
        if workload.lora_rank and _casts_adapters(workload, shape):
            copies = len(set(targets) & set(workload.lora_targets))
        if shape.r != c:  # autocast: every linear casts the fp32 result for itself
            qkv = 1 if model.fused_qkv else 3
            copies = qkv if targets[0] == "q" else (2 if model.gated_mlp else 1)
        results += copies * c * shape.gathered
    if model.parallel_block and model.norms_per_block == 1 and shape.r == c:
        results /= 2
    if workload.kernels.compiled:
        one = min(one, c * shape.residual)
    return model.norms_per_block * one + results


def _attention(workload: Workload, shape: _Shape) -> float:
    """q, k, v, the result and the log-sum-exp; more when heads are expanded or normed."""
    model, c, split = workload.model, shape.c, shape.tokens / shape.tp
    kv = min(shape.tp, model.key_value_heads)
    keys = shape.tokens * (model.key_width + model.value_width) / kv
    if workload.attention == "eager" or workload.attention_mask:
        expand = model.heads // model.key_value_heads
        keys *= expand
    total = c * (split * (model.query_width + model.attention_width) + keys)
    if workload.attention != "eager":
        total += 4 * model.heads * split
    if model.qk_norm:
        upcast = workload.kernels.norm == "upcast" and not workload.kernels.compiled
        per_element = 4 + c if upcast else c
        total += per_element * (split * model.query_width + shape.tokens * model.key_width / kv)
    if model.kv_lora_rank:
        narrow = 2 * model.q_lora_rank + 2 * model.kv_lora_rank + model.rope_head_dim
        total += c * shape.tokens * narrow
    return total


def _scores(workload: Workload, shape: _Shape) -> float:
    """Attention scores that eager attention keeps, and a materialised mask."""
    model, c = workload.model, shape.c
    mask = c * shape.tokens * shape.sequence if workload.attention_mask else 0.0
    if workload.attention != "eager":
        return mask
    elements = shape.tokens * shape.sequence * model.heads / shape.tp
    per_element = c  # the softmax's result
    if _softmax_in_fp32(workload, shape):
        per_element += 4  # its result, beside the copy in low precision
    if model.dropout:
        per_element += 1 + c
    return mask + per_element * elements


def _softmax_in_fp32(workload: Workload, shape: _Shape) -> bool:
    """Low-precision scores go through an fp32 softmax: Llama's own code, and any under autocast."""
    llama = workload.kernels.norm == "upcast" and workload.model.norm.startswith("rmsnorm")
    return shape.c == 2 and (llama or shape.r == 4)


def _mlp(workload: Workload, shape: _Shape, strategy: Strategy, *, moe: bool) -> float:
    model = workload.model
    if not moe:
        width = model.mlp_hidden * shape.tokens / shape.tp
        return _feed_forward(workload, shape, width, shape.tokens)
    top_k = model.experts_per_token
    rows = shape.tokens * top_k / (shape.tp if strategy.ep > 1 else 1)
    split = 1 if strategy.ep > 1 else shape.tp
    routed = _feed_forward(workload, shape, rows * model.expert_hidden / split, rows)
    dispatched = 2 * shape.c * rows * model.hidden  # what experts read and what they return
    router = 4 * shape.tokens * model.experts
    shared = 0.0
    if model.shared_expert_hidden:
        wide = model.shared_expert_hidden * shape.tokens / shape.tp
        shared = _feed_forward(workload, shape, wide, shape.tokens)
    return routed + dispatched + router + shared


def _feed_forward(workload: Workload, shape: _Shape, elements: float, tokens: float) -> float:
    """Intermediate results of one MLP: `elements` = tokens x inner width on this rank."""
    kernels, c = workload.kernels, shape.c
    if kernels.tiled_mlp:
        elements /= _tiles(workload, tokens)
    product = 1 if _keeps_input(workload, "down") else 0
    if not workload.model.gated_mlp:
        return (1 + product) * c * elements
    pieces = 2 if kernels.activation == "fused" or kernels.compiled else 3
    return (pieces + product) * c * elements


def _tiles(workload: Workload, tokens: float) -> float:
    """Slices of a tiled MLP: as many as keep a slice's length near the hidden width (ALST)."""
    return max(1.0, tokens / workload.model.hidden)


def _adapters(workload: Workload, shape: _Shape) -> float:
    """What LoRA keeps besides: the narrow result, and its own copy of a dropped-out input."""
    if not workload.lora_rank:
        return 0.0
    model = workload.model
    inputs = {"down": model.mlp_hidden or model.expert_hidden, "o": model.attention_width}
    total = 0.0
    for target in workload.lora_targets:
        if target == "head":
            continue
        wide = inputs.get(target, model.hidden)
        total += shape.tokens * workload.lora_rank * shape.c
        if workload.kernels.lora_dropout:
            total += shape.tokens * wide * (shape.c + 1)
        elif target == "o" and _casts_adapters(workload, shape):
            total += shape.tokens * wide * shape.c
    return total


def _casts_adapters(workload: Workload, shape: _Shape) -> bool:
    """fp32 adapters on a low-precision base: each keeps its own copy of its input (PEFT)."""
    return shape.c == 2 and workload.precision != "bf16-pure" and workload.adapter_bytes != 2


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
    everything: dict[str, float], workload: Workload, strategy: Strategy, shape: _Shape
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
        kept["mlp"] = 0.0 if "mlp" in parts else kept["mlp"] * 0.0
    if "norm" in parts:
        kept["norms"] = model.norms_per_block * c * shape.residual
    return kept


def _every_second_matmul(workload: Workload, shape: _Shape) -> dict[str, float]:
    """Op-level policy of torchtitan: matmuls 1, 3, 5, 7 of a block and SDPA's result are kept."""
    model, c = workload.model, shape.c
    split = shape.tokens / shape.tp
    kept = model.query_width + model.value_width + model.mlp_hidden
    return {
        "block input": shape.r * shape.residual,
        "matmuls": c * (split * kept + shape.residual),
        "attention": split * (c * model.attention_width + 4 * model.heads),
    }


def _norm_backward(workload: Workload, shape: _Shape) -> float:
    """A plain-PyTorch RMSNorm's backward holds five fp32 tensors; a kernel only its gradients."""
    plain = workload.kernels.norm == "upcast" and workload.model.norm.startswith("rmsnorm")
    return (20 if plain else 2 * shape.r) * shape.residual


def _backward(workload: Workload, shape: _Shape, *, scores: float, mlp: float, moe: bool) -> float:
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
        in_mlp /= _tiles(workload, shape.tokens)
    width = model.query_width + model.key_width + model.value_width + model.attention_width
    in_attention = c * shape.tokens * width / shape.tp
    if workload.attention == "eager":
        # Gradients of the probabilities and of the scores; a low-precision copy of the
        # probabilities has been let go of by then.
        in_attention += scores if _softmax_in_fp32(workload, shape) else 2 * scores
    else:
        in_attention += 4 * shape.tokens * model.query_width / shape.tp  # flash: fp32 dq
    residual = 2 * shape.r * shape.residual
    gathered = 2 * c * shape.gathered if shape.gathered > shape.residual else 0.0
    return max(in_mlp, in_attention - mlp) + residual + gathered
