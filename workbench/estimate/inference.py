"""Memory of inference: weights, the cache of keys and values, activations of the prefill.

Cache per token and layer: keys and values of every key/value head (grouped-query attention), or
with multi-head latent attention the compressed latent and one rotary key (arXiv 2405.04434). A
layer with a window keeps its last tokens alone; a linear one a state, whatever the length.
"""

from __future__ import annotations

from pathlib import Path

from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.checks import plain, require_choice, require_positive
from workbench.describe.counting import block_linears
from workbench.describe.hardware import device_of
from workbench.describe.named_model import read_model
from workbench.describe.workload import QUANTIZATIONS
from workbench.errors import UsageError
from workbench.estimate.card import (
    CPU_CONTEXT_BYTES,
    CUDA_CONTEXT_BYTES,
    NCCL_BYTES,
    check_where,
)
from workbench.estimate.context import widths
from workbench.estimate.elements import split_linear
from workbench.estimate.memory import check_tensor
from workbench.estimate.parts import COMMUNICATION, CONTEXT, Estimate

PRECISIONS = ("fp32", "bf16", "fp16", "fp8")
WEIGHTS, CACHE, PREFILL = "weights", "KV cache", "activations: prefill"
STATES = "linear attention states"


def inference_memory(
    model: Model | str | Path,
    seq_len: int,
    batch: int = 1,
    *,
    precision: str = "bf16",
    quantization: str = "none",
    tp: int = 1,
    kv_bytes: int = 2,
    where: Cluster | str = "cuda",
) -> Estimate:
    """Memory of serving `batch` sequences of up to `seq_len` tokens, prompt and answer together.

    Args:
        model: What is served: a `Model`, a name of the catalog, a config.json or its folder.
        seq_len: Longest sequence that the cache holds; of a vision model, its patches count.
        batch: Sequences at a time.
        precision: fp32, bf16, fp16; fp8 stores the matrices in one byte.
        quantization: Storage of the matrices: none, int8, int4, nf4, nf4-dq.
        tp: Ranks that share the model.
        kv_bytes: Bytes per cached element: 2, or 1 for an fp8 cache.
        where: A cluster (its card decides whether it fits), or "cuda" or "cpu".

    Raises:
        UsageError: a value is not allowed, or `tp` leaves heads or columns over (as in training).
    """
    if not isinstance(model, Model):
        model, _ = read_model(model)
    check_where(where)
    seq_len, batch, tp, kv_bytes = map(plain, (seq_len, batch, tp, kv_bytes))
    _check(model, seq_len, batch, precision, quantization, tp, kv_bytes)
    tokens = Workload(model=model, seq_len=seq_len, micro_batch=batch).tokens
    parts = {
        WEIGHTS: _weights(model, precision, quantization, tp),
        CACHE: batch * cache_bytes(model, seq_len, tp=tp, kv_bytes=kv_bytes),
        STATES: batch * state_bytes(model, tp=tp),
        PREFILL: _prefill(model, tokens, batch, precision, tp),
    }
    device = device_of(where)
    context = {CONTEXT: CPU_CONTEXT_BYTES if device == "cpu" else CUDA_CONTEXT_BYTES}
    if tp > 1 and device != "cpu":
        context[COMMUNICATION] = NCCL_BYTES
    cards = () if isinstance(where, str) else where.gpus
    return Estimate(
        parts={name: size for name, size in parts.items() if size} | context,
        assumptions=_assumptions(model, precision, quantization, kv_bytes),
        peak="prefill",
        peaks={
            "prefill": sum(parts.values()),
            "decode": parts[WEIGHTS] + parts[CACHE] + parts[STATES],
        },
        card_bytes=min((card.memory_bytes for card in cards), default=None),
        sources=("cache: arXiv 2305.13245 (GQA), 2405.04434 (MLA)",),
    )


def _check(
    model: Model,
    seq_len: int,
    batch: int,
    precision: str,
    quantization: str,
    tp: int,
    kv_bytes: int,
) -> None:
    for name, value in (("seq_len", seq_len), ("batch", batch), ("tp", tp)):
        require_positive(name, value)
    model.check_sequence(seq_len)
    require_choice("precision", precision, PRECISIONS)
    require_choice("quantization", quantization, QUANTIZATIONS)
    if kv_bytes not in {1, 2, 4}:
        raise UsageError(f"kv_bytes must be 1 (fp8), 2 or 4, not {kv_bytes!r}.")
    if model.kind == "module":
        raise UsageError(
            f"{model.name} is a traced module: its inference is not described. "
            "Ask for a transformer of the catalog, or a config.json."
        )
    check_tensor(model, tp)


