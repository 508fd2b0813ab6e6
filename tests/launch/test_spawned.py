"""A script of one rank that trains in processes which it starts itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.launch.ranks import Ranks
from workbench.launch.capture import spawned
from workbench.launch.outcome import judge
from workbench.store.layout import RunPaths

pytest.importorskip("torch")


@pytest.mark.parametrize(("written", "records"), [(None, 1), (-10.0, 1), (10.0, 0)])
def test_a_rank_that_trains_itself_keeps_its_place(
    tmp_path: Path, written: float | None, records: int
) -> None:
    """What a spawned process of it trains beside it, say an actor, is not the run's training."""
    (tmp_path / "rank-0.start.json").write_text('{"time": 1000.0}')
    if written is not None:
        lines = tmp_path / "rank-0.jsonl"
        lines.write_text("{}\n")
        os.utime(lines, (1000.0 + written,) * 2)
    became: list[int | None] = []
    claim = str(tmp_path / "rank-0.spawned-1")
    for _ in range(2):  # only one of several may become the recorder
        actions = spawned.watch(claim, lambda size, _: became.append(size))
        steps: list[Any] = []
        module = SimpleNamespace(register_optimizer_step_post_hook=steps.append)
        actions["torch.optim.optimizer"](module)
        for _ in range(3):
            steps[0](None, None, None)
    assert len(became) == records


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_the_process_that_leads_the_training_is_recorded(tmp_path: Path, world: int) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", str(world))
    assert ranks.wait(300) == [0]
    steps = [line["step"] for line in ranks.lines()]
    # without a group the training is known by its first step, and recorded from there
    assert steps == list(range(1, 13 if world == 2 else 12))
    start = ranks.document("start")
    assert start["spawned"]
    assert start["process"]["pid"] != ranks.processes[0].pid
    assert start.get("group_world_size") == (2 if world == 2 else None)
    verdict = judge(
        RunPaths(tmp_path),
        ranks=1,
        steps=len(steps),
        exit_code=0,
        stop_reason=None,
        capture=True,
    )
    assert verdict.outcome == "succeeded"


@pytest.mark.slow
def test_an_exception_in_a_spawned_process_names_its_line(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--fail-at", "3")
    assert ranks.wait(300) == [1]
    end = ranks.document("end")
    assert end["where"] == "spawns.py:31 in work"
    assert end["chain"][-1]["exception"] == "ValueError: boom"


@pytest.mark.slow
def test_a_training_in_forks_is_said_to_be_unobserved(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", "1", "--method", "fork")
    assert ranks.wait(300) == [0]
    known = {"steps": 0, "exit_code": 0, "stop_reason": None, "capture": True}
    verdict = judge(RunPaths(tmp_path), ranks=1, **known)
    assert verdict.outcome == "succeeded"
    assert "not observed" in verdict.message
    (tmp_path / "metrics" / "unobserved").unlink()
    assert judge(RunPaths(tmp_path), ranks=1, **known).outcome == "no-steps"
