"""Which blocks a pipeline stage holds, and how many micro-batches are in flight on it.

In flight on stage i of p with m micro-batches: GPipe m; 1F1B min(p - i, m); interleaved with v
chunks 2(p - i - 1) + (v - 1) p + 1 chunks of 1/v stage each (arXiv 2205.05198 and 2104.04473);
zero-bubble (ZB-H1, arXiv 2401.10241) min(p, m) on every stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate as running_sums
from typing import NamedTuple

from workbench.describe import Model, Strategy
from workbench.describe.counting import block_linears
from workbench.errors import UsageError


class BlockKind(NamedTuple):
    """Equal blocks of a stage."""

    moe: bool
    """Whether they have routed experts."""
    blocks: int
    """How many."""
    trained: int
    """Those that backward enters."""


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
    trained_dense: int
    """Dense blocks that backward enters: the last ones of the model."""
    trained_moe: int
    """Blocks with routed experts that backward enters."""

    @property
    def layers(self) -> int:
        """Blocks of both kinds."""
        return self.dense + self.moe

    @property
    def trained(self) -> int:
        """Blocks of both kinds that backward enters."""
        return self.trained_dense + self.trained_moe

    @property
    def kinds(self) -> tuple[BlockKind, ...]:
        """The kinds of block that it holds."""
        dense = BlockKind(moe=False, blocks=self.dense, trained=self.trained_dense)
        routed = BlockKind(moe=True, blocks=self.moe, trained=self.trained_moe)
        return tuple(kind for kind in (dense, routed) if kind.blocks)

    @property
    def content(self) -> tuple[tuple[BlockKind, ...], bool, bool]:
        """What it holds: stages of equal content differ in nothing but `in_flight`."""
        return self.kinds, self.embedding, self.head

    def recomputed(self, strategy: Strategy) -> float:
        """Share of the blocks backward enters to which recompute applies.

        `recompute_layers` are the first blocks of a stage, those that are trained the last ones.
        """
        layers = strategy.recompute_layers
        if strategy.recompute != "full" or layers is None:
            return 1.0
        return min(1.0, max(0, layers - (self.layers - self.trained)) / max(1, self.trained))


def stages(
    model: Model, strategy: Strategy, accumulate: int, trained_layers: int | None = None
) -> tuple[Stage, ...]:
    """All pipeline stages of `model` under `strategy` with `accumulate` micro-batches.

    Blocks are dealt as evenly as possible, the earlier stages taking the remainder. Backward enters
    the last `trained_layers` blocks of the model; None = all.

    Raises:
        UsageError: more stages than blocks, or virtual stages that do not fit.
    """
    parts = strategy.pp * strategy.pipeline.virtual_stages
    if model.traced is not None:
        if strategy.pp > 1 or strategy.tp > 1:
            raise UsageError("A traced module can be estimated for data parallelism only.")
        layers = model.layers if model.measured is not None else 0
        return (
            Stage(
                index=0,
                dense=layers,
                moe=0,
                embedding=True,
                head=True,
                in_flight=1,
                trained_dense=layers,
                trained_moe=0,
            ),
        )
    below = 0 if trained_layers is None else max(0, model.layers - trained_layers)
    routed = model.layers - model.moe_layers  # the first block with experts: they are the last ones
    sizes = chunk_sizes(model.layers, strategy, head_blocks=_head_blocks(model))
    ends = tuple(running_sums(sizes, initial=0))
    result: list[Stage] = []
    for index in range(strategy.pp):
        chunks = [(ends[part], ends[part + 1]) for part in range(index, parts, strategy.pp)]
        result.append(
            Stage(
                index=index,
                dense=_within(chunks, 0, routed),
                moe=_within(chunks, routed, model.layers),
                trained_dense=_within(chunks, below, routed),
                trained_moe=_within(chunks, max(below, routed), model.layers),
                embedding=index == 0,
                head=index == strategy.pp - 1,
                in_flight=_in_flight(strategy, index, accumulate),
            )
        )
    return tuple(result)


def _within(chunks: list[tuple[int, int]], first: int, end: int) -> int:
    """How many blocks of these chunks are among the model's from `first` to before `end`."""
    return sum(max(0, min(end, last) - max(first, start)) for start, last in chunks)


def chunk_sizes(layers: int, strategy: Strategy, *, head_blocks: float = 0.0) -> list[int]:
    """Blocks of each piece of the model, in the order of the forward pass.

    Args:
        layers: Blocks of the model.
        strategy: With its stages and how they are balanced.
        head_blocks: The head's matrix product, in those of a block.

    Raises:
        UsageError: more pieces than blocks.
    """
    virtual = strategy.pipeline.virtual_stages
    parts = strategy.pp * virtual
    if parts > layers:
        most = {"pp": layers // virtual, "virtual_stages": layers // strategy.pp}
        if virtual == 1:
            del most["virtual_stages"]
        ways = [f"{name} = {count}" for name, count in most.items() if count]
        raise UsageError(
            f"{strategy.pp} stages x {virtual} chunks need at least {parts} blocks; the model has "
            f"{layers}. Use at most {' or '.join(ways) or 'one of them for each block'}."
        )
    if strategy.pipeline.balanced_by_flops:
        return _sizes_by_flops(layers, parts, head_blocks)
    return _chunk_sizes(layers, parts, ends=strategy.pipeline.embedding_as_layer)


def _head_blocks(model: Model) -> float:
    """The head's matrix product, in those of the model's first block."""
    block = sum(
        linear.weight for linear in block_linears(model, moe=model.layers == model.moe_layers)
    )
    return model.vocab * model.hidden / block if block else 0.0


def _sizes_by_flops(layers: int, parts: int, head_blocks: float) -> list[int]:
    """Blocks per chunk: one is full with the block that takes it over its share (nanotron)."""
    sizes, share = [0] * parts, (layers + head_blocks) / parts
    part = 0
    for block in range(1, layers + 1):
        sizes[part] += 1
        if block > share * (part + 1) and part < parts - 1:
            part += 1
    return sizes


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
