"""Order of arrival at the collectives, on steps made of numbers."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cpu_budget import over_budget, quiet_collector
from tests.diagnose.sample import STEP, Replay, kinds, row
from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts
from workbench.observe.arrival_calls import Call, read_rank
from workbench.observe.arrival_window import (
    PHASES,
    ArrivalWindow,
    RankShare,
    combined,
    read_window,
)
from workbench.observe.arrivals import clock_shifts, join
from workbench.observe.core_time import CoreTime
from workbench.observe.events import StepRow
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def made(steps: int, late: dict[int, float], ranks: int = 2, *, layers: int = 0):
    """Rows and calls: a sum at 0.9 of the step, and `layers` waited for, evenly before it.

    `late`: rank -> seconds of its own more work before the sum.
    """
    lost = max(late.values(), default=0.0)
    step = STEP + lost
    rows: list[StepRow] = []
    calls: dict[int, list[Call]] = {rank: [] for rank in range(ranks)}
    for number in range(1, steps + 1):
        begun = 1000.0 + number * step
        one = row(number, [1.0] * ranks)
        one.time, one.step_seconds = begun + step, step
        one.ended_at = dict.fromkeys(range(ranks), begun + step)
        one.backward_at = dict.fromkeys(range(ranks), begun + 0.4 * STEP)
        one.optimizer_at = dict.fromkeys(range(ranks), begun + step - 0.05 * STEP)
        rows.append(one)
        for rank, own in calls.items():
            for layer in range(layers):
                at = begun + 0.4 * STEP * layer / layers + 0.001
                own.append(Call(("0", (number * (layers + 1)) + layer), at, waits=True))
            at = begun + 0.9 * STEP + late.get(rank, 0.0)
            own.append(Call(("0", number * (layers + 1) + layers), at, waits=False))
    return rows, calls


@pytest.mark.parametrize("layers", [0, 8])
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_waits_least_is_the_one_that_is_waited_for(ranks: int, layers: int) -> None:
    rows, calls = made(20, {1: 0.05}, ranks, layers=layers)
    window = join(calls, rows)
    assert window is not None
    assert window.late_seconds == pytest.approx(0.05)
    assert [one.last for _, one in sorted(window.ranks.items())][1] == window.steps == 19
    assert window.ranks[1].own["backward"] == pytest.approx(0.05 + 0.55 * STEP, abs=1e-6)
    assert window.ranks[0].own["backward"] == pytest.approx(0.55 * STEP, abs=1e-6)
    assert read_window(json.loads(json.dumps(window.document()))) is not None


def test_a_clock_that_is_wrong_is_moved() -> None:
    rows, calls = made(20, {}, layers=8)
    for one in rows:  # rank 1's host is 3 s behind
        one.ended_at[1] -= 3.0
        one.backward_at[1] -= 3.0
        one.optimizer_at[1] -= 3.0
    calls[1] = [Call(call.key, call.at - 3.0, call.waits) for call in calls[1]]
    hosts = {0: "here", 1: "there"}
    assert clock_shifts(calls, hosts)[1] == pytest.approx(-3.0, abs=0.02)
    assert clock_shifts(calls, {})[1] == 0.0
    window = join(calls, rows, hosts=hosts)
    assert window is not None
    assert window.late_seconds < 0.02


def test_groups_of_some_ranks_are_matched_by_their_names() -> None:
    rows, calls = made(10, {})
    calls |= {2: calls[0], 3: calls[1]}
    for rank, own in calls.items():
        calls[rank] = [Call((str(rank // 2), one.key[1]), one.at, one.waits) for one in own]
    for one in rows:
        for times in (one.ended_at, one.backward_at, one.optimizer_at):
            times.update({2: times[0], 3: times[1]})
    window = join(calls, rows)
    assert window is not None
    assert window.late_seconds == pytest.approx(0.0)


@pytest.mark.parametrize("text", ["", "[]", '{"groups": 3}', '{"groups":[],"base":"x"}'])
def test_a_file_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_rank(tmp_path / "x.json") == ([], CoreTime())
    assert read_window({"ranks": {"a": 1}}) is None


def window(steps: int = 20, **more) -> ArrivalWindow:
    own = dict.fromkeys(("input", "forward", "backward", "optimizer", "checkpoint"), 0.01)
    slow = RankShare(wait=0.0, own={**own, "backward": 0.06}, last=steps)
    given = {
        "time": 1002.0,
        "first": 6,
        "last": 5 + steps,
        "steps": steps,
        "step_seconds": 0.1,
        "late_seconds": 0.05,
        "exchange_seconds": 0.01,
        "ranks": {0: RankShare(wait=0.05, own=own), 1: slow},
    } | more
    return ArrivalWindow(**given)


def found(tmp_path: Path, one: ArrivalWindow, **run) -> list:
    replay = Replay(tmp_path, **run)
    replay.diagnoser.evidence.arrivals.append(one)
    return replay.look(1003.0)


def test_a_straggler_has_its_price(tmp_path: Path) -> None:
    (straggler,) = found(tmp_path, window(), usd_per_hour=8.0, steps_total=1000)
    assert (straggler.kind, straggler.rank, straggler.phase) == ("straggler", 1, "backward")
    assert (straggler.lost_share, straggler.lost_usd_per_hour) == (0.5, 4.0)
    assert "50 ms of 100 ms a step (50%, $4.00 an hour)" in straggler.evidence
    assert "Without it a step would take 50 ms" in straggler.evidence


def test_a_slow_link_is_told_only_when_all_come_together(tmp_path: Path) -> None:
    own = {"backward": 0.06}
    together = {0: RankShare(own=own), 1: RankShare(own=own)}
    slow = window(late_seconds=0.001, exchange_seconds=0.06, ranks=together)
    assert kinds(found(tmp_path / "slow", slow) if (tmp_path / "slow").mkdir() is None else []) == [
        "communication-bound"
    ]
    (tmp_path / "late").mkdir()
    assert kinds(found(tmp_path / "late", window(exchange_seconds=0.06))) == ["straggler"]


def test_a_rank_for_which_the_exchange_ends_later_is_no_straggler(tmp_path: Path) -> None:
    """A slow link of its neighbour in the ring: it leaves each sum later, and so comes later."""
    rows, calls = made(40, {}, 4)
    for one in rows:
        for times in (one.backward_at, one.optimizer_at, one.ended_at):
            times[1] += 0.3 * STEP
    calls[1] = [replace(call, at=call.at + 0.3 * STEP) for call in calls[1]]
    joined = join(calls, rows)
    assert joined is not None
    assert joined.ranks[1].tail == joined.uneven_seconds == pytest.approx(0.3 * STEP)
    (tmp_path / "link").mkdir()
    assert found(tmp_path / "link", joined) == []
    rows, calls = made(40, {1: 0.3 * STEP}, 4)  # the same delay by its own work
    joined = join(calls, rows)
    assert joined is not None
    assert joined.uneven_seconds == pytest.approx(0.0, abs=1e-6)
    (tmp_path / "work").mkdir()
    assert kinds(found(tmp_path / "work", joined)) == ["straggler"]


@pytest.mark.parametrize(
    ("strategy", "more", "expected"),
    [
        ({"zero_stage": 2}, {}, ["communication-bound"]),
        # One leaves the gather before later, and so comes later.
        (
            {"zero_stage": 2},
            {"late_seconds": 0.05, "uneven_seconds": 0.05},
            ["communication-bound"],
        ),
        ({"zero_stage": 2}, {"late_seconds": 0.05}, []),
        ({"zero_stage": 2}, {"gather_seconds": 0.04}, []),
        ({"zero_stage": 2}, {"step_seconds": 1.0}, []),
        ({"zero_stage": 3}, {}, []),  # it computes with what it has gathered
        ({"zero_stage": 2, "offload": ["optimizer"]}, {}, []),
        ({}, {}, []),
    ],
)
def test_the_optimizers_gather_tells_of_a_slow_link(
    tmp_path: Path, strategy: dict[str, object], more: dict[str, float], expected: list[str]
) -> None:
    share = RankShare(own={"backward": 0.06}, last=10)
    given = {"step_seconds": 0.3, "late_seconds": 0.001, "gather_seconds": 0.08} | more
    one = window(exchange_seconds=None, ranks={0: share, 1: share}, **given)
    assert kinds(found(tmp_path, one, strategy=strategy)) == expected


def test_the_largest_batches_are_no_slow_device(tmp_path: Path) -> None:
    own = {"backward": 0.06}
    mine = RankShare(own=own, last=20, heaviest=20)
    ranks = {0: RankShare(wait=0.05, own={"backward": 0.01}), 1: mine}
    (one,) = found(tmp_path, window(ranks=ranks))
    assert (one.kind, one.rank) == ("imbalanced-work", 1)


def test_a_rank_that_changes_with_the_batches(tmp_path: Path) -> None:
    ranks = {
        rank: RankShare(wait=0.02, own={"backward": 0.03}, last=10, heaviest=10) for rank in (0, 1)
    }
    (one,) = found(tmp_path, window(ranks=ranks, late_seconds=0.02))
    assert (one.kind, one.rank) == ("imbalanced-work", None)


def test_noise_is_no_finding(tmp_path: Path) -> None:
    ranks = {
        rank: RankShare(wait=0.02, own={"backward": 0.03}, last=10, heaviest=3) for rank in (0, 1)
    }
    assert found(tmp_path, window(ranks=ranks, late_seconds=0.02)) == []


def test_a_moment_of_a_very_short_run_is_no_straggler(tmp_path: Path) -> None:
    """22 steps of 1.6 ms: one burst of other work on a rank's core fills all of them."""
    own = dict.fromkeys(("input", "forward", "backward", "optimizer", "checkpoint"), 1.6e-4)
    slow = RankShare(wait=0.0, own={**own, "backward": 9.6e-4}, last=20)
    ranks = {0: RankShare(wait=8e-4, own=own), 1: slow}
    short = window(ranks=ranks, step_seconds=1.6e-3, late_seconds=8e-4, exchange_seconds=1e-4)
    assert found(tmp_path, short) == []
    longer = replace(short, steps=200, last=205, ranks={**ranks, 1: replace(slow, last=200)})
    assert [one.kind for one in found(tmp_path, longer)] == ["straggler"]


