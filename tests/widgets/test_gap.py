"""The dashboard's comparison without a browser: its text form, and what travels to the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import RunDashboard

from tests.widgets.sample_gap import STEADY, comparison
from tests.widgets.sample_runs import SampleRun
from workbench.pages.snapshots import snapshot_of


def test_the_text_form_says_what_was_off(tmp_path: Path) -> None:
    run = SampleRun(tmp_path / "runs", "sample")
    run.write(90, comparison=comparison())
    said = repr(RunDashboard(run)).splitlines()
    assert said[1].startswith("  Step 1.31 s, predicted 1 s (+31 %): input wait took 280 ms more")
    run.write(91, comparison=comparison(STEADY))
    assert "as predicted" in repr(RunDashboard(run))
    run.write(92)
    assert len(repr(RunDashboard(run)).splitlines()) == 1


def test_the_page_gets_numbers_and_draws_them(tmp_path: Path) -> None:
    run = SampleRun(tmp_path / "runs", "sample")
    run.write(90, comparison=comparison())
    snapshot = snapshot_of(run.directory)
    assert snapshot is not None
    rows = snapshot["view"]["comparison"]["rows"]
    assert {"what", "group", "unit", "predicted", "low", "high", "measured", "ratio"} == set(
        rows[0]
    )
    assert len(json.dumps(snapshot["view"]["comparison"])) < 4_000  # of the view's 64 kB
