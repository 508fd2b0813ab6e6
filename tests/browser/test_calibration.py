"""The calibration in JupyterLab: what was kept is drawn at once; both themes, three widths."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.widgets.test_calibration import keep

pytestmark = pytest.mark.full

CELL = "from workbench_widgets import Calibration\nCalibration(store={store!r}, cpu=True)"

CUT_OFF = """
const box = document.querySelector('.wb-calibration .wb-table-box');
return Math.max(0, box.scrollWidth - box.clientWidth - 1)
"""


def test_what_was_kept_is_drawn(lab: Lab, page: Page, store: Path) -> None:
    made = keep(store)
    page.open(lab.notebook("calibration.ipynb", CELL.format(store=str(store))))
    page.run_cell(0)
    page.one(".wb-calibrated tbody tr")
    assert made.date in page.text(".wb-calibration")
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width in (1600, 800, 500):
            page.driver.set_window_size(width, 1300)
            page.focus_mode()
            time.sleep(0.7)
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"calibration-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
            assert page.js(CUT_OFF) == 0
    assert page.errors() == []
