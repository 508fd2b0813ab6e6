"""Which blocks a pipeline stage holds, how many micro-batches are in flight on it, and its weights.

In flight on stage i of p with m micro-batches: GPipe m; 1F1B min(p - i, m); interleaved with v
chunks 2(p - i - 1) + (v - 1) p + 1 chunks of 1/v stage each (arXiv 2205.05198 and 2104.04473);
zero-bubble (ZB-H1, arXiv 2401.10241) min(p, m) on every stage.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from workbench.describe import Model, Strategy, Workload
from workbench.describe.counting import (
    Linear,
    block_linears,
    block_norms,
    embedding_parameters,
    head_parameters,
    norm_parameters,
)
from workbench.errors import UsageError

REPLICATED = frozenset({"router", "q_a", "kv_a"})  # never split by tensor parallelism
LORA_LAYERS = {
    "q": {"q", "q_a", "q_b"},
    "k": {"k", "kv_a"},
    "v": {"v", "kv_b"},
    "o": {"o"},
    "gate": {"gate", "expert_gate", "shared_gate"},
    "up": {"up", "expert_up", "shared_up"},
    "down": {"down", "expert_down", "shared_down"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage; without pipeline the whole model."""

    index: int
    """0 = the stage with the embedding."""
    dense: int
    """Dense blocks."""
    moe: int
    """Blocks with routed experts."""
    embedding: bool
    """Holds the embedding."""
    head: bool
    """Holds final norm, head and loss."""
    in_flight: float
    """Micro-batches whose activations are alive at most, in units of this stage."""

    @property
    def layers(self) -> int:
        """Blocks of both kinds."""
        return self.dense + self.moe

    @property
    def content(self) -> tuple[int, int, bool, bool]:
        """What it holds: stages of equal content differ in nothing but `in_flight`."""
        return self.dense, self.moe, self.embedding, self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Weights of one rank, in elements, before any sharding over data-parallel ranks."""

    block: int
    """Trained elements in blocks, experts left out."""
    experts: int
    """Trained elements of this rank's routed experts."""
    root: int
    """Trained elements of embedding, head and final norm."""
    largest_block: int
    """All elements (trained or not) of the largest block on this rank: what is gathered at once."""
    root_all: int
    """All elements of embedding, head and final norm."""
    head_matrix: int
    """Elements of the head's matrix alone."""
    frozen_linear: int
    """Frozen elements in linear layers (may be quantized)."""
    frozen_other: int
    """Frozen elements elsewhere."""
    adapters: int
    """Elements of LoRA adapters."""
    largest_linear: int
    """Elements of the largest linear layer of a block."""

    @property
    def trained(self) -> int:
        """Everything that gets a gradient."""
        return self.block + self.experts + self.root + self.adapters


def stages(model: Model, strategy: Strategy, accumulate: int) -> tuple[Stage, ...]:
    """All pipeline stages of `model` under `strategy` with `accumulate` micro-batches.

    Blocks are dealt as evenly as possible, the earlier stages taking the remainder.

    Raises:
        UsageError: more stages than blocks, or virtual stages that do not fit.
    """
    parts = strategy.pp * strategy.pipeline.virtual_stages
    if model.traced is not None:
        if strategy.pp > 1 or strategy.tp > 1:
            raise UsageError("A traced module can be estimated for data parallelism only.")
        return (Stage(index=0, dense=0, moe=0, embedding=True, head=True, in_flight=1),)
    kinds = [False] * (model.layers - model.moe_layers) + [True] * model.moe_layers
    chunks: list[list[bool]] = []
    start = 0
    for size in chunk_sizes(model.layers, strategy):
        chunks.append(kinds[start : start + size])
        start += size
    result: list[Stage] = []
    for index in range(strategy.pp):
        mine = [kind for part in range(index, parts, strategy.pp) for kind in chunks[part]]
        result.append(
            Stage(
                index=index,
                dense=mine.count(False),
                moe=mine.count(True),
                embedding=index == 0,
                head=index == strategy.pp - 1,
                in_flight=_in_flight(strategy, index, accumulate),
            )
        )
    return tuple(result)


def chunk_sizes(layers: int, strategy: Strategy) -> list[int]:
    """Blocks of each piece of the model, in the order of the forward pass.

    Raises:
        UsageError: more pieces than blocks.
    """
    virtual = strategy.pipeline.virtual_stages
    parts = strategy.pp * virtual
    if parts > layers:
        raise UsageError(
            f"{strategy.pp} stages x {virtual} chunks need at least {parts} "
            f"blocks; the model has {layers}. Use at most pp = {layers}."
        )
    return _chunk_sizes(layers, parts, ends=strategy.pipeline.embedding_as_layer)


def _chunk_sizes(layers: int, parts: int, *, ends: bool) -> list[int]:
    """Blocks per chunk; with `ends` the first and the last hold one block less."""
    if not ends or parts == 1:
        share, extra = divmod(layers, parts)
        return [share + (part < extra) for part in range(parts)]
    sizes = _chunk_sizes(layers + 2, parts, ends=False)
    sizes[0] -= 1
    sizes[-1] -= 1
    return sizes


def _in_flight(strategy: Strategy, index: int, accumulate: int) -> float:
    p, v = strategy.pp, strategy.pipeline.virtual_stages
    if p == 1 or strategy.pipeline.schedule == "naive":
        return 1
    if strategy.pipeline.schedule == "gpipe":
        return accumulate
    if strategy.pipeline.schedule == "zero-bubble":
        return min(p, accumulate)  # held until the weight gradients' pass has run, on every stage
    if strategy.pipeline.schedule == "interleaved" or v > 1:
        return min(2 * (p - index - 1) + (v - 1) * p + 1, accumulate * v) / v
    return min(p - index, accumulate)


