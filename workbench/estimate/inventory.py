"""What one block's tensors weigh, by what keeps them: norms, attention, scores, MLP, adapters.

Checked tensor by tensor with saved_tensors_hooks under fake tensors.
"""

from __future__ import annotations

from workbench.estimate.context import RankContext


def norms_bytes(context: RankContext) -> float:
    """Norms on the residual stream with the results that the linears behind them keep."""
    workload, model, c = context.workload, context.model, context.width.compute
    r, residual = context.residual_bytes, context.residual
    weighted = context.trains and not model.norm.endswith("-plain")
    norm = r * residual
    if context.upcasts_norms:
        norm = 4 * residual + (norm if weighted else 0)
    results = 0.0
    for targets in (("q", "k", "v"), ("gate", "up")):
        if not context.keeps_input(*targets):
            continue
        copies = 1
        if not context.trains and context.casts_adapters:
            copies = len(set(targets) & set(workload.lora_targets))
        if r != c:  # autocast: every linear casts the fp32 result for itself
            qkv = 1 if model.fused_qkv else 3
            copies = qkv if targets[0] == "q" else (2 if model.gated_mlp else 1)
        results += copies * (1 if context.keeps_fp8 else c) * context.gathered
    if model.parallel_block and model.norms_per_block == 1 and r == c:
        results /= 2
    if context.kernels.compiled:
        norm = min(norm, c * residual)
    return model.norms_per_block * norm + results


def attention_bytes(context: RankContext) -> float:
    """q, k, v, the result and the log-sum-exp; more when heads are expanded or normed."""
    workload, model, c = context.workload, context.model, context.width.compute
    tokens, tp = context.tokens, context.strategy.tp
    split = tokens / tp
    kv = min(tp, model.key_value_heads)
    keys = tokens * (model.key_width + model.value_width) / kv
    if workload.attention == "eager" or workload.attention_mask:
        keys *= model.heads // model.key_value_heads
    total = c * (split * (model.query_width + model.attention_width) + keys)
    if workload.attention != "eager":
        total += 4 * model.heads * split
    if context.keeps_fp8:
        total += split * model.attention_width  # the output projection's own 8-bit input
    if model.qk_norm:
        upcast = context.kernels.norm == "upcast" and not context.kernels.compiled
        per_element = 4 + c if upcast else c
        total += per_element * (split * model.query_width + tokens * model.key_width / kv)
    if model.attention_gate:  # the gate, and the gated result beside attention's own
        total += 2 * c * split * model.attention_width
    if model.kv_lora_rank:
        narrow = 2 * model.q_lora_rank + 2 * model.kv_lora_rank + model.rope_head_dim
        total += c * tokens * narrow
    return total


def scores_bytes(context: RankContext) -> float:
    """Attention scores that eager attention keeps, and a materialised mask."""
    workload, model, c = context.workload, context.model, context.width.compute
    pairs = context.tokens * workload.sequence
    mask = c * context.tokens * workload.sequence if workload.attention_mask else 0.0
    if workload.attention != "eager":
        return mask
    per_element = c  # the softmax's result
    if context.softmax_in_fp32:
        per_element += 4  # its result, beside the copy in low precision
    if model.dropout:
        per_element += 1 + c
    return mask + per_element * (pairs * model.heads / context.strategy.tp)


def mlp_bytes(context: RankContext, *, moe: bool) -> float:
    """Intermediate results of the dense MLP, or of the experts with router and dispatch."""
    model, strategy, tokens = context.model, context.strategy, context.tokens
    c, tp = context.width.compute, strategy.tp
    if not moe:
        return _feed_forward(context, model.mlp_hidden * tokens / tp, tokens)
    split = strategy.expert_split
    rows = tokens * model.experts_per_token * split / tp
    routed = _feed_forward(context, rows * model.expert_hidden / split, rows)
    # What experts read and, unless the activation weights their tokens, what they return.
    read = 1 if context.keeps_fp8 else c
    kernels = context.kernels
    returned = 0 if kernels.grouped_experts or kernels.weighted_activation else c
    dispatched = (read + returned) * rows * model.hidden
    shared = 0.0
    if model.shared_expert_hidden:
        shared = _feed_forward(context, model.shared_expert_hidden * tokens / tp, tokens)
    return routed + dispatched + 4 * tokens * model.experts + shared


def _feed_forward(context: RankContext, elements: float, tokens: float) -> float:
    """Intermediate results of one MLP: `elements` = tokens x inner width on this rank."""
    kernels, c = context.kernels, context.width.compute
    elements /= context.mlp_slices(tokens)
    product = 1.0 if context.keeps_input("down") else 0.0
    if context.keeps_fp8:
        product /= c
    if not context.model.gated_mlp:
        return (1 + product) * c * elements
    pieces = 2 if kernels.activation == "fused" or kernels.compiled else 3
    return (pieces + product) * c * elements


def adapters_bytes(context: RankContext) -> float:
    """What LoRA keeps besides: the narrow result, and its own copy of a dropped-out input."""
    workload, model, c = context.workload, context.model, context.width.compute
    if context.trains:
        return 0.0
    inputs = {"down": model.mlp_hidden or model.expert_hidden, "o": model.attention_width}
    total = 0.0
    for target in workload.lora_targets:
        if target == "head":
            continue
        wide = inputs.get(target, model.hidden)
        total += context.tokens * workload.lora_rank * c
        if context.kernels.lora_dropout:
            total += context.tokens * wide * (c + 1)
        elif target == "o" and context.casts_adapters:
            total += context.tokens * wide * c
    return total
