"""Troubles of real runs of two processes: the right finding, the right rank, in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

import workbench as wb
from tests.conftest import allowed, rank_pid, until
from tests.faults.matrix import record
from workbench.store.files import read_json

pytestmark = pytest.mark.slow
Start = Callable[..., wb.Run]


def standing(run: wb.Run) -> dict[str, dict]:
    found = (read_json(run.directory / "findings.json") or {}).get("findings", [])
    return {one["kind"]: one for one in found if one["cleared_at"] is None}


def troubled(start: Start, trouble: str, *more: str) -> wb.Run:
    return start("troubled.py", ("--trouble", trouble, *more))


def begun(run: wb.Run, steps: int = 15) -> None:
    until(lambda: run.view().get("steps", 0) >= steps or not run.status.live, 90, "the first steps")
    assert run.status.live, run.status


def test_a_deadlock_and_a_stopped_rank_are_told_with_their_rank(start: Start) -> None:
    """Both at once: they sleep most of the time."""
    deadlocked, stopped = troubled(start, "deadlock"), troubled(start, "none")
    begun(stopped)
    pid = rank_pid(stopped.directory, 1)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    until(lambda: "stopped-rank" in standing(stopped), 60, "the stopped rank")
    assert time.monotonic() - began < allowed(15)
    found = standing(stopped)["stopped-rank"]
    assert found["rank"] == 1
    assert f"kill -CONT {pid}" in found["next"]
    deadlock = stands_still(deadlocked, "deadlock")["cause"]
    assert "rank 1 waits in barrier at troubled.py:" in deadlock
    assert "rank 0 waits in backward at troubled.py:" in deadlock
    os.kill(pid, signal.SIGCONT)
    until(lambda: "stopped-rank" not in standing(stopped), 30, "the finding to be cleared")
    record(3, "deadlock: rank 1 waits in barrier, rank 0 in backward, each with file and line")


def stands_still(run: wb.Run, kind: str) -> dict[str, Any]:
    """The finding that says so, of rank 1, with a line of the script and no other beside it."""
    until(lambda: kind in standing(run), 60, kind)
    found = standing(run)[kind]
    assert found["rank"] == 1, found
    assert "troubled.py" in found["evidence"], found
    assert found["severity"] == ("error" if kind == "deadlock" else "warning")  # it may end
    others = standing(run).keys() & {"hang", "deadlock", "stopped-rank", "gil-held"} - {kind}
    assert not others
    return found


@pytest.mark.full
def test_two_more_ways_to_stand_still_and_two_to_be_at_work(start: Start) -> None:
    kinds = {"sleep": "hang", "gil": "gil-held"}
    runs = {trouble: troubled(start, trouble) for trouble in kinds}
    validates = troubled(start, "validation", "--seconds", "25", "--steps", "100")
    uploads = troubled(start, "program", "--seconds", "45", "--steps", "100")
    for trouble, kind in kinds.items():
        stands_still(runs[trouble], kind)
    assert validates.wait(120) == "succeeded"
    kept = read_json(validates.directory / "findings.json") or {"findings": []}
    assert kept["findings"] == []  # 25 s without a step, but at work; and nothing else is said
    assert uploads.wait(120) == "succeeded"
    kept = read_json(uploads.directory / "findings.json") or {"findings": []}
    assert [found["kind"] for found in kept["findings"]] == ["long-step"]
    assert "Rank 1 waits for a program that it started: sleep" in kept["findings"][0]["cause"]
    assert kept["findings"][0]["cleared_at"] is not None
    record(4, "gil-held: rank 1")