def test_a_thousand_ranks_take_less_than_a_second(tmp_path: Path) -> None:
    ranks, steps = 1024, 30
    rows, calls = made(steps, {7: 0.05}, ranks)
    paths = RunPaths(tmp_path)
    paths.make_folders()
    for rank, own in calls.items():
        document = {
            "base": 1000.0,
            "groups": ["0"],
            "group": [0] * len(own),
            "number": [one.key[1] for one in own],
            "waits": [int(one.waits) for one in own],
            "micros": [round(1e6 * (one.at - 1000.0)) for one in own],
        }
        paths.rank_arrivals(rank).write_text(json.dumps(document))
    run = RunRecord.of({"run": "many", "processes": ranks, "device": "cpu", "created_at": 1000.0})
    with quiet_collector():  # this process has the garbage of many tests
        longest, told, problems = min(
            (looked_until_told(Diagnoser(paths, run), rows, ranks) for _ in range(3)),
            key=lambda looked: looked[0],  # others may take the cores meanwhile
        )
    late = [(one.kind, one.rank) for one in told if one.kind in {"straggler", "input-bound"}]
    assert late == [("straggler", 7)]
    assert problems == {}
    assert max(map(len, paths.arrivals.read_text().splitlines())) < 8000  # a window
    assert not over_budget(longest, 1.0), longest


