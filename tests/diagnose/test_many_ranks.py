"""A thousand ranks: what a look of the supervisor costs, over the files that they write."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest

from tests.cpu_budget import over_budget
from tests.diagnose.many_ranks import SLOW, looks
from tests.diagnose.sample import Replay, gpu, kinds, row, sample
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths


@pytest.mark.parametrize(
    ("ranks", "most"),
    [(128, 0.5), pytest.param(1024, 1.0, marks=[pytest.mark.slow, pytest.mark.full])],
)
def test_a_look_takes_less_than_a_second_and_names_the_slow_rank(
    tmp_path: Path, ranks: int, most: float
) -> None:
    took, found, diagnoser = looks(RunPaths(tmp_path), ranks, 90)
    assert not over_budget(median(took), most), took
    assert ("straggler", SLOW) in [(one.kind, one.rank) for one in found]
    assert diagnoser.problems == {}


@pytest.mark.parametrize("cooler", [False, True])
def test_what_all_gpus_have_does_not_displace_what_is_new(tmp_path: Path, *, cooler: bool) -> None:
    """72 hot GPUs, at once or one after another, then a NaN, then the end by an error."""
    cards = [{"index": index, "name": "H100", "memory_bytes": 80 << 30} for index in range(8)]
    replay = Replay(
        tmp_path,
        processes=72,
        nodes=9,
        device="cuda",
        cluster={"gpus": cards, "memory_bytes": 1 << 40},
    )

    def run(seconds: int, **state: int) -> list[Finding]:
        for _ in range(seconds):
            now = replay.now + 1
            for node in range(9):
                hot = [gpu(index, **state) for index in range(8)]
                replay.diagnoser.sample(sample(now, gpus=hot), node)
            found = replay.look(now)
        return found

    assert len(run(70, throttle_reasons=0x20, temperature_c=88)) == 64
    if cooler:
        assert kinds(run(90)) == []
    first = int(10 * (replay.now - 1000)) + 1
    found = replay.rows([row(n, math.nan) for n in range(first, first + 30)])
    assert "nan-loss" in kinds(found)
    assert len(found) == 64
    verdict = Finding(
        kind="rank-failed",
        rank=3,
        evidence="e",
        cause="c",
        next="n",
        severity="error",
        confidence=0.9,
    )
    found = replay.diagnoser.end("failed", verdict)
    assert [(one.kind, one.rank) for one in found if one.ended_run] == [("rank-failed", 3)]
    assert "nan-loss" in kinds(found)
    assert len(found) == 64


def test_an_error_of_one_rank_finds_room_among_the_same_of_all_others(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.look(1001.0)
    facts = replay.diagnoser.evidence.facts
    for rank in range(70):
        lost = Finding(
            kind="gpu-lost",
            rank=rank,
            evidence="e",
            cause="c",
            next="n",
            severity="error",
            confidence=0.9,
        )
        replay.diagnoser._merge_one(lost, facts)
    found = replay.rows([row(n, math.nan) for n in range(11, 40)])
    assert "nan-loss" in kinds(found)
