"""What a real script logged by name, in the dashboard: the same over HTTP and over the comm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.conftest import SCRIPTS

DASHBOARD = """\
import workbench as wb
from workbench_widgets import RunDashboard
RunDashboard(wb.attach({run!r}, {store!r}))
"""
PANELS = (
    "return [...document.querySelectorAll('.wb-logged .wb-panel:not([hidden]) h3')]"
    ".map((one) => one.textContent)"
)
NAMES = (
    "return document.querySelector('.wb-area-loss .js-plotly-plot').data"
    ".map((one) => one.name).filter(Boolean)"
)
STEPS_APART = (
    "const { x } = document.querySelector('.wb-area-loss .js-plotly-plot').data.at(-1);"
    "return x.at(-2) - x.at(-3)"
)
CHOOSE = (
    "const menu = document.querySelector('.wb-chart-bar select'); menu.value = arguments[0];"
    "menu.dispatchEvent(new Event('change')); return menu.value"
)


def trained(store: Path, steps: int) -> wb.Run:
    script = SCRIPTS / "logs_names.py"
    run = wb.launch(script, [str(steps)], processes=2, cpu=True, store=store, warm=True)
    assert run.wait(300) == "succeeded", run.status
    return run


@pytest.mark.full
def test_logged_names_zoom_and_baseline(
    lab: Lab, page: Page, store: Path, foreign_store: Path
) -> None:
    other, run = trained(store, 40), trained(store, 1000)
    for one in (other, run):
        shutil.copytree(one.directory, foreign_store / one.id)
    books = [DASHBOARD.format(run=run.id, store=str(one)) for one in (store, foreign_store)]
    over_http, over_the_comm = (look(lab, page, book, other) for book in books)
    assert over_http == over_the_comm
    assert "eval/loss" in over_http[1]


def look(lab: Lab, page: Page, book: str, other: wb.Run) -> tuple[list[str], list[str]]:
    """Zoom into the loss, draw the other run behind it; the panels and the loss panel's curves."""
    page.open(lab.notebook("curves.ipynb", book))
    page.run_cell(0)
    page.until("the loss", lambda: page.points() >= 100, 120)
    page.until("panels", lambda: len(page.js(PANELS)) >= 4)
    page.js("document.querySelectorAll('.wb-switch button')[1].click()")
    page.until("along time", lambda: "running time" in page.text(".wb-area-loss"))
    page.js("document.querySelectorAll('.wb-switch button')[0].click()")
    page.until("thinned steps", lambda: page.js(STEPS_APART) == 4)
    plot = page.one(".wb-area-loss .nsewdrag")
    drag = ActionChains(page.driver).move_to_element_with_offset(plot, -60, 0)
    drag.click_and_hold().move_by_offset(60, 4).move_by_offset(60, 4).release().perform()
    page.until("every step of the part", lambda: page.js(STEPS_APART) == 1)
    page.one(".wb-area-loss .wb-reset").click()
    page.until("all of it again", lambda: page.js(STEPS_APART) == 4)
    page.js("document.querySelector('.wb-chart-bar select').dispatchEvent(new Event('focus'))")
    page.until("the other run is listed", lambda: page.js(CHOOSE, other.id) == other.id)
    page.until("it lies behind", lambda: any(other.id in one for one in page.js(NAMES)))
    page.until("the difference", lambda: page.text(".wb-area-loss .wb-delta").strip())
    assert page.errors() == []
    return page.js(PANELS), sorted(page.js(NAMES))
