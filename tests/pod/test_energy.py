"""Energy and limits of real runs, on a node that there is not: counted on by the next supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, TINY_GPT, until
from tests.pod.place import Placed
from workbench.launching.prepare import preflight
from workbench.observe.gpu import GpuSampler
from workbench.recover.policy import Recovery
from workbench.rehearsing.driver.pod import Pod
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

Put = Callable[[Pod], Placed]
DEVICES = ("0", "1")


@pytest.fixture
def launched(store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., wb.Run]:
    """Two gloo ranks; they stand in for those of a torch with CUDA."""
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)

    def launch(**options: Any) -> wb.Run:
        words = ["--steps", "100000", "--step-seconds", "0.01"]
        script = SCRIPTS / "raw_ddp.py"
        return wb.launch(
            script, words, processes=2, devices=DEVICES, store=store, warm=True, **options
        )

    return launch


def energy(run: wb.Run) -> dict[str, Any]:
    return (run.view() or {}).get("energy") or {}


def begun(run: wb.Run, placed: Placed) -> None:
    """Steps are made, and both cards have been read at second 1, from which on they count."""
    placed.second = 1
    until(lambda: run.view().get("steps", 0) > 3, what=lambda: run.logs(0)[-2000:])
    until(lambda: energy(run).get("joules") is not None)


def counters(pod: Pod) -> tuple[float | None, ...]:
    return tuple(one.energy_joules for one in GpuSampler().sample()[: len(DEVICES)])


def test_the_counter_grows_with_the_power_of_the_timeline(put: Put) -> None:
    pod = Pod("h100-sxm", 2).busy(0, 0, power_mw=500_000).at(10, 0, power_mw=100_000)
    placed = put(pod.at(15, 0, energy_mj="-"))
    placed.second = 4
    assert counters(pod) == (5000 + 4 * 500, 5000.001 + 4 * 70)
    placed.second = 14
    assert counters(pod)[0] == 5000 + 10 * 500 + 4 * 100
    placed.second = 15
    assert counters(pod)[0] is None


@pytest.mark.slow
def test_a_run_takes_what_the_counters_say_and_stops_at_its_limit(
    launched: Callable[..., wb.Run], put: Put
) -> None:
    """The seconds are the timeline's, whose clock stands still until it is set."""
    placed = put(Pod("h100-sxm", 8).busy(0, (0, 1), power_mw=500_000))
    run = launched(grid_gco2e_per_kwh=100.0, recovery=Recovery(max_kwh=1))
    begun(run, placed)
    placed.second = 1_001
    until(lambda: energy(run)["joules"] >= 1e6)
    told = energy(run)
    assert told["gpu_joules"] == 1_000_000.0
    assert told["co2e_grams"] == pytest.approx(told["joules"] / 3.6e6 * 100, rel=1e-5)
    assert told["grid_source"] == "given (--grid-co2e)"
    # The supervisor is killed; its watcher starts the next one, which continues counting.
    paths = RunPaths(run.directory)
    until(paths.energy.exists)
    first = (read_json(paths.state) or {})["supervisor"]["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: (read_json(paths.state) or {})["supervisor"]["pid"] != first)
    placed.second = 2_001
    until(lambda: energy(run)["gpu_joules"] >= 2e6, what=lambda: energy(run))
    assert energy(run)["gpu_joules"] == 2_000_000.0
    placed.second = 4_001  # and stops at its limit
    assert run.wait() == "stopped"
    assert "Its limit of 1 kWh was reached (--max-kwh)." in (run.status.message or "")
    assert run.summary()["energy"]["gpu_joules"] == 4_000_000.0
    assert "1.11 kWh" in (run.directory / "report.html").read_text(encoding="utf-8")
    why = run.why_not_resumable()
    assert "has used up its limit: 1.11 kWh of 1 kWh (--max-kwh" in why
    assert f"workbench resume {run.id} --max-kwh 2.2" in why


def test_energy_that_nobody_tells_limits_nothing(launched: Callable[..., wb.Run], put: Put) -> None:
    pod = Pod("h100-sxm", 2).error(0, "nvmlDeviceGetPowerUsage", 3)
    put(pod.error(0, "nvmlDeviceGetTotalEnergyConsumption", 3))
    with pytest.raises(wb.UsageError, match=r"--max-kwh 1 needs energy .* No GPU here tells"):
        launched(recovery=Recovery(max_kwh=1))


def test_dollars_without_a_price_limit_nothing(
    launched: Callable[..., wb.Run], put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(Pod("h100-sxm", 2))
    monkeypatch.delenv("WORKBENCH_USD_PER_HOUR", raising=False)
    with pytest.raises(
        wb.UsageError, match=r"--max-usd 5 needs the price .* WORKBENCH_USD_PER_HOU"
    ):
        launched(recovery=Recovery(max_usd=5))


@pytest.mark.full
def test_all_attempts_count_into_the_dollars(
    start: Callable[..., wb.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "3600")  # a dollar a second
    run = start("gpt", [*TINY_GPT, "--steps", "100000000"])
    until(lambda: run.view().get("steps", 0) > 10, what=lambda: run.logs(0)[-2000:])
    run.stop()
    spent = run.summary()["usd_so_far"]
    with pytest.raises(wb.UsageError, match=r"used up its limit: \$.* of \$.* \(--max-usd"):
        run.resume(recovery={"max_usd": spent / 2})
    again = run.resume(recovery={"max_usd": spent + 1})
    assert again.wait() == "stopped"
    assert again.id == run.id
    assert "was reached (--max-usd)." in (again.status.message or "")
    assert "Go on with" not in (again.status.message or "")
    assert again.summary()["usd_so_far"] >= spent + 1
    assert "used up its limit" in again.why_not_resumable()