def looked_until_told(diagnoser: Diagnoser, rows: list, ranks: int) -> tuple[float, list, dict]:
    """CPU seconds of the longest look, what it found, and what went wrong."""
    diagnoser.rows(rows)
    longest, told = 0.0, []
    for second in range(60):  # the files are read in parts
        begun = time.process_time()
        facts = Facts(phase="running", elapsed_seconds=9.0, started_at=1000.0, world_size=ranks,
                      monotonic=time.monotonic() + second, time=1010.0)  # fmt: skip
        told = diagnoser.look(facts)
        longest = max(longest, time.process_time() - begun)
        if told:
            break
    return longest, told, diagnoser.problems


def test_calls_that_a_rank_went_on_from_are_not_waited_for() -> None:
    """Gathers that are sent off one after another cost their lateness once, not each time."""
    rows, calls = made(12, {1: 0.05})
    for rank, own in calls.items():
        calls[rank] = [
            Call(("0", 10 * one.key[1] + more), one.at + more * 1e-4, waits=True)
            for one in own
            for more in range(8)
        ]
        assert calls[rank] == sorted(calls[rank], key=lambda one: one.at)
    window = join(calls, rows)
    assert window is not None
    assert window.late_seconds == pytest.approx(0.05, abs=1e-3)


def steady(mean: float, spread: float) -> dict:
    return {"late": mean, "late_square": mean * mean + spread * spread}


@pytest.mark.parametrize(
    ("late", "spread", "told"), [(0.01, 0.005, True), (0.01, 0.04, False), (0.004, 0.001, False)]
)
def test_small_delays_are_named_when_the_spread_of_the_steps_allows(
    tmp_path: Path, late: float, spread: float, *, told: bool
) -> None:
    own = {"input": 0.02, "forward": 0.02, "backward": 0.02, "optimizer": 0.02, "checkpoint": 0.02}
    slow = RankShare(own={**own, "forward": 0.02 + late}, last=12, **steady(late, spread))
    ranks = {0: RankShare(wait=late, own=own, **steady(-late, spread)), 1: slow}
    raised = found(tmp_path, window(36, ranks=ranks, late_seconds=late))
    assert [(one.kind, one.phase) for one in raised] == [("straggler", "forward")] * told


