"""Parameter counts by named part and the linear layers of a block: plain arithmetic on a `Model`.

Golden numbers: tests/describe/test_catalog.py compares every catalog row with its published count.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from workbench.describe.model import Model


class Linear(NamedTuple):
    """One weight matrix of a block."""

    name: str
    """q, k, v, q_gate, o, gate, up, down (MLA: q_a, q_b, kv_a, kv_b), router, expert_…, shared_…"""
    inputs: int
    """Columns."""
    outputs: int
    """Rows."""
    copies: int
    """How many of them the block has (experts), else 1."""
    bias: bool
    """Whether it has a bias of `outputs` elements."""

    @property
    def weight(self) -> int:
        """Elements of all copies' weights, without biases."""
        return self.inputs * self.outputs * self.copies

    @property
    def elements(self) -> int:
        """Elements of all copies, biases included."""
        return (self.inputs + self.bias) * self.outputs * self.copies


class WeightCounts(NamedTuple):
    """Elements of a model before any split, by what holds them."""

    linears: dict[bool, tuple[Linear, ...]]
    """Weight matrices of one block: without (False) and with routed experts (True)."""
    block_norms: int
    """All norms of one block."""
    embedding: int
    """In front of the first block."""
    head: int
    """Behind the last block, final norm included."""
    final_norm: int
    """The final norm alone."""


@functools.lru_cache(maxsize=256)
def weight_counts(model: Model) -> WeightCounts:
    """All counts that a rank's share follows from."""
    return WeightCounts(
        linears={moe: block_linears(model, moe=moe) for moe in (False, True)},
        block_norms=block_norms(model),
        embedding=embedding_parameters(model),
        head=head_parameters(model),
        final_norm=norm_parameters(model) if model.final_norm else 0,
    )


@functools.lru_cache(maxsize=256)
def block_linears(model: Model, *, moe: bool) -> tuple[Linear, ...]:
    """The weight matrices of one block; `moe` chooses the block with routed experts."""
    return (*_attention(model), *_mlp(model, moe=moe))


def _attention(model: Model) -> tuple[Linear, ...]:
    h, bias = model.hidden, model.qkv_bias
    out = Linear("o", model.attention_width, h, 1, model.out_bias)
    if not model.kv_lora_rank:
        gates = (Linear("q_gate", h, model.attention_width, 1, bias),)
        gate = gates if model.attention_gate else ()
        return (
            Linear("q", h, model.query_width, 1, bias),
            Linear("k", h, model.key_width, 1, bias),
            Linear("v", h, model.value_width, 1, bias),
            *gate,
            out,
        )
    rank, heads = model.kv_lora_rank, model.heads
    queries = (
        (
            Linear("q_a", h, model.q_lora_rank, 1, bias=False),
            Linear("q_b", model.q_lora_rank, model.query_width, 1, bias=False),
        )
        if model.q_lora_rank
        else (Linear("q", h, model.query_width, 1, bias=False),)
    )
    values = heads * (model.head_width + model.value_head_dim)
    return (
        *queries,
        Linear("kv_a", h, rank + model.rope_head_dim, 1, bias=False),
        Linear("kv_b", rank, values, 1, bias=False),
        out,
    )


def _mlp(model: Model, *, moe: bool) -> tuple[Linear, ...]:
    h = model.hidden
    if not moe:
        return _feed_forward("", h, model.mlp_hidden, 1, gated=model.gated_mlp, bias=model.mlp_bias)
    gated = model.gated_mlp
    routed = _feed_forward(
        "expert_", h, model.expert_hidden, model.experts, gated=gated, bias=False
    )
    shared = (
        _feed_forward("shared_", h, model.shared_expert_hidden, 1, gated=gated, bias=False)
        if model.shared_expert_hidden
        else ()
    )
    return (Linear("router", h, model.experts, 1, bias=False), *routed, *shared)


def _feed_forward(
    prefix: str, h: int, width: int, copies: int, *, gated: bool, bias: bool
) -> tuple[Linear, ...]:
    names = ("gate", "up") if gated else ("up",)
    into = tuple(Linear(f"{prefix}{name}", h, width, copies, bias) for name in names)
    return (*into, Linear(f"{prefix}down", width, h, copies, bias))


def norm_parameters(model: Model) -> int:
    """Elements of one norm on the residual stream."""
    factor = {"rmsnorm": 1, "layernorm": 2, "layernorm-no-bias": 1}
    return factor.get(model.norm, 0) * model.hidden


def block_norms(model: Model) -> int:
    """Elements of all norms in one block, per-head and MLA norms included."""
    total = model.norms_per_block * norm_parameters(model)
    if model.qk_norm:
        total += 2 * model.head_width
    if model.qk_norm_full:
        total += model.query_width + model.key_width
    return total + model.q_lora_rank + model.kv_lora_rank


def block_parameters(model: Model, *, moe: bool) -> int:
    """Elements of one block."""
    return sum(linear.elements for linear in block_linears(model, moe=moe)) + block_norms(model)


def largest_block_parameters(model: Model) -> int:
    """Elements of the largest block: what FSDP or ZeRO-3 gathers at once."""
    if model.traced is not None:
        return model.traced.largest_block_parameters
    dense = block_parameters(model, moe=False) if model.moe_layers < model.layers else 0
    return max(dense, block_parameters(model, moe=True) if model.experts else 0)


def embedding_parameters(model: Model) -> int:
    """Elements in front of the first block: token, position and type tables, or patches."""
    h = model.hidden
    if model.kind == "vision":
        patches = (model.image_size // model.patch_size) ** 2
        return 3 * model.patch_size**2 * h + h + h + (patches + 1) * h
    norm = norm_parameters(model) if model.embedding_norm else 0
    return (model.vocab + model.max_positions + model.token_types) * h + norm


def head_parameters(model: Model) -> int:
    """Elements behind the last block: final norm, head, MLM transform, pooler."""
    h = model.hidden
    total = norm_parameters(model) if model.final_norm else 0
    if model.kind == "vision":
        return total + h * model.vocab + model.vocab
    if not model.tied_embeddings:
        total += model.logit_width * h
    if model.head_bias:
        total += model.logit_width
    if model.mlm_head:
        total += h * h + h + norm_parameters(model)
    if model.pooler:
        total += h * h + h
    return total


def parameter_parts(model: Model) -> dict[str, int]:
    """Parameters by part; they sum to ``model.parameters``."""
    if model.traced is not None:
        return {"module": model.traced.parameters}
    dense = model.layers - model.moe_layers
    parts = {"embedding": embedding_parameters(model)}
    if dense:
        parts["dense blocks"] = dense * block_parameters(model, moe=False)
    if model.moe_layers:
        parts["MoE blocks"] = model.moe_layers * block_parameters(model, moe=True)
    parts["head"] = head_parameters(model)
    if model.extra_parameters:
        parts["other"] = model.extra_parameters
    return parts


def active_parameters(model: Model) -> int:
    """Parameters that one token passes through (MoE: only the experts it visits)."""
    idle = model.experts - model.experts_per_token
    expert = sum(
        linear.inputs * linear.outputs
        for linear in (block_linears(model, moe=True) if model.experts else ())
        if linear.name.startswith("expert_")
    )
    return model.parameters - model.moe_layers * idle * expert
