"""A run resumed with other arguments is measured against what these make it do."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import TINY_GPT
from workbench.observe.curves import read_curve
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.store.layout import RunPaths

pytestmark = pytest.mark.slow
SHAPE = [*TINY_GPT, "--checkpoint-every", "3"]


def ended(run: wb.Run) -> wb.Run:
    assert run.wait(180) == "succeeded", (run.status, run.logs(tail=20))
    return run


def test_steps_and_batch_of_a_resumed_run_are_those_of_its_new_arguments(tmp_path: Path) -> None:
    first = ["--steps", "6", "--micro-batch", "4", *SHAPE]
    run = ended(wb.launch("gpt", first, processes=2, cpu=True, warm=True, store=tmp_path))
    before = run.document
    assert (before["steps_total"], before["tokens_per_step"]) == (6, 2 * 4 * 32)
    assert before.get("work_since") is None
    steady = read_prediction_error(RunPaths(run.directory)).steady_steps

    ended(run.resume(arguments=["--steps", "12"]))
    longer = run.document
    assert longer["steps_total"] == 12
    changed = {name for name in longer if longer[name] != before.get(name)}
    assert changed == {"steps_total"}  # of the work nothing else
    assert read_prediction_error(RunPaths(run.directory)).steady_steps > steady
    assert run.view()["steps_total"] == 12

    ended(run.resume(arguments=["--steps", "24", "--micro-batch", "2"]))
    other = run.document
    assert (other["steps_total"], other["tokens_per_step"]) == (24, 2 * 2 * 32)
    assert other["workload"]["micro_batch"] == 2
    assert other["work_since"] > other["created_at"]
    assert [part["tokens_per_step"] for part in other["tokens_before"]] == [2 * 4 * 32]
    assert read_curve(RunPaths(run.directory)).tokens[-1] == 12 * (2 * 4 * 32 + 2 * 2 * 32)
    assert other["predicted"]["memory"] != before["predicted"]["memory"]
    gap = read_prediction_error(RunPaths(run.directory))
    assert gap.steady_steps == 12 - 3  # of the third attempt, without its warm-up
    assert len(run.metrics()) == 24
