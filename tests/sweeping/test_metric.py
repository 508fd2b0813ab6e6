"""By what a trial is judged: the metric where its run ended, not a mean of the steps before."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store
from workbench.sweeping.metric import measured

STEPS = 6000


def a_run(store: Path, *, broken: int) -> RunPaths:
    """It has ended; the loss and `evloss` of its last `broken` steps were NaN."""
    paths = Store(store).create("t")
    paths.run.write_text(json.dumps(RunRecord(run="t", processes=1).document()))
    with paths.rank_said(0).open("w") as said, paths.rank_metrics(0).open("w") as metrics:
        for step in range(1, STEPS + 1):
            loss = math.nan if step > STEPS - broken else 1.0
            at = {"time": float(step), "step": step}
            said.write(json.dumps({**at, "acc": step / STEPS, "evloss": loss}) + "\n")
            metrics.write(json.dumps({**at, "loss": loss}) + "\n")
        metrics.write(json.dumps({"time": STEPS + 1.0, "step": STEPS + 1}) + "\n")
    paths.exit.write_text('{"outcome": "succeeded"}')
    return paths


def test_the_result_is_the_last_value(tmp_path: Path) -> None:
    paths = a_run(tmp_path, broken=0)
    assert measured(paths, "acc").at() == 1.0
    assert measured(paths, "evloss").at() == 1.0
    assert measured(paths, "loss").at() == 1.0
    assert len(measured(paths, "acc").steps) < STEPS  # its points are means


def test_a_metric_that_was_nan_at_the_end_has_no_number(tmp_path: Path) -> None:
    paths = a_run(tmp_path, broken=3)
    assert measured(paths, "acc").at() == 1.0
    for metric in ("evloss", "loss"):
        end = measured(paths, metric).at()
        assert end is not None
        assert math.isnan(end)


def test_a_nan_that_passed_is_no_end(tmp_path: Path) -> None:
    paths = a_run(tmp_path, broken=3)
    at = {"time": STEPS + 2.0, "step": STEPS + 2}
    for place, values in (
        (paths.rank_said(0), {"evloss": 0.5}),
        (paths.rank_metrics(0), {"loss": 0.5}),
    ):
        with place.open("a") as file:
            file.write(json.dumps({**at, **values}) + "\n")
    assert measured(paths, "evloss").at() == 0.5
    assert math.isfinite(measured(paths, "loss").at() or math.nan)


@pytest.mark.parametrize("broken", [False, True])
def test_a_step_without_a_loss_is_no_nan_while_the_run_is_live(
    tmp_path: Path, *, broken: bool
) -> None:
    """As of a script that has two optimizers; a look at a loss that is NaN ends the trial."""
    paths = Store(tmp_path).create("t")
    paths.run.write_text(json.dumps(RunRecord(run="t", processes=1).document()))
    lines = [
        {"time": float(step), "step": step, **({"loss": 2.0} if step % 2 else {})}
        for step in range(1, 12)
    ]
    lines[-1] |= {"loss": math.nan} if broken else {}
    paths.rank_metrics(0).write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    assert measured(paths, "loss").at(10) is None  # its loss comes with the next one
    paths.rank_metrics(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    value = measured(paths, "loss").at(10)
    assert value is not None
    assert math.isnan(value) == broken
