"""The button of the launch form that measures a script of which nothing is known."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from workbench_widgets import Launcher
from workbench_widgets.answering import DOUBLE_CLICK_SECONDS
from workbench_widgets.launch.script_notes import MEASURE

import workbench as wb
from tests.measure.harness import SCRIPTS
from tests.widgets.calculators import until
from workbench.store.runs import Store

LOOP = str(SCRIPTS / "plain_loop.py")


def _form(store: Path, target: str) -> Launcher:
    form = Launcher(store=store, target=target, cpu=True)
    form.picker.set(family="single")
    form.refresh()
    return form


def test_it_is_offered_for_scripts_that_nothing_predicts(store: Path) -> None:
    form = _form(store, LOOP)
    assert form.measure_note.layout.display == ""
    assert form.measure_note.line.value == MEASURE
    form.fields.target_menu.value = "gpt"
    form.refresh()
    assert form.measure_note.layout.display == "none"
    assert form.measure_note.start() is None
    form.close()


@pytest.mark.slow
@pytest.mark.full
def test_a_script_is_measured_or_stopped_by_clicks(store: Path) -> None:
    form = _form(store, LOOP)
    note = form.measure_note
    note.button.click()
    until(lambda: "starting" in note.line.value, "the first run")
    assert note.button.description == "Stop"
    time.sleep(DOUBLE_CLICK_SECONDS)
    note.button.click()
    until(lambda: not note.running, "the end of the measurement", seconds=60)
    assert "nothing was kept" in note.line.value
    assert note.button.description == "Measure"
    stopped = [wb.attach(one, store=store) for one in Store(store).ids()]
    assert stopped
    assert not any(run.status.live for run in stopped)
    assert form.picker.seen.request is not None
    assert form.picker.seen.request.predicted is None

    thread = note.start()
    assert thread is not None
    thread.join(240)
    assert form.picker.seen.request.predicted is not None
    assert form.picker.seen.request.predicted_time is not None
    assert note.layout.display == "none"
    form.close()
