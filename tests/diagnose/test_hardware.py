"""GPUs that throttle, err and vanish. NVML is a fake here: no machine breaks on request."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import Replay, gpu, kinds, row, sample
from tests.faults.matrix import record
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hardware import GpuErrors

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


def test_a_gpu_that_gives_no_reading_any_more(replay: Replay) -> None:
    run_for(replay, 30)
    nothing = dict.fromkeys(
        ("util", "memory_bytes", "temperature_c", "power_w", "sm_clock_mhz", "throttle_reasons")
    )
    found = run_for(replay, 5, 30, **nothing)
    assert kinds(found) == ["gpu-lost"]
    assert found[0].rank == 1


def library(**functions: Any) -> types.SimpleNamespace:
    """An NVML whose handles are the indices."""
    known: dict[str, Any] = {
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlEventSetCreate": lambda: "set",
        "nvmlDeviceRegisterEvents": lambda *_: None,
        "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
    }
    return types.SimpleNamespace(**(known | functions))


def watched(replay: Replay, fake: Any) -> list[Any]:
    rule = GpuErrors(load=lambda: fake).rule
    found: list[Any] = []
    for second in range(0, 60, 5):
        replay.facts = {"monotonic": float(second), "ranks": {0: RankFacts()}}
        replay.look(2000.0 + second)
        found = list(rule(replay.diagnoser.evidence))
    return found


@pytest.mark.parametrize(
    ("xid", "severity", "advice"),
    [
        (79, "error", "another machine"),
        (48, "error", "Exclude the GPU"),
        (63, "warning", "Continue"),
        (999, "error", "dmesg"),
    ],
)
def test_xids_become_advice(replay: Replay, xid: int, severity: str, advice: str) -> None:
    events = [types.SimpleNamespace(eventData=xid, device=3)]

    def wait(*_: Any) -> Any:
        if events:
            return events.pop()
        raise RuntimeError("time-out")

    (found,) = watched(replay, library(nvmlEventSetWait_v2=wait))
    assert (found.kind, found.rank, found.severity) == (f"xid-{xid}", 1, severity)
    assert advice in found.next


def test_memory_errors_are_counted_from_the_start(replay: Replay) -> None:
    counts = iter([5, 7] + [5, 7] * 2 + [5, 9] * 20)
    fake = library(nvmlDeviceGetTotalEccErrors=lambda handle, *_: next(counts))
    (found,) = watched(replay, fake)
    assert (found.kind, found.rank) == ("ecc-errors", 1)
    assert "counted 2 uncorrectable" in found.evidence


def raising(*_: Any) -> Any:
    raise OSError("Driver/library version mismatch")


@pytest.mark.parametrize(
    "fake",
    [
        None,
        types.SimpleNamespace(),
        library(nvmlDeviceGetHandleByIndex=raising),
        library(nvmlEventSetCreate=raising, nvmlDeviceGetTotalEccErrors=raising),
        library(nvmlEventSetWait_v2=lambda *_: None),
    ],
)
def test_a_driver_that_is_missing_or_broken_says_nothing(replay: Replay, fake: Any) -> None:
    assert watched(replay, fake) == []
    record(
        38,
        "throttling, clocks, ECC and Xid told; a missing or raising driver is no finding and no crash",
    )
