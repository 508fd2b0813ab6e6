"""The start notebook in Jupyter Notebook 7: launch, watch, stop, and the calculators."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("notebook", reason="notebook is not installed")

import workbench as wb
from tests.browser.conftest import end_runs
from tests.browser.lab import REPOSITORY, Notebook7, Page
from tests.browser.looks import FOLDER

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PATIENCE = 120
START = REPOSITORY / "notebooks" / "00_start_here.ipynb"
CODE = "return window.jupyterapp.shell.currentWidget.content.widgets.map((one) => one.model.type)"
# Notebook 7 leaves out what is far from sight.
CURVES_IN = """
const { node } = window.jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
node.scrollIntoView();
return node.querySelectorAll('.wb-area-loss .scatterlayer path.js-line').length;
"""
TAB = "[...document.querySelectorAll('.wb-tabs .lm-TabBar-tab')].find((one) => one.textContent === arguments[0])"
CLICK_TAB = f"""
const tab = {TAB};
const {{ left, top, width, height }} = tab.getBoundingClientRect();
for (const kind of ['pointerdown', 'pointerup', 'mousedown', 'mouseup', 'click'])
  tab.dispatchEvent(new PointerEvent(kind, {{bubbles: true, button: 0, clientX: left + width / 2, clientY: top + height / 2}}));
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Notebook7]:
    one = Notebook7(tmp_path / "root", tmp_path / "home")
    shutil.copy(START, one.root)
    yield one
    end_runs(one.root / "runs")
    one.close()


def test_the_start_notebook(page: Page, server: Notebook7) -> None:
    page.open(server.address(START.name))
    page.errors()  # what Notebook itself says while it starts
    cells = [at for at, kind in enumerate(page.js(CODE)) if kind == "code"]
    page.run_cell(cells[0])
    launch = page.one(".wb-form .mod-primary", PATIENCE)
    page.until("Launch is possible", launch.is_enabled, PATIENCE)
    assert "accelerate" in page.text(".wb-form .wb-command")
    for tab, face in (("Memory", "Memory calculator"), ("Cost", "Cost calculator")):
        page.js(CLICK_TAB, tab)
        page.one(f"[aria-label='{face}'] .wbm-headline", PATIENCE)
    page.js(CLICK_TAB, "Launch")
    page.until("the form", launch.is_displayed)
    launch.click()
    page.until("a curve", lambda: page.points() >= 3, PATIENCE)
    shown = page.last_step()
    page.until("it grows", lambda: page.last_step() > shown, PATIENCE)
    FOLDER.mkdir(exist_ok=True)
    page.driver.save_screenshot(str(FOLDER / "notebook7.png"))
    for cell in cells[1:]:
        page.run_cell(cell)
    page.until("the last cell attaches to it", lambda: page.js(CURVES_IN, cells[-1]), PATIENCE)
    stop = page.one(".wb-header .wb-stop")
    stop.click()
    stop.click()
    page.until("stopped", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    assert wb.attach("last", server.root / "runs").outcome == "stopped"
    assert page.errors() == []
