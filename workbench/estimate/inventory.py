"""What one block's tensors weigh, by what keeps them: norms, attention, scores, MLP, adapters.

Checked tensor by tensor with saved_tensors_hooks under fake tensors (estimators.md 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import Strategy, Workload
from workbench.estimate.states import Widths, widths


@dataclass(frozen=True, slots=True)
class Shape:
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


def shape_of(workload: Workload, strategy: Strategy, width: Widths) -> Shape:
    """Sizes of this rank's share of one micro-batch."""
    tokens = workload.tokens / strategy.cp
    split = strategy.tp if strategy.sequence_parallel else 1
    residual = tokens * workload.model.hidden / split
    whole = tokens * workload.model.hidden if workload.kernels.gathered_inputs else residual
    return Shape(
        tokens=tokens,
        sequence=workload.sequence,
        residual=residual,
        gathered=whole,
        c=width.compute,
        r=4 if uses_autocast(workload, strategy) else width.compute,
        tp=strategy.tp,
    )


def keeps_input(workload: Workload, *targets: str) -> bool:
    """Whether a linear of these keeps its input: it does where it learns."""
    return not workload.lora_rank or bool(set(targets) & set(workload.lora_targets))


def keeps_fp8(workload: Workload) -> bool:
    """Whether linears keep their inputs in 8 bits."""
    return workload.precision == "fp8" and workload.kernels.fp8_inputs


def norms_bytes(workload: Workload, shape: Shape) -> float:
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
        if not keeps_input(workload, *targets):
            continue
        copies = 1
        if workload.lora_rank and casts_adapters(workload, shape):
            copies = len(set(targets) & set(workload.lora_targets))
        if shape.r != c:  # autocast: every linear casts the fp32 result for itself
            qkv = 1 if model.fused_qkv else 3
            copies = qkv if targets[0] == "q" else (2 if model.gated_mlp else 1)
        results += copies * (1 if keeps_fp8(workload) else c) * shape.gathered
    if model.parallel_block and model.norms_per_block == 1 and shape.r == c:
        results /= 2
    if workload.kernels.compiled:
        one = min(one, c * shape.residual)
    return model.norms_per_block * one + results


def attention_bytes(workload: Workload, shape: Shape) -> float:
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
    if keeps_fp8(workload):
        total += split * model.attention_width  # the output projection's own 8-bit input
    if model.qk_norm:
        upcast = workload.kernels.norm == "upcast" and not workload.kernels.compiled
        per_element = 4 + c if upcast else c
        total += per_element * (split * model.query_width + shape.tokens * model.key_width / kv)
    if model.kv_lora_rank:
        narrow = 2 * model.q_lora_rank + 2 * model.kv_lora_rank + model.rope_head_dim
        total += c * shape.tokens * narrow
    return total


def scores_bytes(workload: Workload, shape: Shape) -> float:
    """Attention scores that eager attention keeps, and a materialised mask."""
    model, c = workload.model, shape.c
    mask = c * shape.tokens * shape.sequence if workload.attention_mask else 0.0
    if workload.attention != "eager":
        return mask
    elements = shape.tokens * shape.sequence * model.heads / shape.tp
    per_element = c  # the softmax's result
    if softmax_in_fp32(workload, shape):
        per_element += 4  # its result, beside the copy in low precision
    if model.dropout:
        per_element += 1 + c
    return mask + per_element * elements


def softmax_in_fp32(workload: Workload, shape: Shape) -> bool:
    """Low-precision scores go through an fp32 softmax: Llama's own code, and any under autocast."""
    llama = workload.kernels.norm == "upcast" and workload.model.norm.startswith("rmsnorm")
    return shape.c == 2 and (llama or shape.r == 4)


def mlp_bytes(workload: Workload, shape: Shape, strategy: Strategy, *, moe: bool) -> float:
    """Intermediate results of the dense MLP, or of the experts with router and dispatch."""
    model = workload.model
    if not moe:
        width = model.mlp_hidden * shape.tokens / shape.tp
        return feed_forward(workload, shape, width, shape.tokens)
    top_k = model.experts_per_token
    split = strategy.expert_split
    rows = shape.tokens * top_k * split / shape.tp
    routed = feed_forward(workload, shape, rows * model.expert_hidden / split, rows)
    # What experts read and, unless the weighting is fused into the activation, what they return.
    read = 1 if keeps_fp8(workload) else shape.c
    returned = 0 if workload.kernels.grouped_experts else shape.c
    dispatched = (read + returned) * rows * model.hidden
    router = 4 * shape.tokens * model.experts
    shared = 0.0
    if model.shared_expert_hidden:
        wide = model.shared_expert_hidden * shape.tokens / shape.tp
        shared = feed_forward(workload, shape, wide, shape.tokens)
    return routed + dispatched + router + shared


def feed_forward(workload: Workload, shape: Shape, elements: float, tokens: float) -> float:
    """Intermediate results of one MLP: `elements` = tokens x inner width on this rank."""
    kernels, c = workload.kernels, shape.c
    if kernels.tiled_mlp:
        elements /= tiles(workload, tokens)
    product = 1.0 if keeps_input(workload, "down") else 0.0
    if keeps_fp8(workload):
        product /= c
    if not workload.model.gated_mlp:
        return (1 + product) * c * elements
    pieces = 2 if kernels.activation == "fused" or kernels.compiled else 3
    return (pieces + product) * c * elements


def tiles(workload: Workload, tokens: float) -> float:
    """Slices of a tiled MLP: as many as keep a slice's length near the hidden width (ALST)."""
    return max(1.0, tokens / workload.model.hidden)


def adapters_bytes(workload: Workload, shape: Shape) -> float:
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
        elif target == "o" and casts_adapters(workload, shape):
            total += shape.tokens * wide * shape.c
    return total


def casts_adapters(workload: Workload, shape: Shape) -> bool:
    """fp32 adapters on a low-precision base: each keeps its own copy of its input (PEFT)."""
    return shape.c == 2 and workload.precision != "bf16-pure" and workload.adapter_bytes != 2
