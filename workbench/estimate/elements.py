"""Weights of one rank, in elements: what tensor, pipeline and expert parallelism leave of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from workbench.describe import Model, Strategy, Traced
from workbench.describe.counting import Linear, WeightCounts, block_linears, weight_counts
from workbench.estimate.context import RankContext
from workbench.estimate.stages import BlockKind, Stage

REPLICATED = frozenset({"router", "q_a", "kv_a"})  # never split by tensor parallelism
LORA_LAYERS = {
    "q": {"q", "q_gate", "q_a", "q_b"},
    "k": {"k", "kv_a"},
    "v": {"v", "kv_b"},
    "o": {"o"},
    "gate": {"gate", "expert_gate", "shared_gate"},
    "up": {"up", "expert_up", "shared_up"},
    "down": {"down", "expert_down", "shared_down"},
}
_ATTENTION = frozenset({"q", "q_gate", "k", "v", "o", "q_a", "q_b", "kv_a", "kv_b"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Weights of one rank, in elements, before any sharding over data-parallel ranks."""

    block: int
    """Trained elements in blocks, experts left out."""
    experts: int = 0
    """Trained elements of this rank's routed experts."""
    root: int = 0
    """Trained elements of embedding, head and final norm."""
    largest_block: int
    """All elements (trained or not) of the largest block on this rank: what is gathered at once."""
    root_all: int = 0
    """All elements of embedding, head and final norm."""
    head_matrix: int = 0
    """Elements of the head's matrix alone."""
    frozen_linear: int = 0
    """Frozen elements in linear layers (may be quantized)."""
    frozen_other: int = 0
    """Frozen elements elsewhere."""
    frozen_experts: int = 0
    """Of `frozen_linear`, those of this rank's routed experts."""
    adapters: int = 0
    """Elements of LoRA adapters."""
    largest_linear: int = 0
    """Elements of the largest linear layer of a block."""

    @property
    def trained(self) -> int:
        """Everything that gets a gradient."""
        return self.block + self.experts + self.root + self.adapters


class _Split(NamedTuple):
    """Ranks that share the matrices of a block."""

    tp: int
    """Dense ones."""
    experts: int
    """All experts."""


class _Training(NamedTuple):
    """What of a stage is trained."""

    lora_rank: int
    lora_targets: tuple[str, ...]
    everything: bool
    """Not the last blocks and the head alone."""


def rank_elements(context: RankContext, stage: Stage) -> Elements:
    """Weights of one rank of `stage` after tensor and expert parallelism."""
    workload = context.workload
    last = workload.trained_layers
    everything = last is None or last >= workload.model.layers
    training = _Training(workload.lora_rank, workload.lora_targets, everything)
    return _elements(context.model, training, _split(context.strategy), stage.content)


def cast_elements(context: RankContext, *, moe: bool) -> int:
    """Weights of a block whose autocast copy stays until backward; recomputed parts cast again."""
    strategy = context.strategy
    parts = strategy.recompute_parts if strategy.recompute == "selective" else ()
    if "op" in parts:
        return 0
    return sum(
        split_linear(linear, context.model, strategy)
        for linear in block_linears(context.model, moe=moe)
        if "mlp" not in parts or linear.name in _ATTENTION
    )


def split_linear(linear: Linear, model: Model, strategy: Strategy) -> int:
    """Elements of one linear layer on one rank."""
    return _share(linear, model, _split(strategy))


def _split(strategy: Strategy) -> _Split:
    return _Split(strategy.tp, strategy.ep * strategy.expert_split)


def _share(linear: Linear, model: Model, split: _Split) -> int:
    if linear.name.startswith("expert_"):
        return linear.elements // split.experts
    if linear.name in REPLICATED:
        return linear.elements
    if linear.name in {"k", "v"}:
        return linear.elements // min(split.tp, model.key_value_heads)
    return linear.elements // split.tp


class _BlockElements(NamedTuple):
    """Elements of one block on one rank."""

    linear: int
    """Linear layers, experts among them."""
    experts: int
    norms: int


