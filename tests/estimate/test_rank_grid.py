"""The mesh in words: every rank once, groups that partition the ranks, blocks dealt completely."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.describe import Strategy
from workbench.errors import UsageError
from workbench.estimate.rank_grid import AXES, groups, rank_grid

DEGREES = st.sampled_from([1, 2, 4])


@given(DEGREES, DEGREES, DEGREES, DEGREES)
def test_every_rank_has_one_place_and_one_group_per_axis(pp: int, dp: int, fsdp: int, tp: int):
    strategy = Strategy.parse(f"pp{pp}-dp{dp}-fsdp{fsdp}-tp{tp}", pp * dp * fsdp * tp)
    places = rank_grid(strategy, layers=8)
    assert [place.rank for place in places] == list(range(strategy.world_size))
    assert len({tuple(getattr(place, axis) for axis in AXES) for place in places}) == len(places)
    for axis in AXES:
        found = groups(strategy, axis)
        assert sorted(rank for group in found for rank in group) == list(range(len(places)))
        assert {len(group) for group in found} == {getattr(strategy, axis)}
        for group in found:
            assert [getattr(places[rank], axis) for rank in group] == list(range(len(group)))


def test_the_order_is_that_of_torch_meshes() -> None:
    strategy = Strategy.parse("pp2-dp2-tp2", 8)
    shape = [getattr(strategy, axis) for axis in AXES]
    mesh = torch.arange(math.prod(shape)).reshape(shape)
    for place in rank_grid(strategy, layers=4):
        assert mesh[tuple(getattr(place, axis) for axis in AXES)] == place.rank


def test_words_say_what_is_where() -> None:
    grid = rank_grid(Strategy.parse("pp2-fsdp2-tp2", 8), layers=5)
    assert grid[0].holds.startswith("embedding, blocks 0-2 · slice 1 of 2 of each matrix")
    assert grid[7].holds.startswith("blocks 3-4, head · slice 2 of 2")
    assert grid[7].holds.endswith("shard 2 of 2 of weights, gradients and optimizer states")
    assert grid[7].reads == "part 2 of 2 of the batch"
    interleaved = Strategy.parse("pp2", 2).with_options(schedule="interleaved", virtual_stages=2)
    assert rank_grid(interleaved, layers=4)[0].holds == "embedding, blocks 0, 2"
    assert rank_grid(Strategy.parse("ddp", 2), 4)[1].holds == "all blocks"
    assert "optimizer states" in rank_grid(Strategy.parse("zero1", 2), 4)[0].holds
    ring = Strategy.parse("cp2", 2)
    assert "pieces 2 and 3 of 4 of each sequence" in rank_grid(ring, 4)[1].reads
    ulysses = ring.with_options(cp_method="ulysses")
    assert "part 2 of 2 of each sequence" in rank_grid(ulysses, 4)[1].reads


def test_more_stages_than_blocks_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="need at least 4 blocks; the model has 2"):
        rank_grid(Strategy.parse("pp4", 4), layers=2)
