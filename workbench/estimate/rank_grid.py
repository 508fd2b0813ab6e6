"""Which rank holds what: the mesh of a strategy, place by place.

Order of the ranks (Accelerate's and torchtitan's): pipeline outermost, then replicas, shards,
context, tensor innermost, so that the ranks that talk most are neighbours on one machine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from workbench.describe import Strategy
from workbench.estimate.stages import chunk_sizes

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
AXIS_NAMES = {
    "pp": "pipeline",
    "dp_replicate": "replicas",
    "dp_shard": "shards",
    "cp": "context",
    "tp": "tensor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank's coordinates, each from 0, and what it holds."""

    rank: int
    """Global rank."""
    pp: int
    """Pipeline stage (the rank's; with virtual stages it holds several pieces)."""
    dp_replicate: int
    """Replica that holds whole states."""
    dp_shard: int
    """Shard of the states (FSDP, ZeRO)."""
    cp: int
    """Part of the sequence."""
    tp: int
    """Slice of each matrix."""
    holds: str
    """What is in its memory, in words."""
    reads: str
    """Which part of the batch it works on, in words."""


def rank_grid(strategy: Strategy, layers: int) -> tuple[Place, ...]:
    """Every rank of `strategy` for a model of `layers` blocks, by rank.

    Raises:
        UsageError: more stages than blocks.

    >>> [(place.rank, place.pp, place.tp) for place in rank_grid(Strategy.parse("pp2-tp2", 4), 4)]
    [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    """
    pieces = _pieces(strategy, layers)
    sizes = [range(getattr(strategy, axis)) for axis in AXES]
    return tuple(
        Place(
            rank=rank,
            **dict(zip(AXES, at, strict=True)),
            holds=_holds(strategy, dict(zip(AXES, at, strict=True)), pieces),
            reads=_reads(strategy, dict(zip(AXES, at, strict=True))),
        )
        for rank, at in enumerate(itertools.product(*sizes))
    )


def groups(strategy: Strategy, axis: str) -> list[list[int]]:
    """The ranks that talk to each other along `axis`.

    >>> groups(Strategy.parse("dp2-tp2", 4), "dp_replicate")
    [[0, 2], [1, 3]]
    """
    together: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(
        itertools.product(*(range(getattr(strategy, name)) for name in AXES))
    ):
        other_places = tuple(value for name, value in zip(AXES, at, strict=True) if name != axis)
        together.setdefault(other_places, []).append(rank)
    return list(together.values())


def _pieces(strategy: Strategy, layers: int) -> list[tuple[int, int]]:
    """First and last block (from 0) of each piece of the model, in order."""
    sizes = chunk_sizes(layers, strategy)
    ends = list(itertools.accumulate(sizes))
    return [(end - size, end - 1) for end, size in zip(ends, sizes, strict=True)]


def _holds(strategy: Strategy, at: dict[str, int], pieces: list[tuple[int, int]]) -> str:
    own = pieces[at["pp"] :: strategy.pp]
    blocks = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in own)
    many = "block" if len(own) == 1 and own[0][0] == own[0][1] else "blocks"
    ends = [
        *(["embedding"] if at["pp"] == 0 else []),
        f"{many} {blocks}",
        *(["head"] if at["pp"] == strategy.pp - 1 else []),
    ]
    layers = ", ".join(ends) if strategy.pp > 1 else "all blocks"
    split = f" · slice {at['tp'] + 1} of {strategy.tp} of each matrix" if strategy.tp > 1 else ""
    return f"{layers}{split}{_sharded(strategy, at)}"


def _sharded(strategy: Strategy, at: dict[str, int]) -> str:
    """What of the states is split over the data (and context) ranks."""
    ranks = strategy.shard_ranks
    if ranks == 1:
        return ""
    number = at["dp_shard"] * strategy.cp + at["cp"] + 1
    states = {1: "optimizer states", 2: "gradients and optimizer states"}.get(
        strategy.zero_stage or 3, "weights, gradients and optimizer states"
    )
    return f" · shard {number} of {ranks} of {states}"


def _reads(strategy: Strategy, at: dict[str, int]) -> str:
    number = at["dp_replicate"] * strategy.dp_shard + at["dp_shard"] + 1
    data = f"part {number} of {strategy.data_ranks} of the batch"
    if strategy.data_ranks == 1:
        data = "the whole batch"
    if strategy.cp == 1:
        return data
    part = f"part {at['cp'] + 1} of {strategy.cp}"
    if strategy.context.cp_method == "ring":  # early and late pieces even out the causal mask
        part = f"pieces {at['cp'] + 1} and {2 * strategy.cp - at['cp']} of {2 * strategy.cp}"
    return f"{data}, {part} of each sequence"
