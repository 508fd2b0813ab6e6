"""Where the time goes, on steps made of numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import STEP, Replay, gpu, kinds, row, run_document, sample
from workbench.diagnose.facts import RankFacts
from workbench.store.findings import Finding


def late(steps: int, seconds: float, *, every: int = 1, rank: int = 1, first: int = 1, **more):
    """Steps in which `rank` enters backward late, the other one only by its noise."""
    chance = random.Random(0)
    rows = []
    for number in range(first, first + steps):
        one = row(number, 2.0 - number / 10_000, **more)
        for each in one.backward_at:
            one.backward_at[each] += chance.uniform(0, 0.004)
        one.backward_at[rank] += seconds * (number % every == 0)
        rows.append(one)
    return rows


def test_ranks_with_some_noise_are_no_stragglers(tmp_path: Path) -> None:
    assert kinds(Replay(tmp_path).rows(late(600, 0.01))) == []


def test_a_rank_that_is_late_once_in_a_while_is_none(tmp_path: Path) -> None:
    assert kinds(Replay(tmp_path).rows(late(600, 0.09, every=100))) == []


def test_a_straggler_is_named_with_its_share(tmp_path: Path) -> None:
    found = Replay(tmp_path).rows(late(400, 0.04))
    assert kinds(found) == ["straggler"]
    assert found[0].rank == 1
    assert "of the step time is waiting for it" in found[0].evidence


def test_pipeline_stages_enter_one_after_another(tmp_path: Path) -> None:
    replay = Replay(tmp_path, strategy={"name": "pp", "pp": 2, "dp_replicate": 1})
    assert kinds(replay.rows(late(400, 0.04))) == []


def with_loader(replay: Replay) -> None:
    for rank in range(2):
        feed = {"sampler": "DistributedSampler", "distributed": True, "set_epoch": None}
        replay.paths.rank_start(rank).write_text(json.dumps({"samplers": [feed]}))


@pytest.mark.parametrize(("waits", "rank"), [((0.05, 0.05), None), ((0.0, 0.05), 1)])
def test_waiting_for_data(tmp_path: Path, waits: tuple[float, ...], rank: int | None) -> None:
    replay = Replay(tmp_path)
    with_loader(replay)
    rows = late(300, max(waits) - min(waits), data_seconds=dict(enumerate(waits)))
    found = replay.rows(rows)
    assert kinds(found) == ["input-bound"]
    assert found[0].rank == rank
    assert "50%" in found[0].evidence


def test_little_waiting_is_no_finding(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    with_loader(replay)
    assert kinds(replay.rows(late(300, 0.0, data_seconds={0: 0.02, 1: 0.022}))) == []


@pytest.mark.parametrize("evaluates", [True, False])
def test_an_evaluation_now_and_then_is_no_wait_for_data(tmp_path: Path, evaluates: bool) -> None:  # noqa: FBT001
    rows = late(300, 0.0, data_seconds={0: 0.01, 1: 0.01})
    for one in rows[:: 20 if evaluates else 2]:  # no loader is known: every other step is a wait
        one.step_seconds, one.data_seconds = 2.1, {0: 2.0, 1: 2.0}
    found = kinds(Replay(tmp_path).rows(rows))
    assert ("input-bound" in found) is not evaluates


@pytest.mark.parametrize(("device", "told"), [("cpu", ["input-bound"]), ("cuda", [])])
def test_time_between_steps_is_called_no_wait_for_data_where_no_loader_is_known(
    tmp_path: Path, device: str, told: list[str]
) -> None:
    """On a GPU it may be the GPU's own work, for which the script waits there."""
    rows = late(300, 0.0, data_seconds={0: 0.07, 1: 0.07})
    found = Replay(tmp_path, device=device).rows(rows)
    assert kinds(found) == told
    for one in found:
        assert "wait for data" not in one.evidence
        assert "num_workers" not in one.next
        assert one.severity == "note"


def test_slowing_down(tmp_path: Path) -> None:
    rows = late(200, 0.0) + late(400, 0.0, first=201, step_seconds=STEP * 1.8)
    assert "slow-down" in kinds(Replay(tmp_path).rows(rows))


@pytest.mark.parametrize("per_step", [0, 4 << 20])
def test_memory_is_the_cause_of_a_slow_down_only_if_it_grows_with_the_steps(
    tmp_path: Path, per_step: int
) -> None:
    """What a run takes while it starts, importing and reading its data, is no leak."""
    replay = Replay(tmp_path)
    sizes = [min(1 << 30, n * (32 << 20)) for n in range(1, 90)]
    replay.samples([sample(910.0 + n, run_rss_bytes=size) for n, size in enumerate(sizes)])
    rows = late(200, 0.0) + late(400, 0.0, first=201, step_seconds=STEP * 1.8)
    for one in rows:
        facts = RankFacts(alive=True, own_bytes=(1 << 30) + per_step * one.step)
        replay.facts = {"ranks": {0: facts, 1: facts}}
        found = replay.rows([one])
    (slower,) = [one for one in found if one.kind == "slow-down"]
    assert ("grows with each step" in slower.cause) == bool(per_step)