def rank_elements(workload: Workload, strategy: Strategy, stage: Stage) -> Elements:
    """Weights of one rank of `stage` after tensor and expert parallelism."""
    key = (strategy.tp, strategy.ep, strategy.expert_tp)
    return _elements(_weights_of(workload), key, stage.content)


@functools.lru_cache(maxsize=1024)
def _weights_of(workload: Workload) -> Workload:
    """The workload without what its weights do not depend on, so that more are found again."""
    return replace(workload, micro_batch=1, accumulate=1)


@functools.lru_cache(maxsize=4096)
def _elements(
    workload: Workload, degrees: tuple[int, int, int], content: tuple[int, int, bool, bool]
) -> Elements:
    tp, ep, expert_tp = degrees
    ranks = ep * expert_tp // math.gcd(ep * expert_tp, tp)  # so many that the experts can be split
    strategy = Strategy(name="", dp_replicate=ranks, tp=tp, ep=ep, expert_tp=expert_tp)
    dense, moe, embedding, last = content
    stage = Stage(index=0, dense=dense, moe=moe, embedding=embedding, head=last, in_flight=1)
    model = workload.model
    if model.traced is not None:
        return _module_elements(workload)
    shared = {moe: _block_elements(model, strategy, moe=moe) for moe in _kinds(stage)}
    counts = {False: stage.dense, True: stage.moe}
    share = _trained_share(workload, stage)
    block = sum(shared[moe][0] * counts[moe] for moe in shared)
    experts = sum(shared[moe][1] * counts[moe] for moe in shared)
    linear = sum(shared[moe][2] * counts[moe] for moe in shared)
    root = _root_elements(model, strategy, stage)
    head = _head_matrix(model, strategy) if stage.head else 0
    trained = not workload.lora_rank
    return Elements(
        block=int(block * share) if trained else 0,
        experts=int(experts * share) if trained else 0,
        root=(root if share == 1 else head) if trained else 0,
        largest_block=max(sum(shared[moe][:2]) for moe in shared),
        root_all=root,
        head_matrix=head,
        frozen_linear=int(linear * (1 - share)) if trained else linear,
        frozen_other=(
            int((block + experts - linear) * (1 - share)) + (root - head if share < 1 else 0)
            if trained
            else block + experts - linear + root
        ),
        adapters=_adapter_elements(workload, strategy, stage),
        largest_linear=max(
            linear.inputs * linear.outputs // (1 if linear.name in REPLICATED else strategy.tp)
            for moe in shared
            for linear in block_linears(model, moe=moe)
        ),
    )


def _kinds(stage: Stage) -> tuple[bool, ...]:
    return tuple(moe for moe, count in ((False, stage.dense), (True, stage.moe)) if count)


def _trained_share(workload: Workload, stage: Stage) -> float:
    if workload.trained_layers is None or not stage.layers:
        return 1
    return min(1.0, workload.trained_layers / stage.layers)


def split_linear(linear: Linear, model: Model, strategy: Strategy) -> int:
    """Elements of one linear layer on one rank."""
    if linear.name.startswith("expert_"):
        return linear.elements // (strategy.ep * strategy.expert_split)
    if linear.name in REPLICATED:
        return linear.elements
    ways = strategy.tp
    if linear.name in {"k", "v"}:
        ways = min(ways, model.key_value_heads)
    return linear.elements // ways


def _block_elements(model: Model, strategy: Strategy, *, moe: bool) -> tuple[int, int, int]:
    """(elements without experts, elements of experts, of both those in linear layers)."""
    other, experts = 0, 0
    for linear in block_linears(model, moe=moe):
        size = split_linear(linear, model, strategy)
        if linear.name.startswith("expert_"):
            experts += size
        else:
            other += size
    return other + block_norms(model), experts, other + experts


def _root_elements(model: Model, strategy: Strategy, stage: Stage) -> int:
    total = model.extra_parameters if stage.embedding else 0
    if stage.embedding:
        total += embedding_parameters(model) // (1 if model.kind == "vision" else strategy.tp)
    if stage.head:
        norm = norm_parameters(model) if model.final_norm else 0
        total += norm + (head_parameters(model) - norm) // strategy.tp
        if model.tied_embeddings and not stage.embedding:
            total += model.vocab * model.hidden // strategy.tp  # the last stage's own copy
    return total


def _head_matrix(model: Model, strategy: Strategy) -> int:
    return model.vocab * model.hidden // strategy.tp


def _adapter_elements(workload: Workload, strategy: Strategy, stage: Stage) -> int:
    rank, model = workload.lora_rank, workload.model
    if not rank:
        return 0
    names = {name for target in workload.lora_targets for name in LORA_LAYERS.get(target, ())}
    total = 0
    for moe, count in ((False, stage.dense), (True, stage.moe)):
        if count:
            total += count * sum(
                rank * (linear.inputs + linear.outputs) * linear.copies
                for linear in block_linears(model, moe=moe)
                if linear.name in names
            )
    if "head" in workload.lora_targets and stage.head:
        total += rank * (model.hidden + model.vocab)
    return total // strategy.tp


def _module_elements(workload: Workload) -> Elements:
    traced = workload.model.traced
    assert traced is not None
    return Elements(
        block=traced.parameters,
        experts=0,
        root=0,
        largest_block=traced.largest_block_parameters,
        root_all=0,
        head_matrix=0,
        frozen_linear=0,
        frozen_other=0,
        adapters=0,
        largest_linear=0,
    )
