"""The simulated driver has every function that the workbench calls, and each of them is called."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.diagnose.sample import Replay, row
from tests.pod.place import Placed, library
from tests.pod.symbols import called_symbols
from workbench.describe.detection import detect_host
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hardware import GpuErrors
from workbench.observe import doctor
from workbench.observe.gpu import GpuSampler
from workbench.rehearsing.driver.pod import Pod, Slice


def test_it_has_every_function_that_the_workbench_calls() -> None:
    known = ctypes.CDLL(str(library()))
    assert len(called_symbols()) > 20
    assert [name for name in sorted(called_symbols()) if not hasattr(known, name)] == []


def test_a_torch_for_the_cpu_on_a_node_with_gpus(put: Callable[[Pod], Placed]) -> None:
    put(Pod("h100-sxm", 8))
    facts = {"torch": "2.13.0+cpu", "cuda": None, "available": False, "gpus": 0, "archs": []}
    torch, gpus = doctor._check_torch(facts), doctor._check_gpus(facts)
    assert "this torch has no CUDA. Install a torch that fits" in torch["fix"]
    assert "whl/cu126 python3 environments/setup_venv.py --rebuild" in torch["fix"]
    assert gpus["fix"] == "No rank could use the 8 GPUs: see the torch check."


def test_each_of_them_is_called(
    tmp_path: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from workbench.compare.calibration.probes import clocks

    pod = Pod("a100-sxm-80", 3).processes(0, 0, {os.getpid(): 1 << 30}).xid(5, 0, 48)
    pod.error(1, "nvmlDeviceGetComputeRunningProcesses_v3", 13, until=2)
    pod.slices(0, 2, [Slice(uuid="MIG-a", name="1g.10gb", memory_bytes=10 << 30)])
    placed = put(pod)
    assert detect_host().gpus[0].is_slice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    facts = {"torch": "2.13", "cuda": "12.8", "available": True, "gpus": 2, "archs": ["sm_80"]}
    checks = [doctor._check_torch(facts), doctor._check_gpus(facts), doctor._check_links()]
    assert [one["fix"] for one in checks] == [None] * 3
    assert checks[1]["found"] == ("2 x NVIDIA A100-SXM4-80GB 80 GiB; driver 570.86.15 (CUDA 12.8)")
    assert checks[2]["found"] == "12 NVLinks active on GPU 0"
    sampler = GpuSampler()
    sampler.sample()
    placed.second = 1
    assert sampler.memory_of({os.getpid()}) == 1 << 30  # of an older driver
    placed.second = 2
    assert sampler.memory_of({os.getpid()}) == 1 << 30
    assert sampler.memory_errors() == {0: 0, 1: 0}
    cluster = asdict(detect_host())
    replay, errors = Replay(tmp_path, device="cuda", cluster=cluster), GpuErrors()
    replay.rows([row(1, 3.0)])
    replay.facts = {"ranks": {0: RankFacts()}}
    replay.look(2000.0)
    list(errors.rule(replay.diagnoser.evidence))
    placed.second = 10
    assert [one.kind for one in errors.rule(replay.diagnoser.evidence)] == ["xid-48"]
    # The calibration's probe, as far as it goes without CUDA: the card's load is left out.
    card = SimpleNamespace(uuid=pod.uuid(0).removeprefix("GPU-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(
        clocks,
        "_under_load",
        lambda _group, lib, handle, _seconds: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM),
    )
    group: Any = SimpleNamespace(device=torch.device("cuda"))
    assert clocks.measure(group, 0) == {"slow_clock": pytest.approx(0.2)}
    assert called_symbols() - set(placed.calls) == frozenset()