@functools.lru_cache(maxsize=4096)
def _elements(
    model: Model,
    training: _Training,
    split: _Split,
    content: tuple[tuple[BlockKind, ...], bool, bool],
) -> Elements:
    if model.traced is not None:
        return _of_module(model.traced)
    kinds, embedding, last = content
    counts, tp = weight_counts(model), split.tp
    blocks = {
        kind.moe: _block(model, counts.linears[kind.moe], counts.block_norms, split)
        for kind in kinds
    }
    linear = sum(kind.blocks * blocks[kind.moe].linear for kind in kinds)
    experts = sum(kind.blocks * blocks[kind.moe].experts for kind in kinds)
    norms = sum(kind.blocks * blocks[kind.moe].norms for kind in kinds)
    head = model.logit_width * model.hidden // tp if last else 0
    root = _root(model, counts, tp, embedding=embedding, last=last, head=head)
    own = not training.lora_rank  # else only the adapters learn
    root_trained = (root if training.everything else head) if own else 0
    trained = {kind.moe: kind.trained * own for kind in kinds}
    learned_linear = sum(trained[moe] * block.linear for moe, block in blocks.items())
    learned_experts = sum(trained[moe] * block.experts for moe, block in blocks.items())
    learned_norms = sum(trained[moe] * block.norms for moe, block in blocks.items())
    return Elements(
        block=learned_linear - learned_experts + learned_norms,
        experts=learned_experts,
        root=root_trained,
        largest_block=max(  # a last stage may hold the head alone (nanotron balances by FLOPs)
            (block.linear + block.norms for block in blocks.values()), default=0
        ),
        root_all=root,
        head_matrix=head,
        frozen_linear=linear - learned_linear,
        frozen_other=norms - learned_norms + root - root_trained,
        frozen_experts=experts - learned_experts,
        adapters=_adapters(model, training, kinds, head=last) // tp,
        largest_linear=max(
            (
                linear.inputs * linear.outputs // (1 if linear.name in REPLICATED else tp)
                for moe in blocks
                for linear in counts.linears[moe]
            ),
            default=0,
        ),
    )


def _block(model: Model, linears: tuple[Linear, ...], norms: int, split: _Split) -> _BlockElements:
    sizes = [
        (linear.name.startswith("expert_"), _share(linear, model, split)) for linear in linears
    ]
    return _BlockElements(
        sum(size for _, size in sizes), sum(size for expert, size in sizes if expert), norms
    )


def _root(
    model: Model, counts: WeightCounts, tp: int, *, embedding: bool, last: bool, head: int
) -> int:
    """Elements of embedding, final norm and head on this rank."""
    root = 0
    if embedding:
        vision = model.kind == "vision"
        root = model.extra_parameters + counts.embedding // (1 if vision else tp)
    if last:
        root += counts.final_norm + (counts.head - counts.final_norm) // tp
        root += head if model.tied_embeddings and not embedding else 0  # the last stage's copy
    return root


def _adapters(
    model: Model, training: _Training, kinds: tuple[BlockKind, ...], *, head: bool
) -> int:
    rank, targets = training.lora_rank, training.lora_targets
    names = {name for target in targets for name in LORA_LAYERS.get(target, ())}
    elements = sum(
        kind.blocks * (linear.inputs + linear.outputs) * linear.copies
        for kind in kinds
        for linear in block_linears(model, moe=kind.moe)
        if linear.name in names
    )
    if "head" in targets and head:
        elements += model.hidden + model.logit_width
    return rank * elements


def _of_module(traced: Traced) -> Elements:
    measured = traced.measured
    trained = traced.parameters if measured is None else measured.trained
    root = 0 if measured is None else measured.root
    return Elements(
        block=trained - min(root, trained),
        root=min(root, trained),
        largest_block=traced.largest_block_parameters,
        root_all=root,
        frozen_other=traced.parameters - trained,
    )
