"""Calibrating this very host, in real processes; what is kept, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import workbench as wb
from tests.conftest import until
from workbench.compare.calibration import probe_processes
from workbench.compare.calibration.calibrate import (
    calibrate,
    measured_conditions,
    stored_calibration,
)
from workbench.compare.calibration.probe_processes import ProbeProcesses
from workbench.describe.detection import detect_host
from workbench.estimate.host_step import predict_step
from workbench.store import calibrations

pytestmark = [pytest.mark.slow, pytest.mark.full]
COMMAND = [sys.executable, "-m", "workbench.cli", "calibrate"]


def probes_left() -> list[psutil.Process]:
    mine: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "workbench.compare.calibration.probes.worker" in process.cmdline():
                mine.append(process)
    return mine


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, wb.Store]:
    root = tmp_path_factory.mktemp("calibrated") / "runs"
    told: list[tuple[float, str]] = []
    made = calibrate(
        root, seconds=5, cpu=True, processes=[2], on_progress=lambda *one: told.append(one)
    )
    assert stored_calibration(root, cpu=True) == made
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    assert (told[0], told[-1]) == ((0.0, "starting"), (1.0, "done"))
    return root, wb.Store(root)


def test_everything_is_measured_for_one_and_two_processes(measured: tuple[Path, wb.Store]) -> None:
    found = stored_calibration(measured[0], cpu=True)
    assert found is not None
    assert {one.processes for one in found.products} == {1, 2}
    assert {one.kind for one in found.collectives} == {"all-reduce", "all-gather", "reduce-scatter"}
    assert {(one.ranks, one.backend) for one in found.collectives} == {(2, "gloo")}
    assert all(one.exchange_seconds == 0 for one in found.steps if one.processes == 1)
    assert found.disk_write
    assert found.loader_tokens
    assert found.versions["torch"]
    assert 0 < found.seconds < 600
    # Physics: a core makes between 0.1 and 2,000 GFLOP/s, larger messages take longer.
    assert all(1e8 < one.flops_per_second < 2e12 for one in found.products)
    sent = {one.bytes: one.seconds for one in found.collectives if one.kind == "all-reduce"}
    assert sent[25 << 20] > sent[64 << 10]


def test_a_step_of_the_recipe_is_predicted_from_it(measured: tuple[Path, wb.Store]) -> None:
    found = stored_calibration(measured[0], cpu=True)
    host = dataclasses.replace(detect_host(), gpus=(), accelerator=None)
    small, large = (
        wb.request("gpt", ["--size", size], strategy="ddp", processes=2, cpu=True)
        for size in ("2", "4")
    )
    assert small.workload is not None
    assert large.workload is not None
    one = predict_step(small.workload, small.strategy, host, found)
    two = predict_step(large.workload, large.strategy, host, found)
    assert one is not None
    assert two is not None
    assert 1e-3 < one.step_seconds < two.step_seconds < 60
    assert measured_conditions(host, measured[0]) is None  # it has no figures of a GPU


def test_the_store_lists_no_run_of_it(measured: tuple[Path, wb.Store]) -> None:
    root, store = measured
    assert store.ids() == []
    key = calibrations.host_key(detect_host(), cpu=True)
    assert [one.name for one in (root / "calibrations").iterdir()] == [f"{key}.json"]
    assert probes_left() == []


def test_the_command_shows_what_is_kept(measured: tuple[Path, wb.Store]) -> None:
    where = ["--store", str(measured[0]), "--cpu", "--show"]
    shown = subprocess.run([*COMMAND, *where], capture_output=True, text=True, check=True)
    assert "all-reduce, 2 ranks, gloo" in shown.stdout
    assert "matmul fp32" in shown.stdout
    told = subprocess.run([*COMMAND, *where, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(told.stdout)
    assert set(document) == {"calibration", "lines", "troubles", "stacks"}
    assert document["calibration"]["device"] == "cpu"


def test_without_one_the_command_says_so(tmp_path: Path) -> None:
    shown = subprocess.run(
        [*COMMAND, "--show", "--store", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 1
    assert "workbench calibrate" in shown.stdout


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    child = subprocess.Popen(
        [*COMMAND, "--store", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    until(lambda: len(probes_left()) == 4, 120, "four processes")
    ours = probes_left()
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=240)
    assert child.returncode == 1, said
    assert "nothing was saved" in said
    until(lambda: not any(one.is_running() for one in ours), 30, "no process left")
    assert list((tmp_path / "calibrations").iterdir()) == []


def test_a_dead_probe_is_told_in_its_own_words(tmp_path: Path) -> None:
    def kill_one() -> None:
        until(lambda: len(probes_left()) == 2, 120, "two processes")
        probes_left()[-1].kill()

    threading.Thread(target=kill_one, daemon=True).start()
    with pytest.raises(wb.HostError, match=r"ended early.*[Nn]othing was\s+saved"):
        calibrate(tmp_path, seconds=5, cpu=True, processes=[2])
    assert probes_left() == []
    assert stored_calibration(tmp_path, cpu=True) is None


def test_a_host_that_is_too_busy_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_processes, "LEAST_PATIENCE", 0.3)
    probes = ProbeProcesses([1], device="cpu", cores=1, seconds=0.01, folder=tmp_path)
    try:
        with pytest.raises(wb.HostError, match="too busy"):
            probes.follow(lambda _message: None)
    finally:
        probes.end()
    assert probes_left() == []


def test_what_cannot_be_measured_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(wb.UsageError, match="at least 5 s"):
        calibrate(tmp_path, seconds=1)
    with pytest.raises(wb.UsageError, match="is not this host"):
        calibrate(tmp_path, cluster=wb.Cluster.rented("h100"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(wb.StoreError, match="must be a folder"):
        calibrate(blocked)
