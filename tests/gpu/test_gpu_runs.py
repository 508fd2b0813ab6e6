"""The main job on real GPUs: NCCL ranks, NVML samples, asynchronous scalar reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb

GPUS = wb.detect_host().gpus
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this host"),
]


def test_recipe_on_all_gpus(tmp_path: Path) -> None:
    run = wb.launch("gpt", ["--steps", "60"], store=tmp_path)
    assert run.wait(280) == "succeeded", run.status
    summary = run.summary()
    assert summary["device"] == "cuda"
    assert summary["world_size"] == len(GPUS)
    assert summary["loss_last"] < 4
    rows = run.metrics(0)
    assert len(rows) == 60
    assert all(row["loss"] is not None and row["grad_norm"] is not None for row in rows)
    predicted = summary["predicted"]["memory"]["total_bytes"]
    assert 0.5 < max(summary["peak_memory_bytes"]) / predicted < 2


def test_every_gpu_is_sampled_and_freed(tmp_path: Path) -> None:
    run = wb.launch("gpt", ["--minutes", "0.3"], store=tmp_path)
    assert run.wait(280) == "succeeded", run.status
    devices = run.view()["devices"]
    assert len(devices) == len(GPUS)
    for device in devices:
        assert max(value for value in device["series"]["util"] if value is not None) > 20
        assert device["series"]["power_w"][-1] > 0
    assert wb.attach(run.id, tmp_path).stop()["processes_left"] == 0
