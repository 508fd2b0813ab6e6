"""Real steps on a CUDA card beside the closed forms: memory within 3 and 7 %, time in its range.

Every case runs in a process of its own. The measurements are kept in tests/gpu/results/memory.json
with device, versions and date; `python -m pytest tests/gpu/test_gpu_memory.py` on a GPU renews it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from tests.gpu.memory_probe import CASES, Case
from tests.gpu.results import FOLDER, keep
from workbench.estimate.memory import training_memory

GPUS = wb.detect_host().gpus
HERE = Path(__file__).parent
RESULTS = FOLDER / "memory.json"
on_a_gpu = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this host")


def needs_bitsandbytes(case: Case) -> bool:
    return case.workload.quantization != "none" or case.workload.optimizer.endswith("8bit")


@pytest.mark.timeout(900)  # 8B weights are filled on the host
@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.slow
@on_a_gpu
@pytest.mark.parametrize("name", CASES)
def test_real_steps_meet_the_prediction(name: str) -> None:
    case = CASES[name]
    if needs_bitsandbytes(case) and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    predicted = training_memory(case.workload, case.strategy)
    if predicted.on_card_bytes > 0.95 * GPUS[0].memory_bytes:
        pytest.skip(f"needs {predicted.on_card_bytes / 2**30:.0f} GiB")
    command = [sys.executable, "-m", "tests.gpu.memory_probe", name]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    host = wb.detect_host()
    timed = None
    if host.accelerator is not None:
        here = replace(host, gpus=host.gpus[:1])
        timed = wb.step_time(case.workload, case.strategy, here)
        measured["predicted_step_seconds"] = timed.step_seconds
    keep("memory", str(measured["case"]), measured)
    allocated = predicted.allocated_bytes / measured["allocated_bytes"]
    reserved = predicted.reserved_bytes / measured["reserved_bytes"]
    assert allocated == pytest.approx(1, abs=0.03)
    assert reserved == pytest.approx(1, abs=0.07)
    if timed is not None:  # uncalibrated: twice the stated range is a fault of ours
        ratio = measured["step_seconds"] / timed.step_seconds
        assert timed.low**2 < ratio < timed.high**2


@pytest.mark.full
@pytest.mark.slow
def test_the_probe_trains_for_real_also_without_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.gpu.memory_probe", "0.1b-check", "--device", "cpu"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["versions"]["torch"]


@pytest.mark.skipif(not RESULTS.is_file(), reason="no measurement has been kept yet")
def test_kept_measurements_say_where_they_come_from() -> None:
    for name, one in json.loads(RESULTS.read_text()).items():
        assert name == f"{one['case']} on {one['device']}"
        assert one["date"]
        assert one["versions"]["torch"]
        assert 0 < one["allocated_bytes"] <= one["reserved_bytes"]
