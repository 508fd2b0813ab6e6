"""The faults of the lab that neither its notebook nor its browser test causes, done for real."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from workbench_widgets.faults import faults

import workbench as wb
from tests.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.full]
ENDS = {
    "exception": (1, "ValueError: label 7 is out of range"),
    "out-of-memory": (1, "can't allocate memory"),
    "disk-full": (0, "No space left on device"),
}


def test_each_ends_its_run_or_freezes_it_and_the_rank_is_named(store: Path) -> None:
    quick = {"steps": 3000, "step_ms": 20.0, "checkpoint_every": 20, "restarts": 0}
    runs = {name: faults.start(store=store, name=name, **quick) for name in (*ENDS, "stopped")}
    for name, run in runs.items():
        faults.trained(run, 25, seconds=240)
        look = faults.inject(run, name)
        assert "{" not in look
    for name, (rank, words) in ENDS.items():
        run = runs[name]
        assert run.wait(120) == "failed"
        assert words in run.status.message
        assert run.summary()["failed_rank"] == rank
        assert any(not saved.problem for saved in run.checkpoints(check=True))  # to resume from
        with pytest.raises(wb.UsageError, match="is not training now"):
            faults.inject(run, "nan")
    assert [one.name for one in (runs["disk-full"].directory / "checkpoints").glob("partial-*")]
    frozen = runs["stopped"]
    until(lambda: frozen.view()["ranks"][1]["process_state"] == "T", 60, "the frozen rank")
    faults.heal(frozen)
    faults.trained(frozen, frozen.view()["steps"] + 20)
    assert frozen.stop(now=True)["processes_left"] == 0
