"""Rows 24 and 25: notice of pre-emption by SIGTERM, by a file, and in the middle of a save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import allowed, until
from tests.faults.lab import LAB, Lab
from tests.faults.matrix import record
from workbench.recover.policy import Recovery

pytestmark = pytest.mark.slow


def saved_at_the_end(lab: Lab) -> bool:
    """Whether the newest checkpoint is whole and of the very last step."""
    newest = lab.run.checkpoints(check=True)[0]
    return not newest.problem and newest.step == lab.run.metrics(0)[-1]["step"]


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.full)])
def test_ten_seconds_of_grace_are_enough(store: Path, *, warm: bool) -> None:
    lab = Lab(store, recovery=Recovery(grace_seconds=10), warm=warm).begun()
    at = lab.signal("supervisor", signal.SIGTERM)
    seconds = lab.ended(at)
    assert lab.run.outcome == "preempted"
    assert lab.left() == []
    assert saved_at_the_end(lab)
    lab.run.resume()
    lab.back(time.monotonic())
    lab.signal(0, signal.SIGTERM)  # a rank is told, not the supervisor
    until(lambda: not lab.run.status.live, 60, "the end")
    assert lab.run.outcome == "preempted", lab.run.status
    assert saved_at_the_end(lab)
    assert lab.unbroken()
    assert seconds < allowed(15)
    record(
        24,
        f"checkpoint of the last step and all processes gone {seconds:.1f} s after SIGTERM; SIGTERM to a rank alone does the same",
    )


@pytest.mark.full
def test_waiting_client_hands_sigterm_on_and_says_so_by_its_exit_code(store: Path) -> None:
    """What a container or Slurm does to the process it started."""
    notice = store.parent / "notice"
    command = [
        *(sys.executable, "-m", "workbench.cli", "launch", "--cpu", "--nproc", "2", "--wait"),
        *("--grace", "10", "--preemption", str(notice), "--store", str(store), str(LAB)),
        *("--", "--steps", "100000", "--step-ms", "20"),
    ]
    for number, how in enumerate(("signal", "file")):
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(lambda n=number: len(wb.Store(store).ids()) > n, 30, "the run")
        run = wb.attach("last", store)
        until(lambda run=run: run.view()["steps"] > 10, 90, "the first steps")
        if how == "signal":
            os.kill(client.pid, signal.SIGTERM)
        else:
            notice.write_text("the machine goes away at noon")
        assert client.wait(240) == 75
        assert run.outcome == "preempted"
    record(24, "a waiting `launch` given SIGTERM, or a notice file, ends with exit code 75")


@pytest.mark.full
def test_three_notices_during_a_save_leave_one_whole_checkpoint(store: Path) -> None:
    lab = Lab(store, "--checkpoint-every", "2", recovery=Recovery(grace_seconds=10)).begun(10)
    for _ in range(3):
        lab.signal("supervisor", signal.SIGTERM)
        time.sleep(0.1)
    lab.ended(time.monotonic())
    assert lab.run.outcome == "preempted"
    assert not list((lab.run.directory / "checkpoints").glob("partial*"))
    assert saved_at_the_end(lab)
    record(25, "outcome preempted, no part of a checkpoint left, newest whole and of the last step")
