"""A store of 200 runs, some of them broken, is listed within a second and without its logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from tests.cpu_budget import over_budget
from tests.faults.matrix import record
from workbench.store.layout import RunPaths

RUNS = 200
GARBAGE: dict[str, bytes] = {
    "torn": b'{"run": "x", "created',
    "empty": b"",
    "nul": b"\x00" * 4096,
    "list": b"[1, 2, 3]",
    "deep": b"[" * 100_000,
    "numbers": json.dumps(
        dict.fromkeys(
            ("created_at", "heartbeat", "started_at", "steps", "processes", "phase", "supervisor"),
            "not what it should be",
        )
    ).encode(),
    "nulls": json.dumps(
        dict.fromkeys(("created_at", "heartbeat", "ranks", "arguments", "steps", "launcher"))
    ).encode(),
}


def write_run(root: Path, number: int) -> RunPaths:
    """A finished run as it really looks: a full view and a log that no one should open."""
    paths = RunPaths(root / f"run-{number:03}")
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    run = {
        "schema": 1,
        "run": paths.directory.name,
        "name": f"run {number}",
        "marker": "m",
        "created_at": 1.7e9 + number,
        "script": "gpt.py",
        "arguments": ["--steps", "9"],
        "strategy_name": "ddp",
        "processes": 2,
        "device": "cpu",
        "capture": True,
        "predicted": {"memory": {"parts": dict.fromkeys(map(str, range(20)), 1)}},
    }
    columns = {name: [1.234567] * 320 for name in ("step", "time", "loss", "lr", "grad_norm")}
    view = {"steps": 9, "loss_first": 2.0, "loss_last": 1.0, "series": columns}
    view["ranks"] = [{"rank": rank, "log_tail": ["x" * 80] * 60} for rank in range(2)]
    state = {"phase": "ended", "started_at": 1.7e9 + number, "heartbeat": 1.7e9, "ranks": {}}
    ended = {"outcome": "succeeded", "message": "9 steps.", "ended_at": 1.7e9, "exit_code": 0}
    for path, document in (
        *((paths.run, run), (paths.view, view), (paths.state, state), (paths.exit, ended)),
    ):
        path.write_text(json.dumps(document))
    with paths.rank_log(0).open("wb") as log:
        log.truncate(2**40)  # a sparse terabyte: whoever reads it is noticed
    with paths.rank_metrics(0).open("wb") as metrics:
        metrics.truncate(2**40)
    return paths


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 200 runs every fifth is broken: each file in each way, and two that are no runs."""
    root = tmp_path_factory.mktemp("runs")
    runs = [write_run(root, number) for number in range(RUNS)]
    ways = [(name, kind) for name in ("run", "state", "view", "exit") for kind in GARBAGE]
    for paths, (name, kind) in zip(runs[::5], ways, strict=False):
        getattr(paths, name).write_bytes(GARBAGE[kind])
        if name == "state":
            paths.exit.unlink()  # so that the state decides
    for name in ("run", "state", "view", "exit"):
        path = getattr(runs[ways.index(("run", "torn")) + 150 + len(name)], name)
        path.unlink()
        path.mkdir()  # a folder where a file should be
    (root / "link").symlink_to(root / "run-001")
    (root / "no-run").mkdir()
    return root


def test_the_good_ones_are_listed_whatever_the_others_are(store: Path) -> None:
    found = {run["run"]: run for run in wb.runs(store)}
    assert found["run-001"]["outcome"] == "succeeded"
    assert found["run-001"]["steps"] == 9
    whole = [f"run-{number:03}" for number in range(150) if number % 5]
    assert set(whole) <= set(found)
    assert {"link", "no-run"}.isdisjoint(found)
    assert json.loads(json.dumps(list(found.values()), allow_nan=False))


def test_it_is_listed_within_a_second(store: Path) -> None:
    assert not over_budget(min(cpu_seconds(lambda: wb.runs(store)) for _ in range(3)), 1.0)
    record(35, "200 runs, 28 broken: listed within 1 s of processor time")


@pytest.mark.slow
def test_the_command_lists_them_all(store: Path) -> None:
    """How long it takes is a row of `make bench`."""
    call = (sys.executable, "-m", "workbench.cli", "runs", "--json", "--store", str(store))
    printed = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    assert {run["run"] for run in json.loads(printed)} == {run["run"] for run in wb.runs(store)}


def cpu_seconds(action: Callable[[], object]) -> float:
    """Processor time, ours and our children's: listing waits for nothing, and CI's host may."""
    before = os.times()
    action()
    return sum(os.times()[:4]) - sum(before[:4])
