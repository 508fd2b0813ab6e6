"""20 error codes of NVML at each call of ours, and a driver that hangs: no reader fails or waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import Replay, row, sample
from tests.pod.place import Placed, forget
from tests.pod.symbols import called_symbols
from workbench.describe.bounded_calls import BoundedCalls
from workbench.describe.detection import detect_host, nvml
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hardware import GpuErrors
from workbench.observe import doctor
from workbench.observe.device_fleet import Devices
from workbench.observe.devices import read_devices
from workbench.observe.gpu import GpuSampler, PatientGpuSampler, gpus_of_record
from workbench.rehearsing.driver.pod import Pod

Put = Callable[[Pod], Placed]
CODES = (*range(1, 20), 999)
QUICK = (1, 3, 13, 15)  # not initialised, not supported, an older driver, a card that is lost
TORCH = {"cuda": "12.8", "torch": "2.13", "available": True, "gpus": 1, "archs": [], "nccl": "2"}
READINGS = {
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetClockInfo": "clock",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttling",
}


def shown(documents: list[dict[str, Any]], at: float, gpus: Any) -> list[str]:
    """What the device view says is missing."""
    devices = Devices(documents, 1, on_gpu=True)
    devices.add(0, sample(at, gpus=gpus))
    grid = devices.grid()
    assert grid is not None
    return grid["missing"]


@pytest.mark.parametrize("codes", [QUICK, pytest.param(CODES, marks=pytest.mark.full)], ids=len)
@pytest.mark.parametrize("function", sorted(called_symbols()))
def test_an_error_at_any_call_stops_no_reader(
    tmp_path: Path, put: Put, function: str, codes: tuple[int, ...]
) -> None:
    pod = Pod("h100-sxm", 2).busy(0, (0, 1)).processes(0, 0, {os.getpid(): 5})
    for second, code in enumerate(codes, 1):
        pod.error(second, function, code, device=0 if "Device" in function else -1)
        if function == "nvmlDeviceGetMemoryInfo":
            pod.error(second, f"{function}_v2", code, device=0)
    placed = put(pod)
    documents = [asdict(gpu) for gpu in detect_host().gpus]
    replay = Replay(tmp_path, device="cuda", cluster={"gpus": documents})
    replay.rows([row(1, 3.0)])
    before = GpuSampler(gpus_of_record({"gpus": documents}))
    before.sample()
    replay.facts = {"ranks": {0: RankFacts()}}
    for second, code in enumerate(codes, 1):
        placed.second = second
        forget()
        replay.facts["monotonic"] = 20.0 * second
        replay.look(2000.0 + second)
        assert list(GpuErrors().rule(replay.diagnoser.evidence)) == []
        host = detect_host()
        assert {gpu.index for gpu in host.gpus} <= {0, 1}
        if function != "nvmlInitWithFlags" and "Count" not in function:
            assert 1 in {gpu.index for gpu in host.gpus}, f"code {code} hides the other card"
        checks = [doctor._check_gpus(TORCH), doctor._check_torch(TORCH), doctor._check_links()]
        assert all(one["fix"] for one in checks if not one["ok"])
        read_devices(tmp_path, cuda=True)
        gpus = [one.document() for one in before.sample()]
        assert len(gpus) == 2
        assert gpus[1]["util"] == 97
        missing = shown(documents, 2000.0 + second, gpus)
        assert missing == (
            [f"The driver does not tell the {READINGS[function]} of gpu0."]
            if function in READINGS
            else []
        )
        old = function == "nvmlDeviceGetComputeRunningProcesses_v3"
        if old or "Processes" not in function:
            assert before.memory_of({os.getpid()}) == 5


def test_a_driver_that_fails_at_everything_is_told(tmp_path: Path, put: Put) -> None:
    placed = put(Pod("h100-sxm", 2).busy(0, (0, 1)).error(5, "*", 999))
    documents = [asdict(gpu) for gpu in detect_host().gpus]
    sampler = GpuSampler()
    placed.second = 5
    gpus = [one.document() for one in sampler.sample()]
    assert shown(documents, 5.0, gpus) == ["No readings from the driver for gpu0, gpu1."]
    assert doctor._check_gpus(TORCH)["ok"] is False
    assert read_devices(tmp_path, cuda=True) == ()


@pytest.mark.parametrize(
    "function", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetHandleByIndex_v2"]
)
def test_a_driver_that_hangs_holds_up_no_supervisor(put: Put, function: str) -> None:
    gpus = gpus_of_record({"gpus": [{"index": 0, "name": "H100", "memory_bytes": 1}]})
    put(Pod("h100-sxm", 1).busy(0, 0).stall(0, function, 60))
    sampler = PatientGpuSampler(gpus)
    began = time.monotonic()
    assert [one.util for one in sampler.sample()] == [None]
    assert [one.util for one in sampler.sample()] == [None]  # not asked again meanwhile
    assert sampler.memory_of({1}) is None
    assert time.monotonic() - began < 50


def test_a_call_that_hung_is_over_with_its_pod() -> None:
    assert nvml() is None or os.path.exists("/dev/nvidiactl")  # noqa: PTH110
    assert "asks the driver" not in {thread.name for thread in threading.enumerate()}


def test_an_answer_that_comes_late_is_none() -> None:
    asked, go = BoundedCalls(seconds=0.01), threading.Event()
    assert asked.ask(go.wait) is None
    assert asked.ask(lambda: 1) is None
    go.set()
    while asked.ask(lambda: 2) is None:
        time.sleep(0.001)
    assert asked.ask(lambda: 1 / 0) is None