def test_a_rank_that_waits_for_a_core_is_no_straggler(tmp_path: Path) -> None:
    own = {"backward": 0.03}
    queue = RankShare(own=own, last=20, queued=0.05, **steady(0.0, 0.01))
    ranks = {0: RankShare(wait=0.05, own=own, **steady(0.0, 0.01)), 1: queue}
    replay = Replay(tmp_path)
    for at, told in ((1002.0, 0), (1013.0, 0), (1024.0, 0), (1035.0, 1)):
        replay.diagnoser.evidence.arrivals.append(window(ranks=ranks, time=at))
        said = replay.look(at + 1)
        assert len(said) == told  # a short run need not hear of it
    (one,) = said
    assert (one.kind, one.rank, one.severity) == ("host-contention", 1, "note")
    assert "cores" in one.cause


def test_a_rank_under_a_quota_is_told_of_its_quota(tmp_path: Path) -> None:
    own = {"backward": 0.03}
    for queued, kind in ((0.05, "host-contention"), (0.0, "straggler")):  # kernels differ in this
        folder = tmp_path / kind
        folder.mkdir()
        late = 0.05 - queued
        held = RankShare(
            own={"backward": 0.03 + late}, last=20, queued=queued, throttled=0.05,
            **steady(late, 0.01),
        )  # fmt: skip
        ranks = {0: RankShare(wait=0.05, own=own, **steady(-late, 0.01)), 1: held}
        (one,) = found(folder, window(ranks=ranks))
        assert (one.kind, one.rank) == (kind, 1)
        assert "quota" in one.cause


@pytest.mark.parametrize(
    ("queued", "throttled", "told"),
    [(0.04, 0.04, True), (0.0, 0.08, True), (0.04, 0.01, False), (0.02, 0.02, False)],
)
def test_ranks_that_share_a_quota_are_told_of_it_together(
    tmp_path: Path, queued: float, throttled: float, *, told: bool
) -> None:
    held = RankShare(own={"backward": 0.03}, queued=queued, throttled=throttled)
    said = found(tmp_path, window(ranks={0: held, 1: held}))
    assert [(one.kind, one.rank, one.phase) for one in said] == (
        [("host-contention", None, "paused")] * told
    )
    assert all("docker --cpus" in one.next and "(40%" in one.evidence for one in said)


def test_one_ranks_quota_is_not_all_ranks(tmp_path: Path) -> None:
    free, held = RankShare(queued=0.04), RankShare(queued=0.04, throttled=0.04)
    assert not found(tmp_path, window(ranks={0: free, 1: held, 2: free}))


def test_a_process_that_is_stopped_again_and_again(tmp_path: Path) -> None:
    own = {"backward": 0.03}
    stopped = RankShare(own={"backward": 0.08}, last=20, stops=0.9, **steady(0.05, 0.01))
    ranks = {0: RankShare(wait=0.05, own=own, **steady(-0.05, 0.01)), 1: stopped}
    (one,) = found(tmp_path, window(ranks=ranks))
    assert (one.phase, "stopped 18 times" in one.evidence) == ("paused", True)


def test_waits_for_a_core_are_taken_out_of_each_phase() -> None:
    rows, calls = made(20, {1: 0.05})
    queued = {row.step: (0.0, 0.05, 0.0) for row in rows}
    told = {0: CoreTime(dict.fromkeys(queued, (0.0, 0.0, 0.0))), 1: CoreTime(queued)}
    one = join(calls, rows, core_times=told)
    assert one is not None
    assert one.ranks[1].late == pytest.approx(0.0, abs=1e-6)
    assert one.ranks[1].own["backward"] == pytest.approx(0.55 * STEP, abs=1e-6)


def test_a_pipeline_has_no_collectives_but_one_at_its_end() -> None:
    rows, _ = made(20, {})
    for one in rows:
        one.waited_seconds = {0: 0.06, 1: 0.01}
    calls = {rank: [Call(("0", 1), rows[-1].time + 1.0, waits=True)] for rank in (0, 1)}
    joined = join(calls, rows)
    assert joined is not None
    assert joined.ranks[1].late == pytest.approx(0.05)


def test_windows_that_show_other_ranks_are_not_combined_to_none() -> None:
    share = RankShare(wait=0.0, own=dict.fromkeys(PHASES, 0.01), last=1)
    one, other = (window(ranks=dict.fromkeys(ranks, share)) for ranks in ((0, 1), (2, 3)))
    found = combined([one, other])
    assert found is not None
    assert (set(found.ranks), found.steps) == ({2, 3}, other.steps)
