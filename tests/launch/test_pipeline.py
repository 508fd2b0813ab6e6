"""Watched pipelines: every stage counts its steps, the last one's loss is the run's."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench as wb
from tests.launch.ranks import output
from workbench.launching.capture import patches, pipelines
from workbench.launching.capture.recorder import Recorder

RECIPES = Path(wb.__file__).parent / "recipes"
STEPS = 20
SHAPE = (
    *("--layers", "4", "--hidden", "32", "--seq-len", "32", "--warmup", "2"),
    *("--accumulate", "4", "--steps", str(STEPS)),
)


def watched(store: Path, recipe: str, strategy: str, processes: int, *arguments: str) -> wb.Run:
    run = wb.launch(
        RECIPES / recipe,
        [*SHAPE, *arguments],
        strategy=strategy,
        processes=processes,
        cpu=True,
        store=store,
        warm=True,
    )
    assert run.wait(180) == "succeeded", run.logs(tail=20)
    return run


def rank_lines(run: wb.Run, rank: int) -> list[dict[str, Any]]:
    path = run.directory / "metrics" / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def alone() -> float:
    """The last loss of one process with the same global batch, as it prints it."""
    printed = output(RECIPES / "pipeline.py", *SHAPE, "--micro-batch", "2")
    (last,) = re.findall(rf"step +{STEPS} \| loss (\S+)", printed)
    return float(last)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "strategy", "processes", "arguments", "know"),
    [
        ("pipeline.py", "pp", 2, ("--pp", "2", "--micro-batch", "2"), {1}),
        (
            *("pipeline.py", "pp", 2),
            ("--pp", "2", "--micro-batch", "2", "--schedule", "zbv"),
            {0},  # the V's two ends
        ),
        (
            *("deepspeed_pipeline.py", "pp2-dp2", 4),
            ("--pp", "2", "--micro-batch", "1"),
            {0, 1, 2, 3},  # DeepSpeed tells every rank
        ),
    ],
)
def test_every_stage_counts_steps_and_the_last_one_has_the_loss(
    tmp_path: Path,
    alone: float,
    recipe: str,
    strategy: str,
    processes: int,
    arguments: tuple[str, ...],
    know: set[int],
) -> None:
    if "deepspeed" in recipe:
        pytest.importorskip("deepspeed", reason="pip install deepspeed")
    run = watched(tmp_path, recipe, strategy, processes, *arguments)
    found = run.summary()
    assert found["world_size"] == processes
    assert found["steps"] == STEPS
    assert found["loss_first"] == pytest.approx(math.log(256), rel=1e-4)
    assert found["loss_last"] == pytest.approx(alone, rel=1e-4)
    for rank in range(processes):
        lines = rank_lines(run, rank)
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert all(("loss" in line) == (rank in know) for line in lines)
        assert all(line["backward_at"] < line["time"] for line in lines)
        assert lines[0]["lr"] > 0


# --- Without processes ---------------------------------------------------------------------------


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    torch = pytest.importorskip("torch")
    (tmp_path / "metrics").mkdir()
    made = Recorder(str(tmp_path), 0)
    made.reader = patches.ScalarReader(torch)
    return made


def written(recorder: Recorder) -> list[dict[str, Any]]:
    assert recorder.flush()
    path = Path(recorder._lines.path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Engine:
    """What the hook uses of DeepSpeed's PipelineEngine."""

    skipped_steps = 0
    overflows = False

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def get_lr(self) -> list[float]:
        return [0.5]

    def train_batch(self) -> float:
        self.skipped_steps += self.overflows
        self.recorder.step(0.1)  # the optimizers inside: several, before the loss is known
        self.recorder.step(0.1)
        return 2.5


def test_a_deepspeed_batch_is_one_step_and_an_overflow_none(recorder: Recorder) -> None:
    module = SimpleNamespace(PipelineEngine=type("Patched", (Engine,), {}))
    pipelines.patch_deepspeed(recorder, patches.outermost, module)
    engine = module.PipelineEngine(recorder)
    assert engine.train_batch() == 2.5
    engine.overflows = True
    engine.train_batch()
    (line,) = written(recorder)
    assert (line["step"], line["loss"], line["lr"]) == (1, 2.5, 0.5)


def test_evaluation_of_a_schedule_is_no_step(recorder: Recorder) -> None:
    class Schedule:
        _has_backward = False

        def __init__(self) -> None:
            self._internal_losses: list[float] = []

        def _update_losses(self, stages: Any, losses: Any) -> None:
            self._internal_losses.clear()

        def step(self) -> None:
            self._internal_losses += [1.0, 3.0]
            self._update_losses(None, None)

    kinds = {
        name: type(name, (Schedule,), {"step": Schedule.step})
        for name in ("PipelineScheduleSingle", "PipelineScheduleMulti")
    }
    module = SimpleNamespace(_PipelineSchedule=Schedule, **kinds)
    pipelines.patch_schedules(recorder, patches.outermost, module)
    schedule = module.PipelineScheduleSingle()
    schedule.step()
    recorder.step(0.1)
    assert written(recorder) == []
    schedule._has_backward = True
    schedule.step()
    recorder.step(0.1)
    (line,) = written(recorder)
    assert line["loss"] == 2.0
