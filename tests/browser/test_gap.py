"""The dashboard's panel of predicted and measured, in a real browser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.widgets.sample_gap import RUN, comparison
from tests.widgets.sample_runs import SampleRun
from tests.widgets.sample_troubles import CHECKPOINTS, HOSTILE
from workbench.observe.prediction_error.comparison import compare
from workbench.observe.prediction_error.steady_steps import Steady
from workbench.store.run_record import RunRecord

pytestmark = pytest.mark.full

CODE = """\
from pathlib import Path
from types import SimpleNamespace
from workbench_widgets import RunDashboard
RunDashboard(SimpleNamespace(id="gap", directory=Path({store!r}) / "gap", request_stop=print))
"""
ROWS = """
return [...document.querySelectorAll('.wb-gap tbody tr')].map((row) =>
  [row.dataset.within, ...[...row.children].map((cell) => cell.textContent)])
"""
WIDTHS = "return [...document.querySelectorAll('.wb-gap-measured')].map((one) => parseFloat(one.style.width))"
HIDDEN = "return document.querySelector('.wb-area-gap').hidden"
CLIPPED = """
return [...document.querySelectorAll('.wb-area-gap :is(th, td, h3, p, span)')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')
  .map((one) => one.textContent)
"""


def test_each_term_has_its_bars_its_ratio_and_a_reason(lab: Lab, page: Page, store: Path) -> None:
    run = SampleRun(store, "gap")
    run.write(40)
    page.open(lab.notebook("gap.ipynb", CODE.format(store=str(store))))
    page.run_cell(0)
    page.until("curve", lambda: page.points() >= 30)
    assert page.js(HIDDEN)  # written before there were comparisons
    run.write(60, checkpoints=CHECKPOINTS, comparison=comparison(phase="running"))
    page.until(
        "so far", lambda: page.text(".wb-gap-basis") == "measured here on 2026-11-20, so far"
    )
    found = {row[1]: (row[0], *row[3:]) for row in page.js(ROWS)}
    assert found["step"] == ("false", "1 s", "1.31 s", "1.31x")
    assert found["input wait"] == ("null", "20 ms", "300 ms", "15.00x")
    assert found["tokens/s"] == ("false", "8.19 k", "6.25 k", "0.76x")
    assert found["peak memory"] == ("true", "9.31 GiB", "9.41 GiB", "1.01x")
    assert found["cost"][1:3] == ("$2.10", "$3.00")
    widths = page.js(WIDTHS)
    assert widths[0] == 100  # the step is the scale of its causes
    assert abs(widths[1] - 100 * 0.3 / 1.31) < 0.1
    assert "input wait took 280 ms more than predicted" in page.text(".wb-gap-why")
    assert page.text(".wb-area-gap .wb-panel-value") == "step 1.31x"
    looks(page)
    run.write(61, comparison=hostile())
    page.until("as text", lambda: HOSTILE in page.text(".wb-gap-why"))
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    unknown: dict[str, Any] = {**RUN, "predicted": None, "workload": None}
    said = compare(RunRecord.of(unknown), {"phase": "running"}, Steady()).document()
    run.write(62, comparison=said)
    page.until("nothing predicted", lambda: "not known at launch" in page.text(".wb-gap-why"))
    assert page.js("return document.querySelector('.wb-gap').hidden")
    assert page.errors() == []


def hostile() -> dict[str, Any]:
    document = json.loads(json.dumps(comparison()))
    document |= {"explanation": HOSTILE, "source": HOSTILE}
    document["rows"][0]["what"] = HOSTILE
    return document


def looks(page: Page) -> None:
    """Screenshots to be looked at; asserted is that nothing is clipped or overflows."""
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in ((1600, 900), (800, 900), (500, 900)):
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(0.7)
            page.js("document.querySelector('.wb-area-gap').scrollIntoView({block: 'center'})")
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"gap-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
            clipped = page.js(CLIPPED)
            assert not clipped, (width, clipped)
