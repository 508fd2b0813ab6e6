"""The battery on a simulated GPU: what runs, what is skipped by name, and that no one believes it."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import until
from tests.gpu.battery.catalog import CASES
from tests.gpu.battery.runner import results
from tests.pod.place import library
from workbench.store import processes

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 2 * 9 * 60.0
"""Nine minutes of two cores."""
NEED_A_CARD = {
    "two-ranks-nccl": "NCCL needs a GPU that computes",
    "steps-bf16": "bf16 steps need a GPU that computes",
    "steps-fp16": "fp16 steps need a GPU that computes",
    "steps-fp8": "fp8 steps need a GPU that computes",
}
NEED_A_PACKAGE = {
    case.name for case in CASES if {"bitsandbytes", "peft", "deepspeed"} & set(case.packages)
}
LAUNCHED = "recipe-0.1B,two-ranks-gloo,fault-killed,fault-hang,fault-nan,fault-oom,too-many-ranks"


def battery(out: Path, *words: str) -> subprocess.Popen[str]:
    library()  # without a compiler the test is skipped
    command = [sys.executable, "-m", "tests.gpu.battery", "--simulated", "--out", str(out), *words]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    assert not (out / "results.jsonl").exists()
    rows = results(out / "simulated.jsonl")
    assert all(row["simulated"] for row in rows)
    assert all("(simulated)" in row["card"]["name"] for row in rows)
    assert {row["requested_device"] for row in rows} <= {"cpu"}
    return {row["case"]: row for row in rows}


def wait_for_runs(out: Path, count: int) -> None:
    """Until there are so many results, and a run that has begun."""
    path, folder = out / "simulated.jsonl", out / "runs-simulated"
    until(lambda: len(results(path)) >= count and any(folder.glob("*/state.json")), seconds=300)


@pytest.mark.slow
def test_a_short_selection(tmp_path: Path) -> None:
    done = battery(tmp_path, "--only", "nvml,too-many-ranks,two-ranks-nccl")
    said, _ = done.communicate()
    assert done.returncode == 0, said
    assert "nothing below was measured on a GPU" in said
    rows = rows_of(tmp_path)
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    assert outcomes == {"nvml": "passed", "too-many-ranks": "passed", "two-ranks-nccl": "skipped"}
    assert rows["nvml"]["measured"]["hot"]["temperature_c"] == 93
    assert rows["nvml"]["measured"]["lost"]["power_w"] is None
    refused = battery(tmp_path, "--device", "cuda")
    said, _ = refused.communicate()
    assert (refused.returncode, "the driver here is the simulated one" in said) == (1, True)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(2700)
def test_every_case_runs_or_says_what_it_lacks(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = battery(tmp_path, "--minutes", "40")
    said, _ = done.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert done.returncode == 0, said
    rows = rows_of(tmp_path)
    assert rows.keys() == {case.name for case in CASES}
    skipped = {name: row["reason"] for name, row in rows.items() if row["outcome"] == "skipped"}
    for name, reason in NEED_A_CARD.items():
        assert skipped.pop(name).startswith(reason)
    assert skipped.keys() <= NEED_A_PACKAGE
    assert all("cannot be imported here" in reason for reason in skipped.values())
    print(f"the battery on a simulated GPU takes {spent:.0f} CPU s and what its runs take")
    assert spent < CPU_SECONDS


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_killed_amid_its_runs_it_finishes_and_leaves_none(tmp_path: Path) -> None:
    draw, path = random.Random(7), tmp_path / "simulated.jsonl"
    cases = LAUNCHED.split(",")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        running = battery(tmp_path, "--only", LAUNCHED, "--minutes", "20")
        known = len(results(path))
        wait_for_runs(tmp_path, known + draw.randint(0, 1))
        os.kill(running.pid, number)
        running.communicate()
        assert len(results(path)) >= known
    last = battery(tmp_path, "--only", LAUNCHED, "--minutes", "20")
    said, _ = last.communicate()
    assert last.returncode == 0, said
    assert {row["outcome"] for row in rows_of(tmp_path).values()} == {"passed"}
    lines = path.read_text().splitlines()
    assert sorted(json.loads(line)["case"] for line in lines) == sorted(cases)
    records = (tmp_path / "runs-simulated").glob("*/run.json")
    markers = [json.loads(record.read_text())["marker"] for record in records]
    assert [process for marker in markers for process in processes.find_marked(marker)] == []
