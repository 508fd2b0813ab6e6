"""The button of the launch form that calibrates a CPU on which a recipe's time is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from workbench_widgets import Launcher
from workbench_widgets.launch import script_notes
from workbench_widgets.launch.script_notes import CALIBRATE

from tests.measure.harness import SCRIPTS


def _offered(form: Launcher) -> bool:
    form.refresh()
    return form.calibrate_note.layout.display == ""


def test_it_is_offered_where_a_calibration_tells_the_time(store: Path) -> None:
    form = Launcher(store=store, target="gpt", cpu=True)
    form.picker.set(family="ddp", processes=2)
    assert _offered(form)
    assert form.calibrate_note.line.value == CALIBRATE
    form.picker.set(family="fsdp", processes=2)
    assert not _offered(form)
    form.close()
    form = Launcher(store=store, target=str(SCRIPTS / "plain_loop.py"), cpu=True)
    form.picker.set(family="single")
    assert not _offered(form)
    assert form.measure_note.layout.display == ""  # a script is measured as a whole
    form.close()


@pytest.mark.slow
@pytest.mark.full
def test_a_click_calibrates_and_the_time_is_predicted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_notes, "CALIBRATION_SECONDS", 5.0)
    form = Launcher(store=store, target="gpt", cpu=True)
    form.picker.set(family="ddp", processes=2)
    assert _offered(form)
    thread = form.calibrate_note.start()
    assert thread is not None
    thread.join(240)
    request = form.picker.seen.request
    assert request is not None
    assert request.predicted_time is not None, form.calibrate_note.line.value
    assert not _offered(form)
    form.close()