def test_long_backward_passes(tmp_path: Path) -> None:
    rows = late(400, 0.0)
    for one in rows:
        one.backward_at = dict.fromkeys(one.backward_at, one.time - 0.95 * STEP)
    (found,) = Replay(tmp_path).rows(rows)
    assert (found.kind, found.severity) == ("communication-bound", "note")


def test_gpus_that_wait(tmp_path: Path) -> None:
    replay = Replay(tmp_path, device="cuda", cluster={"gpus": [{"index": 0}, {"index": 1}]})
    gpus = [gpu(0, util=12.0), gpu(1, util=20.0)]
    assert kinds(trained(replay, 1, 100, gpus)) == ["low-utilisation"]


def trained(replay: Replay, begin: int, end: int, gpus: list[dict[str, Any]]) -> list[Finding]:
    """Ten steps and a sample of the hardware each second."""
    found: list[Finding] = []
    for second in range(begin, end):
        steps = range(10 * second, 10 * second + 10)
        replay.rows([row(step, 9.0 - step / 1000) for step in steps])
        found = replay.samples([sample(1001.0 + second, gpus=gpus)])
    return found


def test_gpus_that_wait_for_a_checkpoint_are_no_finding(tmp_path: Path) -> None:
    """Without a step in that time, nor for a while after it: the last minute's mean is low."""
    replay = Replay(tmp_path, device="cuda", cluster={"gpus": [{"index": 0}, {"index": 1}]})
    busy, waiting = ([gpu(index, util=util) for index in range(2)] for util in (97.0, 8.0))
    trained(replay, 1, 90, busy)
    pause = replay.samples([sample(1090.0 + second, gpus=waiting) for second in range(100)])
    after = trained(replay, 190, 220, busy)
    assert kinds([*pause, *after]) == []


def test_a_clock_that_jumps_says_nothing(tmp_path: Path) -> None:
    rows = late(100, 0.0)
    for one in late(100, 0.0, first=101):
        one.time -= 3600
        one.ended_at = {rank: at - 3600 for rank, at in one.ended_at.items()}
        one.backward_at = {rank: at - 3600 for rank, at in one.backward_at.items()}
        rows.append(one)
    rows += late(200, 0.0, first=201)
    replay = Replay(tmp_path)
    for number, one in enumerate(rows):
        replay.diagnoser.rows([one])
        assert kinds(replay.look(1000.0 + number)) == []


def test_less_than_seven_tenths_of_what_one_rank_does(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    alone = tmp_path / "one"
    alone.mkdir()
    same = {"script": "train.py", "arguments": ["--lr", "1"], "recipe": None}
    (alone / "run.json").write_text(json.dumps(run_document(processes=1, **same)))
    (alone / "view.json").write_text(json.dumps({"step_seconds_median": 0.06, "steps": 100}))
    found = Replay(tmp_path / "two", **same).rows(late(300, 0.0))
    assert kinds(found) == ["scaling"]
    assert "60%" in found[0].evidence
    (alone / "view.json").write_text(json.dumps({"step_seconds_median": 0.09, "steps": 100}))
    assert Replay(tmp_path / "two", **same).rows(late(300, 0.0)) == []


@pytest.mark.parametrize("after", [1.0, 1.3])
@pytest.mark.parametrize("ends", [True, False])
def test_a_slow_down_that_is_over_is_cleared(tmp_path: Path, after: float, *, ends: bool) -> None:
    """Also where it does not quite come back to its first speed, or ends soon after."""
    pace = [STEP] * 400 + [3 * STEP] * 300
    rows = [row(n, 5.0 * n**-0.3, step_seconds=seconds) for n, seconds in enumerate(pace, 1)]
    replay = Replay(tmp_path)
    assert kinds(replay.rows(rows)) == ["slow-down"]
    more = 100 if ends else 400
    again = [row(n, 5.0 * n**-0.3, step_seconds=after * STEP) for n in range(701, 701 + more)]
    found = replay.rows(again)
    if ends:
        found = replay.diagnoser.end("succeeded", None)
    assert kinds(found) == []
    assert [one.kind for one in found if one.cleared_at is not None] == ["slow-down"]


def test_a_finding_that_comes_back_was_not_seen_before_it_began(tmp_path: Path) -> None:
    """A page said "since step 1,710, seen 04:33", when the run had made 300 steps."""
    replay = Replay(tmp_path)
    (first,) = replay.rows(late(400, 0.04))
    (gone,) = replay.rows(late(900, 0.0, first=401))
    (again,) = replay.rows(late(400, 0.04, first=1301))
    assert (first.cleared_at, again.cleared_at) == (None, None)
    assert gone.seen_at == first.seen_at
    assert gone.cleared_at is not None
    assert again.seen_at is not None
    assert again.seen_at > gone.cleared_at
