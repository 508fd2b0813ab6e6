"""The scaling study in JupyterLab: its form, a refusal in place, the curve, looks."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW

pytestmark = pytest.mark.full

# A study that ended, made of steps that are given: what is drawn is under test, not the training.
CELL = """
from workbench.compare.scaling_study import conclude
from workbench.compare.studies.step_split import StepSplit
from workbench.compare.studies.trial import TrialResult
from workbench_widgets import ScalingStudy
from workbench_widgets.host import scaling_study
def result(ranks, **changes):
    rest = 0.2 + 0.12 * ranks
    split = StepSplit(step=0.115 + rest, data=0.01, forward=0.1, waiting=0.005, rest=rest)
    given = dict(label=f"weak {ranks}", key="k", processes=ranks, value=ranks, run="r", outcome="good", problem=None, splits=(split,) * 20)
    return TrialResult(**{**given, **changes})
HOSTILE = "<img src=x onerror=alert(1)>"
done = [("weak", result(1)), ("weak", result(2)), ("weak", result(4, outcome="failed", problem=HOSTILE, splits=()))]
def scale(target, *given, **options):
    if target != "gpt":
        raise ValueError(f"No script {target!r}")
    return conclude("scale-1", "gpt", done, (4, 8), cpu=True)
scaling_study.scale = scale
ScalingStudy(cpu=True)
"""
TRACES = "const plot = document.querySelector('.wbs-area .js-plotly-plot'); return plot?.data ? plot.data.map((one) => [one.name, one.x.length]) : []"
ROWS = "return [...document.querySelectorAll('.wbs-table tbody tr')].map((one) => one.textContent)"


def test_a_refusal_in_place_then_the_curve(lab: Lab, page: Page) -> None:
    page.open(lab.notebook("scaling.ipynb", CELL))
    page.run_cell(0)
    page.one(".wbs-fields")
    target = page.one("[data-field=target]")
    page.js("arguments[0].value = '<b>x</b>.py'", target)
    page.js("arguments[0].click()", page.one(".wbs-buttons .wb-button"))
    page.until("refused", lambda: "No script '<b>x</b>.py'" in page.text(".wb-note"))
    page.js("arguments[0].value = 'gpt'", target)
    page.js("arguments[0].click()", page.one(".wbs-buttons .wb-button"))
    page.until("drawn", lambda: len(page.js(TRACES)) == 5)
    assert page.js(TRACES)[0] == ["kept", 4]
    assert len(page.js(ROWS)) == 4
    assert "predicted" in page.js(ROWS)[-1]
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width in (1300, 500):
            page.driver.set_window_size(width, 1300)
            page.focus_mode()
            time.sleep(0.7)
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"scaling-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
    assert page.errors() == []
