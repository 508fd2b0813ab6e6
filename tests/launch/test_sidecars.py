"""What runs beside the training is brought back where it is killed, and only there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from workbench.launching.supervise import sidecars
from workbench.launching.supervise.sidecars import Sidecars
from workbench.recover.policy import Recovery
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(("program", "starts"), [(KILLED, 3), ("raise SystemExit(2)", 1)])
def test_a_mirror_that_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, starts: int
) -> None:
    command: Sequence[str] = [sys.executable, "-S", "-c", program]
    monkeypatch.setattr(sidecars, "mirror_command", lambda *_: command)
    paths = RunPaths(tmp_path)
    paths.make_folders()
    run = RunRecord(run="r", mirror="s3://pods/runs", notify=["none"])
    beside = Sidecars(paths, run, Recovery())
    beside.start()
    for now in (100.0, 110.0, 170.0):  # the second is too soon
        follower = beside._followers[0].process
        assert follower is not None
        follower.wait(30)
        beside.bring_back(now)
    beside.end()
    assert len(beside.pids) == starts
