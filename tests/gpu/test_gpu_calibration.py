"""Calibrating real GPUs: CUDA products, NCCL where there are several, the catalog beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench as wb
from workbench.compare.calibration.calibrate import (
    calibrate,
    measured_conditions,
    stored_calibration,
)
from workbench.describe.detection import detect_host
from workbench.estimate.calibration_check import lines, troubles
from workbench.estimate.host_step import predict_step

HOST = detect_host()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not HOST.gpus, reason="no NVIDIA GPU on this host"),
    pytest.mark.skipif(
        bool(HOST.gpus) and HOST.accelerator is None, reason="the catalog does not have this GPU"
    ),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("calibrated")
    calibrate(root)
    return root


def test_rates_are_those_of_the_part(store: Path) -> None:
    found = stored_calibration(store)
    assert found is not None
    assert found.device == "cuda"
    print(json.dumps([[one.name, one.measured, one.expected, one.ratio] for one in lines(found)]))
    print([one.what for one in troubles(found)])
    given = measured_conditions(HOST, store)
    assert given is not None
    assert given.matmul_share is not None
    assert 0.3 < given.matmul_share < 1.05
    assert given.memory_share is not None
    assert 0.5 < given.memory_share < 1.05
    assert found.host_to_device
    assert found.slow_clock is None or 0.2 < found.slow_clock <= 1.01
    if len(HOST.gpus) > 1:
        assert {one.backend for one in found.collectives} == {"nccl"}
        assert given.link_share is not None


def test_a_step_of_the_recipe_is_within_a_tenth(store: Path) -> None:
    """The whole table: python -m tests.benchmarks.predicted_steps."""
    count = len(HOST.gpus)
    strategy = "ddp" if count > 1 else "single"
    arguments = ["--size", "12", "--seq-len", "1024", "--micro-batch", "16", "--eval-every", "0"]
    run = wb.launch(
        "gpt", [*arguments, "--steps", "60"], strategy=strategy, processes=count, store=store
    )
    assert run.wait(280) == "succeeded", run.status
    measured = run.summary()["step_seconds_median"]
    asked = wb.request("gpt", arguments, strategy=strategy, processes=count)
    assert asked.workload is not None
    predicted = predict_step(asked.workload, asked.strategy, HOST, stored_calibration(store))
    assert predicted is not None
    assert predicted.step_seconds == pytest.approx(measured, rel=0.10)
