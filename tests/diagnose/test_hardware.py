"""GPUs that throttle, err and vanish, on the simulated driver: no machine breaks on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import Replay, gpu, kinds, row, sample
from tests.faults.matrix import record
from tests.pod.place import Placed
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hardware import GpuErrors
from workbench.launching.multinode.agent import NodeAgent
from workbench.launching.multinode.node_view import NodeView
from workbench.rehearsing.driver.pod import Pod
from workbench.store.findings import Finding

GPUS = [{"index": 2}, {"index": 3}]


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    made = Replay(tmp_path, device="cuda", cluster={"gpus": GPUS})
    made.rows([row(n, 3.0 - n / 1000) for n in range(1, 60)])
    return made


def run_for(replay: Replay, seconds: int, begin: int = 0, **second: Any):
    """Samples of a healthy GPU and of another one."""
    return replay.samples(
        [sample(1010.0 + begin + n, gpus=[gpu(2), gpu(3, **second)]) for n in range(seconds)]
    )


def test_healthy_gpus_at_their_power_limit(replay: Replay) -> None:
    assert kinds(run_for(replay, 200, throttle_reasons=0x4)) == []


@pytest.mark.parametrize("reason", [0x20, 0x40])
def test_heat_is_told_after_a_minute_and_with_the_rank(replay: Replay, reason: int) -> None:
    hot = {"throttle_reasons": reason, "temperature_c": 93.0, "sm_clock_mhz": 1000.0}
    assert run_for(replay, 50, **hot) == []
    (found, *_) = run_for(replay, 60, 50, **hot)
    assert (found.kind, found.rank) == ("thermal-throttling", 1)
    assert "93 °C" in found.evidence
    again = run_for(replay, 200, 110)
    assert kinds(again) == []


def test_heat_for_moments_is_none(replay: Replay) -> None:
    for begin in range(0, 300, 60):
        run_for(replay, 10, begin, throttle_reasons=0x20)
        assert kinds(run_for(replay, 50, begin + 10)) == []


def test_a_power_brake_and_a_clock_that_drops(replay: Replay) -> None:
    run_for(replay, 100)
    found = run_for(replay, 100, 100, throttle_reasons=0x80, sm_clock_mhz=1100.0)
    assert "power-throttling" in kinds(found)
    found = run_for(replay, 100, 200, throttle_reasons=0x88, sm_clock_mhz=1100.0)
    assert "thermal-throttling" not in kinds(found)  # a brake is told as a slowdown too
    found = run_for(replay, 200, 300, sm_clock_mhz=1100.0)
    assert "slow-clock" in kinds(found)


def test_a_slowdown_of_a_cool_card_is_one_of_power(replay: Replay) -> None:
    """Not every card tells why its hardware slows it down; a fast power protection is told so."""
    run_for(replay, 100)
    slowed = {"throttle_reasons": 0x8, "sm_clock_mhz": 1100.0}
    found = run_for(replay, 100, 100, **slowed, temperature_c=55.0)
    assert "power-throttling" in kinds(found)
    assert "thermal-throttling" not in kinds(found)
    found = run_for(replay, 100, 200, **slowed, temperature_c=91.0)
    assert "thermal-throttling" in kinds(found)


def test_a_card_with_a_lower_power_limit_than_its_peers_is_named_so(replay: Replay) -> None:
    cards = [gpu(2), gpu(3), gpu(4), gpu(5, throttle_reasons=0x4, sm_clock_mhz=900.0)]
    found = replay.samples([sample(1010.0 + n, gpus=cards) for n in range(100)])
    (slow,) = (one for one in found if one.kind == "slow-clock")
    assert "power limit" in slow.cause
    assert "heat" not in slow.cause


def test_a_gpu_that_gives_no_reading_any_more(replay: Replay) -> None:
    run_for(replay, 30)
    nothing = dict.fromkeys(
        ("util", "memory_bytes", "temperature_c", "power_w", "sm_clock_mhz", "throttle_reasons")
    )
    found = run_for(replay, 5, 30, **nothing)
    assert kinds(found) == ["gpu-lost"]
    assert found[0].rank == 1


def test_the_second_slice_of_a_card_is_the_second_rank(tmp_path: Path) -> None:
    gpus = [{"index": 3, "uuid": f"MIG-{n}", "name": "1g.10gb"} for n in range(2)]
    replay = Replay(tmp_path, device="cuda", cluster={"gpus": gpus}, processes=2)
    replay.rows([row(1, 3.0)])
    silent = {"index": 3, **dict.fromkeys(("util", "memory_bytes", "temperature_c"))}
    lines = [sample(1010.0 + n, gpus=[gpu(3), gpu(3) if n < 9 else silent]) for n in range(15)]
    found = replay.samples(lines)
    (lost,) = (one for one in found if one.kind == "gpu-lost")
    assert (lost.rank, lost.gpu) == (1, 3)
    assert lost.evidence.startswith("gpu3:1 returned no reading")


def watched(replay: Replay, put: Callable[[Pod], Placed], pod: Pod) -> list[Finding]:
    """What two of four cards are found to have in a minute, asked every five seconds."""
    placed, errors = put(pod), GpuErrors()
    found: list[Finding] = []
    for second in range(0, 60, 5):
        placed.second = second
        replay.facts = {"monotonic": float(second), "ranks": {0: RankFacts()}}
        replay.look(2000.0 + second)
        found = list(errors.rule(replay.diagnoser.evidence))
    return found


@pytest.mark.parametrize(
    ("xid", "severity", "advice"),
    [
        (79, "error", "another machine"),
        (48, "error", "Exclude the GPU"),
        (63, "warning", "Continue"),
        (999, "error", "dmesg"),
        (43, "warning", "card is fine"),
        (45, "warning", "card is fine"),
        (69, "warning", "CUDA_LAUNCH_BLOCKING"),
        (109, "warning", "restart the run"),
        (46, "error", "reset"),
    ],
)
def test_xids_become_advice(
    replay: Replay, put: Callable[[Pod], Placed], xid: int, severity: str, advice: str
) -> None:
    (found,) = watched(replay, put, Pod("h100-sxm", 4).xid(12, 3, xid).xid(14, 0, 48))
    assert (found.kind, found.rank, found.severity) == (f"xid-{xid}", 1, severity)
    assert advice in found.next


def test_the_same_xid_of_two_cards_is_told_of_both(
    replay: Replay, put: Callable[[Pod], Placed]
) -> None:
    found = watched(replay, put, Pod("h100-sxm", 4).xid(12, 2, 79).xid(12, 3, 79))
    assert [(one.kind, one.rank) for one in found] == [("xid-79", 0), ("xid-79", 1)]


def test_memory_errors_are_counted_from_the_start(
    replay: Replay, put: Callable[[Pod], Placed]
) -> None:
    pod = Pod("h100-sxm", 4).at(0, 2, ecc=5).at(0, 3, ecc=7).at(40, 3, ecc=9)
    (found,) = watched(replay, put, pod)
    assert (found.kind, found.rank) == ("ecc-errors", 1)
    assert "counted 2 uncorrectable" in found.evidence


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((7, 9, 0, 3), 5),
        ((7, 0, 1), 1),  # less than at the start, and yet new
        ((7, 3), 3),
        ((7, 0), 0),
        ((0, 2, 0, 0, 2), 4),
    ],
)
def test_memory_errors_after_a_reset_add_to_those_before(
    replay: Replay, put: Callable[[Pod], Placed], counts: tuple[int, ...], told: int
) -> None:
    pod = Pod("h100-sxm", 4)
    for number, count in enumerate(counts):
        pod = pod.at(10 * number, 3, ecc=count)
    found = watched(replay, put, pod)
    assert [f"counted {told} uncorrectable" in one.evidence for one in found] == [True] * bool(told)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
        "*",
    ],
)
def test_a_driver_that_is_missing_or_broken_says_nothing(
    replay: Replay, put: Callable[[Pod], Placed], function: str
) -> None:
    broken = Pod("h100-sxm", 4).xid(12, 3, 79).error(0, function, 18)  # library mismatch
    assert watched(replay, put, broken) == []
    record(
        38,
        "throttling, clocks, ECC and Xid told; a missing or raising driver is no finding and no crash",
    )


def test_errors_of_another_machine_are_found_there(
    tmp_path: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent reports its own cards; the rules look on node 0, whose cards are well."""
    cards = {"gpus": [{"index": index} for index in range(2)]}
    replay = Replay(tmp_path, device="cuda", cluster=cards, nodes=2, processes=4)
    replay.rows([row(1, 3.0)])
    run, view = replay.diagnoser.evidence.run, NodeView(replay.paths, replay.diagnoser.evidence.run)
    replay.paths.nodes.mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    pod = Pod("h100-sxm", 4).at(0, 3, ecc=2).at(20, 3, ecc=9)
    placed = put(pod.xid(20, 1, 79).xid(20, 0, 48))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    agent = NodeAgent(replay.paths, run, 1, print)
    agent._report()
    placed.second = 25
    monkeypatch.setattr(agent._gpu_errors, "_due", 0.0)
    agent._report()
    view.look()
    replay.facts = {"ranks": {0: RankFacts()}, "nodes": view.facts(training=True)}
    replay.look(2000.0)
    quiet = GpuErrors()
    monkeypatch.setattr(quiet.watch, "look", lambda _order, _at: ())
    found = {one.kind: one for one in quiet.rule(replay.diagnoser.evidence)}
    assert {kind: one.rank for kind, one in found.items()} == {"xid-79": 3, "ecc-errors": 2}
    assert found["xid-79"].evidence == "The driver reported Xid 79 on gpu1 of node 1."
    assert "gpu3 of node 1 counted 7 uncorrectable" in found["ecc-errors"].evidence