def cache_bytes(model: Model, seq_len: int, *, tp: int = 1, kv_bytes: int = 2) -> int:
    """Bytes that one sequence of `seq_len` tokens keeps in the cache of one rank; 0 without one.

    Heads are split over `tp` as far as there are key/value heads; MLA's latent is on every rank.
    A layer with a window or chunk keeps that many tokens at most.

    >>> cache_bytes(Model.catalog("gemma-3-27b"), 131_072) / 2**30  # 62 GiB if all kept everything
    10.40625
    """
    if model.kind != "decoder":
        return 0
    kept = model.full_layers * seq_len + model.windowed_layers * min(seq_len, model.window)
    if model.kv_lora_rank:
        return kept * (model.kv_lora_rank + model.rope_head_dim) * kv_bytes
    ways = min(tp, model.key_value_heads)
    return kept * ((model.key_width + model.value_width) // ways) * kv_bytes


def cache_bytes_per_token(model: Model, seq_len: int = 1, *, tp: int = 1, kv_bytes: int = 2) -> int:
    """Bytes that the last of `seq_len` tokens adds to the cache of one rank; 0 without a cache.

    Layers whose window is full by then add nothing.
    """
    shorter = cache_bytes(model, seq_len - 1, tp=tp, kv_bytes=kv_bytes)
    return cache_bytes(model, seq_len, tp=tp, kv_bytes=kv_bytes) - shorter


def state_bytes(model: Model, *, tp: int = 1) -> int:
    """Bytes of one sequence's states in the linear layers of one rank: split by heads over `tp`.

    The state is summed in fp32, the convolution's inputs are kept in two bytes.
    """
    return model.linear_layers * (4 * model.linear_state + 2 * model.linear_conv) // tp


def _weights(model: Model, precision: str, quantization: str, tp: int) -> int:
    stored = _stored_bytes(model, precision, quantization)
    other_width = 4 if precision == "fp32" else 2
    strategy = Strategy(name="tp", tp=tp)
    elements = matrices = 0
    for moe, count in ((False, model.layers - model.moe_layers), (True, model.moe_layers)):
        if count:
            linears = block_linears(model, moe=moe)
            matrices += count * sum(split_linear(linear, model, strategy) for linear in linears)
            elements += count * sum(linear.elements for linear in linears)
    other_elements = (model.parameters - elements) / tp  # embedding and head are split too
    return round(matrices * stored + other_elements * other_width)


def _stored_bytes(model: Model, precision: str, quantization: str) -> float:
    """Bytes per element of a block's matrices."""
    if quantization == "none":
        return {"fp32": 4, "fp8": 1}.get(precision, 2)
    frozen = Workload(model=model, seq_len=1, micro_batch=1, lora_rank=1, quantization=quantization)
    return widths(frozen, Strategy(name="single")).quantized


def _prefill(model: Model, tokens: int, batch: int, precision: str, tp: int) -> int:
    """What one block holds at once without autograd, and the logits of the last tokens in fp32."""
    c = 4 if precision == "fp32" else 2
    residual = 2 * model.hidden
    attention = (model.query_width + model.attention_width) / tp
    attention += (model.key_width + model.value_width) / min(tp, model.key_value_heads)
    mlp = (3 if model.gated_mlp else 2) * model.mlp_hidden / tp
    if model.experts:
        rows = model.experts_per_token
        routed = (3 * model.expert_hidden / tp + 2 * model.hidden) * rows
        mlp = max(mlp, routed + 3 * model.shared_expert_hidden / tp)
    logits = batch * model.vocab * (4 + c)
    return round(tokens * c * (residual + max(attention, mlp)) + logits)


def _assumptions(model: Model, precision: str, quantization: str, kv_bytes: int) -> tuple[str, ...]:
    stored = quantization if quantization != "none" else precision
    sentences = [
        f"matrices in {stored}, cache {kv_bytes} bytes per element, one whole prefill at a time",
        "logits of the last token only; fused attention; no paging or fragmentation of the cache",
    ]
    if model.kind != "decoder":
        sentences.append(f"{model.kind}: no cache, every sequence is computed whole")
    elif model.windowed_layers:
        sentences.append(
            f"{model.windowed_layers} of {model.layers} layers keep the last {model.window:,} "
            "tokens alone (a server without windows keeps all of them)"
        )
    if model.linear_layers:
        sentences.append(
            f"{model.linear_layers} of {model.layers} layers keep a state per sequence in fp32 and "
            "no keys or values"
        )
    if model.kv_lora_rank:
        sentences.append("MLA: the cache holds the compressed latent and the rotary key")
    return tuple(sentences)
