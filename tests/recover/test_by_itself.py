"""Programs that start a run again take what a plain script saved, as `workbench resume` does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.recover.saved import run_of_script, saved
from workbench.diagnose.failure import _again
from workbench.diagnose.instability import Instability
from workbench.launching import lead_node
from workbench.launching.resume.starting_point import start_by_itself, starting_point
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.restart import RestartController
from workbench.launching.supervise.rollback import Rollbacks
from workbench.launching.supervise.run_state import RunState
from workbench.storage.push import push
from workbench.storage.selection import chosen_checkpoints
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.status import Status

KILLED = Verdict(outcome="failed", message="The launcher was killed by SIGKILL (9)")


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run of a plain script that broke off after its third checkpoint."""
    policy = {"restarts": 2, "rollback_on": ["nan"]}
    paths = run_of_script(tmp_path, "r", ["--out", "out"], (0, None), outcome=None, recovery=policy)
    os.utime(paths.attempts)
    for step in (10, 20, 30):
        saved(tmp_path / f"out/ckpt_{step}.pt", step, step)
    (paths.metrics / "rank-0.jsonl").touch()
    return paths


def state_of(paths: RunPaths) -> RunState:
    run = read_run(paths)
    assert run is not None
    return RunState.of(paths, run)


def next_spec(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Any:
    controller = RestartController(state_of(paths))
    monkeypatch.setattr(controller, "_wait", lambda *_: True)
    monitor = SimpleNamespace(steps=35, first_step=0, write_view=lambda *_: None)
    return controller.next_spec(cast("RunMonitor", monitor), KILLED, -9)


def test_an_automatic_restart_goes_on_from_it(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = tmp_path / "out/ckpt_30.pt"
    newest.write_bytes(newest.read_bytes()[:-40])  # it was being written
    resume = next_spec(run, monkeypatch)["resume"]
    place = str(tmp_path / "out/ckpt_20.pt")
    assert (resume["step"], resume["checkpoint"]) == (20, place)
    assert resume["arguments"] == ["--out", "out", "--resume", place]
    assert "Checkpoint ckpt_30.pt is skipped" in resume["why"]


def test_a_script_that_cannot_be_told_begins_again(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print('it may find its checkpoint by itself')")
    resume = next_spec(run, monkeypatch)["resume"]
    assert (resume["step"], resume["checkpoint"]) == (0, None)
    assert "ckpt_30.pt is not taken: train.py has no option" in resume["why"]


def test_the_engine_that_starts_it_again_goes_on_from_it(run: RunPaths) -> None:
    record = read_run(run)
    assert record is not None
    spec = lead_node._spec(run, record, lambda _: None)
    assert spec["resume"] is not None
    assert spec["resume"]["step"] == 30
    named = starting_point(run, None).at
    assert start_by_itself(run, record, ["--out", "out"], lambda: None) == (named, [])


def test_a_rollback_goes_to_the_one_before(run: RunPaths, tmp_path: Path) -> None:
    rollbacks = Rollbacks(state_of(run))
    finding: Any = SimpleNamespace(evidence="The loss is NaN.")
    assert not rollbacks.begin(Instability("nan", 5, finding), 6)
    assert rollbacks.begin(Instability("nan", 25, finding), 28)
    spec = rollbacks.spec()
    assert spec is not None
    assert spec["resume"] is not None
    assert spec["resume"]["checkpoint"] == str(tmp_path / "out/ckpt_20.pt")


def test_what_lies_still_is_sent_while_the_run_trains(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = Status(state="running", outcome=None, message=None)
    for module in ("storage.selection", "storage.push", "recover.whose"):
        monkeypatch.setattr(f"workbench.{module}.read_status", lambda _: living)
    now = tmp_path / "out/ckpt_30.pt"
    os.utime(now, (time.time(), time.time()))
    assert [one.step for one in chosen_checkpoints(run, "all")] == [20, 10]
    record = json.loads(run.run.read_text()) | {"marker": "m", "name": "r"}
    run.run.write_text(json.dumps(record))
    sent = push(run, str(tmp_path / "volume"))
    assert (sent.checkpoints, sent.step) == (["ckpt_20.pt"], 20)


def test_the_diagnosis_names_it(run: RunPaths) -> None:
    assert "workbench resume r" in _again(run)
