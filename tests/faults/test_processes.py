"""Rows 1, 2, 5, 6, 7, 10, 26, 39: processes killed, stopped, lost; the first four restart."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.faults.lab import Lab, lost_steps
from tests.faults.matrix import record
from workbench.store import processes

pytestmark = pytest.mark.slow
INTERVAL = 20  # steps between the lab's checkpoints


def test_killed_rank_restarts_from_its_checkpoint(store: Path) -> None:
    lab = Lab(store, restarts=1).begun()
    at = lab.signal(1)
    until(lambda: lab.attempt == 2 or not lab.run.status.live, 60, "the second attempt")
    started = time.monotonic() - at
    working = lab.back(at)
    assert "Rank 1 was killed by SIGKILL" in lab.attempts("end")[0]["message"]
    assert lab.attempts("start")[1]["checkpoint"]
    (lost,) = lost_steps(lab.run)
    assert 0 <= lost <= INTERVAL
    assert [one.rank for one in lab.run.findings() if one.kind == "rank-killed"] == [1]
    lab.run.stop()
    assert lab.unbroken()
    assert lab.left() == []
    record(
        1,
        f"rank 1 and SIGKILL named; new launcher after {started:.1f} s, first new step after {working:.1f} s; {lost} of {INTERVAL} steps again",
    )


@pytest.mark.full
def test_stopped_rank_is_named_killed_and_restarted(store: Path) -> None:
    lab = Lab(store, restarts=1).begun(60)
    at = lab.signal(1, signal.SIGSTOP)
    working = lab.back(at)
    found = next(one for one in lab.run.findings() if one.rank == 1)
    assert "rank 1" in lab.attempts("end")[0]["message"].lower()
    assert lost_steps(lab.run)[0] <= INTERVAL
    until(lambda: lab.steps > lab.attempts("start")[1]["first_step"] + 100, 60, "training to go on")
    assert lab.run.stop()["outcome"] == "stopped"  # the finding is not held against the new attempt
    assert lab.left() == []
    record(2, f"{found.kind} of rank 1: ended and back at work after {working:.1f} s")


@pytest.mark.full
def test_exception_of_a_rank_is_told_and_not_retried_for_ever(store: Path) -> None:
    lab = Lab(store, restarts=3).begun()
    at = lab.inject("exception")
    until(lambda: lab.attempt == 2, 60, "the second attempt")
    seen = time.monotonic() - at
    end = lab.attempts("end")[0]
    assert "ValueError: label 7 is out of range" in end["message"]
    assert "fault_lab.py:" in end["message"]
    lab.run.stop(now=True)
    record(5, f"ValueError with rank 1, file and line; restarted after {seen:.1f} s")


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.full)])
def test_killed_launcher_leaves_nothing_and_restarts(store: Path, *, warm: bool) -> None:
    lab = Lab(store, restarts=1, warm=warm).begun()
    ranks = list(lab.state()["ranks"].values())
    at = lab.signal("launcher")
    until(lambda: not any(map(processes.is_alive, ranks)), 30, "the old ranks' end")
    gone = time.monotonic() - at
    working = lab.back(at)
    lab.run.stop()
    assert lab.unbroken()
    assert lab.left() == []
    record(6, f"old ranks gone after {gone:.1f} s, back at work after {working:.1f} s")


def test_killed_supervisor_and_watcher_bring_each_other_back(store: Path) -> None:
    """No one looks at the run meanwhile. Both at once leave it unwatched until it is adopted."""
    lab = Lab(store, restarts=2).begun()
    first, at = lab.state()["supervisor"], lab.signal("supervisor")
    until(lambda: _watched_anew(lab, first), 15, "another supervisor")
    back = time.monotonic() - at
    second = lab.state()["supervisor"]
    os.kill(parent_of(second["pid"]), signal.SIGKILL)
    log = lab.run.directory / "logs" / "supervisor.log"
    until(lambda: "the watcher is gone" in log.read_text(), 15, "another watcher")
    lab.signal("supervisor")
    until(lambda: _watched_anew(lab, second), 15, "the third supervisor")
    at = lab.signal(0)
    working = lab.back(at)
    third = lab.state()["supervisor"]["pid"]
    for pid in (parent_of(third), third):
        os.kill(pid, signal.SIGKILL)
    until(lambda: lab.run.state == "unsupervised", 10, "the loss of both to show")
    assert wb.attach(lab.run.id, store).state == "unsupervised"  # looking starts nothing
    assert lab.run.adopt()
    lab.run.stop()
    assert lab.unbroken()
    assert lab.left() == []
    record(
        7,
        f"another one after {back:.1f} s, no step lost; a rank killed then: back after {working:.1f} s",
    )


def _watched_anew(lab: Lab, before: dict[str, Any]) -> bool:
    now = lab.state()["supervisor"]
    return now != before and processes.is_alive(now)


def parent_of(pid: int) -> int:
    """Of a supervisor: its watcher."""
    fields = processes.stat_fields(pid)
    assert fields is not None
    return int(fields[1])


def test_a_run_that_nobody_watches_is_stopped_by_the_command_itself(store: Path) -> None:
    lab = Lab(store).begun()
    supervisor = lab.state()["supervisor"]["pid"]
    for pid in (parent_of(supervisor), supervisor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: lab.run.state == "unsupervised", 10, "the loss of both to show")
    assert lab.run.stop() == {"run": lab.run.id, "outcome": "stopped", "processes_left": 0}
    assert "step-" in str(lab.run.status.message), lab.run.status
    assert lab.left() == []
    lab.run.resume()
    until(lambda: lab.attempt == 2 and lab.run.state == "running", 60, "the next attempt")
    lab.run.stop(now=True)
    assert lab.unbroken()


@pytest.mark.full
def test_two_clients_stop_and_resume_at_once(store: Path) -> None:
    lab = Lab(store).begun()

    def both(action: str) -> list[object]:
        results: list[object] = []

        def act() -> None:
            handle = wb.Run(wb.Store(store).find(lab.run.id))
            try:
                results.append(getattr(handle, action)())
            except wb.WorkbenchError as error:
                results.append(error)

        threads = [threading.Thread(target=act) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return results

    stopped = both("stop")
    assert [one["outcome"] for one in stopped] == ["stopped", "stopped"]
    assert len(list((lab.run.directory / "checkpoints").glob("partial*"))) == 0
    resumed = both("resume")
    assert any(isinstance(one, wb.Run) for one in resumed)
    until(lambda: lab.run.state == "running", 60, "the resumed run")
    assert lab.attempt == 2
    assert len(lab.attempts("start")) == 2
    lab.run.stop()
    assert lab.unbroken()
    record(10, "two stops: one stop; two resumes: one attempt")


@pytest.mark.full
def test_everything_killed_at_once_can_be_resumed(store: Path) -> None:
    lab = Lab(store).begun(45)
    for process in [lab.state()["supervisor"], *lab.left()]:
        processes.send_signal(process, signal.SIGKILL)
    until(lambda: not lab.run.status.live, 10, "the interruption to show")
    assert lab.run.outcome == "interrupted"
    lab.run.resume()
    working = lab.back(time.monotonic())
    (lost,) = lost_steps(lab.run)
    lab.run.stop()
    assert lab.unbroken()
    record(
        26,
        f"interrupted; at work {working:.1f} s after resume, {lost} steps again",
    )
    assert 0 <= lost <= INTERVAL
