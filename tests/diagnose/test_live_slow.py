"""Real runs of two processes that are slow, or learn what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import workbench as wb
from tests.conftest import until
from tests.diagnose.test_live import standing, troubled
from tests.faults.matrix import record

pytestmark = [pytest.mark.slow, pytest.mark.full]
Start = Callable[..., wb.Run]


def test_slow_ranks_and_slow_loaders_are_told_apart(start: Start) -> None:
    straggler = troubled(start, "slow")
    loader = troubled(start, "slow-loader")
    one = troubled(start, "slow-loader-one")
    until(lambda: "straggler" in standing(straggler), 90, "the straggler")
    assert standing(straggler)["straggler"]["rank"] == 1
    until(lambda: "input-bound" in standing(loader), 60, "the slow loader")
    assert standing(loader)["input-bound"]["rank"] is None
    until(lambda: "input-bound" in standing(one), 60, "the slow loader of one rank")
    assert standing(one)["input-bound"]["rank"] == 1
    assert "straggler" not in standing(loader)
    assert "straggler" not in standing(one)
    assert "straggler" not in (one.directory / "findings.json").read_text()  # nor was it before
    record(20, "straggler: rank 1 named, its peers are not")
    record(19, "input-bound: rank 1 named, or all where all wait")


def test_nan_on_one_rank_models_apart_and_samplers(start: Start) -> None:
    nan = troubled(start, "nan")
    apart = troubled(start, "unwrapped")
    sampler = troubled(start, "no-sampler")
    epoch = troubled(start, "no-set-epoch")
    until(lambda: "nan-loss" in standing(nan), 90, "the NaN")
    found = standing(nan)["nan-loss"]
    assert (found["rank"], found["step"]) == (1, 20)
    until(lambda: "ranks-diverge" in standing(apart), 90, "models of their own")
    until(lambda: "no-distributed-sampler" in standing(sampler), 60, "the sampler")
    until(lambda: "missing-set-epoch" in standing(epoch), 60, "the epoch")
    assert "ranks-diverge" not in standing(nan) | standing(sampler) | standing(epoch)
    assert "no-distributed-sampler" not in standing(nan)
    assert "missing-set-epoch" not in standing(nan)
    record(17, "nan-loss: rank 1, step 20, the step it happened")
    record(18, "ranks-diverge told; so are a missing sampler and set_epoch")
