"""Memory-bound work: bytes that pointwise operations of one block read and write.

Counted pass by pass from what the implementations launch: transformers' eager Llama (norms in
plain PyTorch, separate activation and rotary embedding), fused kernels (Liger, TE, Apex,
FlashAttention's layers) and compiled chains. Backward moves about twice forward's bytes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from workbench.describe import Strategy, Workload
from workbench.describe.counting import block_linears
from workbench.estimate.attention import scoring_share
from workbench.estimate.fitted import fitted
from workbench.estimate.flops import block_products

UNPACKING = {"int4": 11.0}
"""Operations beside the product of one quantized linear, 4 where not named: unpacking constants and
weights, casting input and result (bitsandbytes' MatMul4Bit). GPTQ's weights are shifted, cast,
masked, moved by their zeros and scaled one operation after another, their zeros too (AutoGPTQ
auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py forward)."""


class Traffic(NamedTuple):
    """Of one block, one micro-batch and one rank."""

    forward: float
    """Bytes read and written in forward."""
    backward: float
    """The same in backward."""
    launches: float
    """Operations that the host launches in forward (backward: twice as many)."""


class _Counted(NamedTuple):
    """Of one block: what is counted from the implementation, free of fitted constants."""

    moved: float
    """Bytes of forward; backward moves twice as many."""
    routed: float
    """Bytes of one pass over routed tokens where nothing fuses the passes."""
    merged: float
    """Elements of partial results that ring attention merges."""
    casts: float
    """Bytes of fp8's casts, the same in forward and backward."""
    unpacked: float
    """Quantized weights that are unpacked in forward, bitsandbytes' again in backward."""
    launches: float
    """Operations of forward."""


def block_traffic(workload: Workload, strategy: Strategy, *, moe: bool) -> Traffic:
    """Bytes and launches of one block."""
    counted = _counted(workload, strategy, moe=moe)
    looped = fitted("looped_passes")
    looped += fitted("quantized_passes") * (workload.precision == "fp8")
    forward = counted.moved + counted.routed * looped
    forward += counted.merged * fitted("merge")
    if workload.quantization == "int4":  # autograd keeps the matrix that forward unpacked
        unpacked, again = counted.unpacked * fitted("unpack_separate"), 0.0
    else:
        unpacked = again = counted.unpacked * fitted("unpack")
    return Traffic(
        forward + counted.casts + unpacked,
        2.0 * forward + counted.casts + again,
        counted.launches,
    )


@functools.lru_cache(maxsize=4096)
def _counted(workload: Workload, strategy: Strategy, *, moe: bool) -> _Counted:
    model, kernels = workload.model, workload.kernels
    tokens = workload.tokens / strategy.cp
    residual = tokens / (strategy.tp if strategy.sequence_parallel else 1)
    split = tokens / strategy.tp
    c = workload.compute_bytes
    plain_norm = (
        kernels.norm == "upcast" and not kernels.compiled and model.norm.startswith("rmsnorm")
    )
    norm = (26.0 if plain_norm else 2.0 * c) * model.norms_per_block
    adds = 3.0 * c * 2 if not kernels.compiled else 2.0 * c * 2
    dropout = (2.0 * c + 1) * 2 if model.dropout else 0.0
    forward = residual * model.hidden * (norm + adds + dropout)
    forward += split * _attention_passes(workload, c)
    mlp, routed = _mlp_passes(workload, strategy, c, tokens, moe=moe)
    forward += mlp
    forward += _adapter_passes(workload, strategy, c, tokens, moe=moe)
    launches = 9.0 + 4 * model.norms_per_block * (2 if plain_norm else 0.5)
    launches += 0 if kernels.compiled else 10 + 8 * (model.position == "rope")
    launches += 14.0 * moe + 3.0 * (strategy.tp > 1)
    launches += _adapter_launches(workload)
    linears = block_linears(model, moe=moe) if workload.quantization != "none" else ()
    launches += UNPACKING.get(workload.quantization, 4.0) * len(linears)
    return _Counted(
        moved=forward,
        routed=routed,
        merged=split * model.attention_width * (strategy.cp - 1),  # of the ring's rounds
        casts=_casts(workload, strategy, c, tokens, moe=moe),
        unpacked=sum(linear.weight for linear in linears) / strategy.tp,
        launches=launches,
    )


def _adapter_launches(workload: Workload) -> float:
    """Operations of a block's adapters in forward (peft/tuners/lora/layer.py Linear.forward).

    A, B, scaling, adding, casts of input and result; dropout; fp32 adapters under autocast are cast
    before each product. Counted with peft 0.21: 7 and 9 beside dropout's own on a CPU.
    """
    if not workload.lora_rank:
        return 0.0
    fp32 = workload.compute_bytes == 2 and not workload.precision.endswith("-pure")
    autocast = 2.0 * (fp32 and workload.adapter_bytes != 2)
    return len(workload.lora_targets) * (6.0 + autocast + workload.kernels.lora_dropout)


def _attention_passes(workload: Workload, c: int) -> float:
    """Rotary embedding, q/k norms, and the scores where they are materialised; bytes per token."""
    model, kernels = workload.model, workload.kernels
    width = model.query_width + model.key_width
    fused = kernels.activation == "fused" or kernels.compiled
    total = 0.0
    if model.position == "rope":
        total += (2.0 if fused else 10.0) * c * width
    if model.qk_norm or model.qk_norm_full:
        total += (2.0 * c if fused else 26.0) * width
    if workload.attention == "eager":
        one_kernel = kernels.norm == "fused"  # scale, mask and softmax together (Megatron)
        passes = 4.0 * c if one_kernel else 6.0 * c + 8.0
        total += passes * model.heads * workload.sequence * scoring_share(model)
    return total


def _mlp_passes(
    workload: Workload, strategy: Strategy, c: int, tokens: float, *, moe: bool
) -> tuple[float, float]:
    """Activation (and gate) of the MLP; one separate pass over routed tokens.

    Permutation and weighting take 6 passes in fused kernels, `looped_passes` otherwise.
    """
    model, kernels = workload.model, workload.kernels
    fused = kernels.activation == "fused" or kernels.compiled
    per_element = ((3.0 if fused else 5.0) if model.gated_mlp else (2.0 if fused else 3.0)) * c
    if not moe:
        return per_element * tokens / strategy.tp * model.mlp_hidden, 0.0
    slots = tokens * model.experts_per_token
    inner = slots / strategy.tp * model.expert_hidden  # split by experts' ranks or by tp alike
    shared = tokens / strategy.tp * model.shared_expert_hidden
    rows = slots * strategy.expert_split / strategy.tp
    once = c * rows * model.hidden
    moved = per_element * (inner + shared) + 16.0 * tokens * model.experts
    return (moved + 6.0 * once, 0.0) if kernels.grouped_experts else (moved, once)


def _casts(workload: Workload, strategy: Strategy, c: int, tokens: float, *, moe: bool) -> float:
    """fp8: inputs are scaled and stored in 8 bits, twice (transposed)."""
    total = 0.0
    linears = block_linears(workload.model, moe=moe)
    if workload.precision == "fp8":
        width = sum(linear.inputs for linear in linears if not linear.name.startswith("expert_"))
        total += (c + 2.0) * tokens * width / strategy.tp
        if moe:
            slots = tokens * workload.model.experts_per_token / strategy.tp
            wide = slots * (workload.model.hidden + workload.model.expert_hidden)
            total += (c + 2.0) * wide * (1 if workload.kernels.grouped_experts else 2)
    return total


def _adapter_passes(
    workload: Workload, strategy: Strategy, c: int, tokens: float, *, moe: bool
) -> float:
    """LoRA beside each adapted product: dropout of its input, scaling and adding its result."""
    if not workload.lora_rank:
        return 0.0
    total = 0.0
    for product in block_products(workload, strategy, moe=moe):
        if product.adapter:
            dropped = (2.0 * c + 1) * workload.kernels.lora_dropout
            total += tokens * (dropped * product.k + 6.0 * c * product.n)
    return total
