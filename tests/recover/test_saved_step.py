"""The step of a checkpoint is the run's, where the run's records tell it, not the file's counters."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch writes the checkpoints")

from tests.recover.saved import BEGAN, run_of_script  # noqa: E402
from workbench.launching.resume.starting_point import starting_point  # noqa: E402
from workbench.recover.foreign import identify  # noqa: E402
from workbench.recover.script_checkpoints import every_checkpoint  # noqa: E402
from workbench.store.layout import RunPaths  # noqa: E402

PLAN = 100_000


def content(updates: int | None, **more: Any) -> dict[str, Any]:
    """What a script saves: weights and an optimizer that counts its updates, or does not."""
    state = {} if updates is None else {0: {"step": torch.tensor(float(updates))}}
    optimizer = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"model": {"weight": torch.ones(2)}, "optimizer": optimizer, **more}


def write(path: Path, value: dict[str, Any], at: float) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save(value, path)
    os.utime(path, (BEGAN + at, BEGAN + at))


def record(run: RunPaths, steps: int, savings: list[tuple[int, int | None, float]]) -> None:
    """One step a second, and the states that rank 0 saved: step, updates, seconds."""
    run.metrics.mkdir(exist_ok=True)
    rows = [{"step": step, "time": BEGAN + step, "loss": 1.0} for step in range(1, steps + 1)]
    run.rank_metrics(0).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        {"step": step, "weights": 7, "updates": updates, "time": BEGAN + at}
        for step, updates, at in savings
    ]
    path = run.metrics / "rank-0.states.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def steps(run: RunPaths) -> dict[str, int | None]:
    return {one.path.name: one.step for one in every_checkpoint(run)}


def test_an_optimizer_that_was_built_anew_does_not_start_the_order_again(tmp_path: Path) -> None:
    """Head first, then everything: the second phase's file is the newer one."""
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    record(run, 140, [(50, 50, 50.1), (100, 100, 100.1), (140, 40, 140.1)])
    write(tmp_path / "out/head.pt", content(100), 100.3)
    write(tmp_path / "out/full.pt", content(40, global_step=140), 140.3)
    assert steps(run) == {"full.pt": 140, "head.pt": 100}
    chosen = starting_point(run, None).at
    assert chosen is not None
    assert chosen.path.name == "full.pt"


@pytest.mark.parametrize(
    "more",
    [
        {"config": {"steps": PLAN}},
        {"args": Namespace(iteration=PLAN)},
        {"hyper_parameters": {"it": PLAN}},
        {"global_step": PLAN},  # of the environment
        {"epoch": 4, "iteration": 3},  # within the epoch
        {"iter": 479},  # micro-batches
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_a_file_counts_otherwise_is_not_the_runs_step(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    record(run, 150, [(60, None, 60.1), (120, None, 120.1)])
    write(tmp_path / "out/last.pt", content(None, **more), 123.0)  # three seconds on a slow disk
    assert steps(run) == {"last.pt": 120}


def test_a_copy_of_an_older_state_keeps_its_step(tmp_path: Path) -> None:
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    record(run, 150, [(20, 20, 20.1), (60, 60, 60.1)])
    write(tmp_path / "out/best.pt", content(20), 60.5)
    assert steps(run) == {"best.pt": 20}


def test_a_counter_that_agrees_is_kept(tmp_path: Path) -> None:
    """What was saved a step later than the last line, or without a word to the optimizer."""
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    record(run, 150, [])
    write(tmp_path / "out/ckpt.pt", content(None, iteration=119), 120.2)
    assert steps(run) == {"ckpt.pt": 119}


def test_without_records_the_content_counts(tmp_path: Path) -> None:
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    write(tmp_path / "out/ckpt.pt", content(7, iteration=9), 120.2)
    assert steps(run) == {"ckpt.pt": 7}


@pytest.mark.parametrize("part", ["config", "args", "hparams", "ema", "lr_scheduler", "diffusion"])
def test_settings_in_a_checkpoint_count_no_steps(tmp_path: Path, part: str) -> None:
    write(tmp_path / "out/ckpt.pt", content(None, **{part: {"steps": PLAN, "it": 3}}), 0)
    about = identify(tmp_path / "out/ckpt.pt")
    assert about is not None
    assert about.step is None


@pytest.mark.parametrize(
    ("folder", "first", "last"),
    [
        ("checkpoint-140", ["rng_state_1.pth"], "rng_state_0.pth"),
        ("checkpoint-140", ["rng_state_1.pth", "optimizer.pt", "scheduler.pt"], "rng_state_0.pth"),
        ("saved", ["random_states_1.pkl"], "optimizer.bin"),
    ],
)
def test_a_folder_that_is_being_written_is_no_state_to_resume_from(
    folder: str, first: list[str], last: str, tmp_path: Path
) -> None:
    """Rank 1 writes its generators at once; what rank 0 writes last is not there yet."""
    run = run_of_script(tmp_path, "a", ["--out", "out"], (0, 200))
    record(run, 140, [(140, 140, 140.1)])
    (tmp_path / "out").mkdir()
    for name in [*first, last]:
        write(tmp_path / "out" / folder / name, content(None), 140.3)
        (found,) = every_checkpoint(run)
        assert (found.path.name, "being written" in found.problem) == (folder, True)
    end = "trainer_state.json" if folder == "checkpoint-140" else "random_states_0.pkl"
    (tmp_path / "out" / folder / end).write_text('{"global_step": 140}')
    (found,) = every_checkpoint(run)
    assert (found.path.name, found.problem) == (folder, "")
