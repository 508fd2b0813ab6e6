"""Memory that grows with the steps, and the many ways in which healthy memory moves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diagnose.sample import Replay, kinds, row, sample
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.memory_curve import MemoryCurve
from workbench.store.findings import Finding
from workbench.store.rank_records import RankStart

MIB = 1 << 20
GIB = 1 << 30
Curve = Callable[[int], float]


def run(
    folder: Path, *curves: Curve, steps: int = 400, device: str = "cpu", passes: int | None = None
) -> list[Finding]:
    """Ten steps a second; `curves`: each rank's bytes at a step."""
    replay = Replay(folder, device=device, processes=len(curves), cluster=CLUSTER)
    if passes is not None:
        loader = {"loader": "DataLoader", "iterations": passes}
        replay.diagnoser._read_starts = lambda: None
        replay.diagnoser.evidence.starts = {0: RankStart(samplers=(loader,))}
    found: list[Finding] = []
    for step in range(1, steps + 1):
        own = {rank: int(curve(step)) for rank, curve in enumerate(curves)}
        gpu = {"memory_bytes": own} if device == "cuda" else {}
        replay.diagnoser.rows([row(step, [1.0] * len(curves), **gpu)])
        if step % 10:
            continue
        at = 1000.0 + step / 10
        if device == "cpu":
            facts = {rank: RankFacts(alive=True, own_bytes=value) for rank, value in own.items()}
            replay.facts = {"ranks": facts}
        used = {"memory_used_bytes": 20 * GIB, "memory_total_bytes": 100 * GIB}
        replay.diagnoser.sample(sample(at, **used))
        found = replay.look(at)
    return [one for one in found if "memory" in one.kind and one.cleared_at is None]


CLUSTER = {"name": "here", "gpus": [{"index": 0, "name": "H100", "memory_bytes": 80 * GIB}]}


def flat(step: int) -> float:
    return GIB + random.Random(step).random() * 4 * MIB


def leak(step: int) -> float:
    return flat(step) + 5 * MIB * step


def test_a_leak_is_told_with_rank_rate_and_end(tmp_path: Path) -> None:
    (found,) = run(tmp_path, flat, leak)
    assert (found.kind, found.rank, found.severity) == ("memory-growth", 1, "warning")
    assert "Host memory of rank 1 grows by 5 MiB a step" in found.evidence
    assert "used up in 16," in found.evidence  # 80 GiB are free
    assert "loss.item()" in found.next


def test_ranks_that_all_leak_share_the_hosts_memory(tmp_path: Path) -> None:
    (found,) = run(tmp_path, leak, leak)
    assert found.rank is None
    assert "of 2 ranks" in found.evidence
    assert "used up in 8," in found.evidence


def test_a_gpus_peak_that_rises_at_every_step(tmp_path: Path) -> None:
    (found,) = run(tmp_path, leak, device="cuda")
    assert found.kind == "gpu-memory-growth"
    assert "GPU memory of rank 0 grows by 5.0" in found.evidence


def test_a_first_pass_over_the_data_may_fill_a_cache(tmp_path: Path) -> None:
    for passes, severity in ((1, "note"), (2, "warning")):
        (tmp_path / severity).mkdir()
        (found,) = run(tmp_path / severity, lambda step: leak(step) / 5, flat, passes=passes)
        assert found.severity == severity
        assert ("first pass" in found.cause) == (passes == 1)


HEALTHY: dict[str, Curve] = {
    "flat": flat,
    "warm-up": lambda step: flat(step) + 2 * GIB * (1 - math.exp(-step / 30)),
    "a cache that is full soon": lambda step: flat(step) + 20 * MIB * min(step, 80),
    "longer and longer sequences": lambda step: flat(step) + 300 * MIB * math.log(step),
    "evaluations": lambda step: flat(step) + 900 * MIB * (step // 150),
    "a little": lambda step: flat(step) + 0.05 * MIB * step,
    "up and down": lambda step: flat(step) + GIB * (step % 100) / 100,
    "a step up": lambda step: flat(step) + (4 * GIB if step > 250 else 0),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_memory_is_left_alone(tmp_path: Path, name: str, device: str) -> None:
    curve = HEALTHY[name]
    highest = [0.0]

    def peak(step: int) -> float:
        highest[0] = max(highest[0], curve(step))
        return highest[0] if device == "cuda" else curve(step)

    assert run(tmp_path, peak, device=device) == []


def test_growth_that_ends_is_over(tmp_path: Path) -> None:
    curve = MemoryCurve()
    told = []
    for step in range(2000):
        curve.add(step, float(step), 5 * MIB * min(step, 300))
        told.append(curve.growth() is not None)
    assert told[200]
    assert not any(told[1000:])


def test_a_few_slow_steps_with_many_readings_are_enough() -> None:
    curve = MemoryCurve()
    for reading in range(300):  # eight a step
        curve.add(reading // 8, reading / 2, 20 * MIB * (reading // 8))
    growth = curve.growth()
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(20 * MIB, rel=0.1)


def test_a_long_run_stays_small_and_is_still_told() -> None:
    curve = MemoryCurve()
    for step in range(100_000):
        curve.add(step, float(step), MIB * step // 100)
    assert len(curve.points) < 200
    growth = curve.growth()
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(MIB / 100, rel=0.05)
    curve.add(500, 100_000.0, 0)  # back to a checkpoint
    assert curve.growth() is None


def test_the_word_is_not_used_for_what_never_runs_out(tmp_path: Path) -> None:
    assert kinds(run(tmp_path, lambda step: GIB + 0.2 * MIB * step)) == []
