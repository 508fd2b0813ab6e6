"""A run that was given hours: stopped when they are over, and counted from who asked last."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import TINY_GPT
from workbench.launching.resume.attempts import Attempts
from workbench.recover.policy import Recovery
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND


@pytest.mark.slow
def test_a_run_is_stopped_at_its_limit(start: Callable[..., wb.Run]) -> None:
    limit = Recovery(max_hours=1 / 3600)
    run = start("gpt", [*TINY_GPT, "--steps", "100000000"], recovery=limit)
    run.wait()
    assert run.outcome == "stopped"
    assert "Its limit of 1 s was reached (--max-hours)." in (run.status.message or "")


def test_restarts_count_and_a_resume_by_hand_does_not(tmp_path: Path) -> None:
    lines = [
        '{"attempt": 1, "event": "start", "time": 100.0, "why": null}',
        '{"attempt": 2, "event": "start", "time": 200.0, "why": "rank 1 failed"}',
    ]
    path = tmp_path / "attempts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert Attempts(RunPaths(tmp_path)).asked_at == 100
    assert Attempts(RunPaths(tmp_path)).resumed_at == 0
    with path.open("a") as file:
        file.write(f'{{"attempt": 3, "event": "start", "time": 300.0, "why": "{BY_HAND}"}}\n')
    assert Attempts(RunPaths(tmp_path)).asked_at == 300
    assert Attempts(RunPaths(tmp_path)).resumed_at == 300


def test_impossible_hours_are_refused() -> None:
    with pytest.raises(wb.UsageError, match="max_hours"):
        Recovery(max_hours=0)


def test_a_clock_that_is_set_moves_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    line = {"attempt": 1, "event": "start", "time": now - 60, "why": None}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(line) + "\n")
    attempts = Attempts(RunPaths(tmp_path))
    assert 60 <= attempts.seconds_since_asked < 90
    for later in (-7200, 7200):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert 60 <= attempts.seconds_since_asked < 90
    assert Attempts(RunPaths(tmp_path)).seconds_since_asked > 7200, "it is not known any more"
