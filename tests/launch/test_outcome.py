"""Verdicts from what a run leaves behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.launching import stop_ladder
from workbench.launching.supervise.outcome import Verdict, judge
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.run_state import RunState
from workbench.launching.supervise.supervisor import Supervisor
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

ABORTED = """Root Cause (first observed failure):
[0]:
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 11342)
"""


def verdict(folder: Path, ends: list[dict[str, Any] | None], log: str, **facts: Any) -> Verdict:
    paths = RunPaths(folder)
    paths.make_folders()
    paths.launcher_log.write_text(log)
    for rank, end in enumerate(ends):
        if end is not None:
            paths.rank_end(rank).write_text(json.dumps(end))
    known = {"steps": 5, "exit_code": 1, "stop_reason": None, "capture": True} | facts
    return judge(paths, ranks=len(ends), **known)


OK = {"ok": True, "time": 1.0, "stopped_at": None}


def test_a_crash_in_the_shut_down_is_told_and_is_no_lost_training(tmp_path: Path) -> None:
    found = verdict(tmp_path, [OK, OK], ABORTED.format(rank=0, code=-6))
    assert found.outcome == "succeeded"
    assert "SIGABRT" in found.message
    assert found.finding.kind == "crash-at-exit"


@pytest.mark.parametrize("code", [3, -9])
def test_a_rank_that_did_not_end_well_is_a_failure(tmp_path: Path, code: int) -> None:
    ends = [OK, OK] if code > 0 else [OK, None]
    found = verdict(tmp_path, ends, ABORTED.format(rank=1, code=code))
    assert (found.outcome, found.failed_rank) == ("failed", 1)


def test_a_script_that_ends_itself_has_no_traceback_to_look_at(tmp_path: Path) -> None:
    end = {"ok": False, "time": 1.0, "exit_code": 3, "where": "train.py:3 in main"}
    found = verdict(tmp_path, [end], "")
    assert found.message.startswith("Rank 0 ended itself with exit code 3")
    assert "train.py:3 in main, where the script calls exit" in found.message
    assert "traceback" not in found.message


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("code", "outcome"), [(-9, "failed"), (-15, "succeeded")])
def test_a_spawned_rank_that_was_killed_is_a_failure_though_its_parent_exits_with_0(
    tmp_path: Path, rank: int, code: int, outcome: str
) -> None:
    """SIGTERM is how a script ends those that it needs no more."""
    paths = RunPaths(tmp_path)
    paths.make_folders()
    for one in range(2):
        process = {"pid": 70 + one, "start_ticks": 1, "boot_id": "b"}
        start = {"rank": one, "spawned": True, "process": process}
        paths.rank_start(one).write_text(json.dumps(start))
    end = OK | {"child_exit_codes": {str(70 + rank): code}}
    paths.rank_end(1).write_text(json.dumps(OK | {"spawned": True}))
    if rank == 1:
        paths.rank_end(1).unlink()
    for exit_code in (0, None):
        found = verdict(tmp_path, [end], "", exit_code=exit_code)
        assert found.outcome == outcome
        if outcome == "failed":
            assert found.failed_rank == rank
            assert found.message.startswith(f"Rank {rank} was killed by SIGKILL (9)")


def test_the_first_own_exception_is_named_not_its_echo(tmp_path: Path) -> None:
    echo = {"ok": False, "time": 1.0, "exception": "RuntimeError: Connection closed by peer"}
    own = {"ok": False, "time": 1.2, "exception": "ValueError: boom", "where": "train.py:3 in main"}
    found = verdict(tmp_path, [echo, own], "")
    assert found.failed_rank == 1
    assert "ValueError: boom (train.py:3 in main)" in found.message


def test_nobody_saw_the_end(tmp_path: Path) -> None:
    assert verdict(tmp_path, [OK, OK], "", exit_code=None).outcome == "succeeded"
    (tmp_path / "metrics" / "rank-1.end.json").unlink()
    assert verdict(tmp_path, [OK, None], "", exit_code=None).outcome == "interrupted"


def test_a_failed_save_during_a_stop_is_told(tmp_path: Path) -> None:
    bad = {
        "ok": False,
        "time": 1.0,
        "stopped_at": 7,
        "exception": "OSError: No space left on device",
    }
    found = verdict(tmp_path, [{**OK, "stopped_at": 7}, bad], "", stop_reason="stopped")
    assert found.outcome == "stopped"
    assert "Saving the checkpoint" in found.message


@pytest.mark.parametrize(
    ("told", "after", "known"),
    [
        ([2, 2], None, 2),  # before the first step
        ([2, None], None, 2),
        ([1, 1], None, 1),  # two groups of one
        ([None, None], None, None),  # perhaps a group is still to come
        ([None, None], 1e9, 1),
    ],
)
def test_the_world_size_is_known_as_soon_as_ranks_tell_it(
    tmp_path: Path, told: list[int | None], after: float | None, known: int | None
) -> None:
    paths = RunPaths(tmp_path)
    paths.rank_start(0).parent.mkdir()
    for rank, size in enumerate(told):
        paths.rank_start(rank).write_text(json.dumps({"group_world_size": size}))
    watched: Any = SimpleNamespace(
        world_size=None, paths=paths, ranks={0: {}, 1: {}}, world_size_asked=2, message=None
    )
    RankProcesses(watched).check_world(after)
    assert watched.world_size == known
    assert (watched.message is None) == (known in {2, None})


@pytest.mark.parametrize("hangs", [True, False])
def test_a_stop_of_a_run_that_hangs_waits_for_no_step(tmp_path: Path, *, hangs: bool) -> None:
    """A stop step would never come; after the finding there is nothing to wait 60 s for."""
    paths = RunPaths(tmp_path)
    paths.make_folders()
    run = {"processes": 2, "marker": "m", "capture": True, "device": "cpu", "recovery": {}}
    supervisor = Supervisor(RunState.of(paths, RunRecord.of(run)))
    (paths.control / "stop").touch()
    hang = Finding.read(
        {"kind": "hang", "rank": 1, "step": 71, "evidence": "", "cause": "", "next": ""}
        | {"confidence": 0.9}
    )
    watch = SimpleNamespace(
        steps=70,
        step_seconds=0.1,
        since_step=0.05,
        stepping=True,
        standstill=hang if hangs else None,
        read=lambda: None,
    )
    supervisor.take_requests(watch)
    assert supervisor.state.ladder.stage == ("launcher" if hangs else "graceful")
    assert (paths.control / "stop-at").exists() is not hangs
    assert supervisor.state.message is not None
    assert ("rank 1 stands at step 71 (hang)" in supervisor.state.message) is hangs


@pytest.mark.parametrize("left", [False, True])
def test_a_rank_that_hangs_while_it_exits_is_not_waited_for_as_long_as_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, left: bool
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(stop_ladder.time, "monotonic", lambda: clock.now)
    paths = RunPaths(tmp_path)
    paths.make_folders()
    ladder = stop_ladder.StopLadder(paths, list)
    paths.rank_end(1).write_text("{}")  # of an attempt before
    os.utime(paths.rank_end(1), (1.0, 1.0))
    ladder.request(now=False, steps=10, step_seconds=0.1)
    assert ladder.stop_at is not None
    if left:
        paths.rank_end(0).write_text("{}")
    for second, stage in (
        (0, "graceful"),
        (59, "graceful"),
        (61, "marked" if left else "graceful"),
    ):
        clock.now = 1000.0 + second
        ladder.tick(None, ladder.stop_at, 0.1)
        assert ladder.stage == stage


@pytest.mark.parametrize(
    ("facts", "outcome", "said"),
    [
        ({"steps": 60}, "no-steps", "made no step after it was resumed at step 60"),
        ({"steps": 3}, "no-steps", "resumed at step 60"),  # the curve ends before the checkpoint
        ({"steps": 60, "steps_total": 60}, "succeeded", "the checkpoint was of the last one"),
        ({"steps": 61}, "succeeded", "Finished after 61 steps"),
        ({"steps": 60, "capture": False}, "succeeded", "unobserved"),
    ],
)
def test_a_resumed_attempt_without_a_step_is_no_success(
    tmp_path: Path, facts: dict[str, Any], outcome: str, said: str
) -> None:
    found = verdict(tmp_path, [OK], "", exit_code=0, first_step=60, **facts)
    assert found.outcome == outcome
    assert said in found.message


def test_one_step_is_one_step(tmp_path: Path) -> None:
    assert verdict(tmp_path, [OK], "", exit_code=0, steps=1).message == "Finished after 1 step."


def test_a_trainer_that_had_nothing_left_to_do_has_finished(tmp_path: Path) -> None:
    ends: list[dict[str, Any] | None] = [{**OK, "nothing_left": True}]
    found = verdict(tmp_path, ends, "", exit_code=0, first_step=60, steps=60)
    assert (found.outcome, "60 steps" in found.message) == ("succeeded", True)
