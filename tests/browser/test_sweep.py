"""The panel of the sweeps in a real browser: table, figures, form; both themes, three widths."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra sweep is not installed")

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.sweeping.plans import sweep_of_results

pytestmark = pytest.mark.full

CODE = "from workbench_widgets import Sweep\nSweep(store={store!r}, cpu=True)"
STATES = "return [...document.querySelectorAll('.wbw-trials tbody tr')].map((one) => one.children[1].textContent)"
PLOTS = "return [...document.querySelectorAll('.wbw-figures .js-plotly-plot')].length"
FIELD = "const field = document.querySelector(`[data-field=${arguments[0]}]`); field.value = arguments[1]; field.dispatchEvent(new Event('input'))"
PRESS = "document.querySelector(arguments[0]).click()"


def test_trials_figures_and_a_form_that_predicts(lab: Lab, page: Page, store: Path) -> None:
    sweep_of_results(store, trials=14)
    page.open(lab.notebook("sweep.ipynb", CODE.format(store=str(store))))
    page.run_cell(0)
    page.until("the trials", lambda: len(page.js(STATES)) == 14, 60)
    assert {"Pruned", "Finished", "Failed"} <= set(page.js(STATES))
    page.js("document.querySelector('[aria-label=\"Sort by loss\"]').click()")
    page.until("the best first", lambda: page.js(STATES)[0] == "Finished")
    page.js("document.querySelector('.wbw-figures').scrollIntoView()")
    page.until("two figures or more", lambda: page.js(PLOTS) >= 2)
    page.js("document.querySelector('.wbw-new').open = true")
    page.js(FIELD, "target", "gpt")
    page.js(FIELD, "grid", "rate=1,2")
    page.js(PRESS, ".wbw-buttons button")
    page.until("refused", lambda: "Unknown option" in page.text(".wbw-new .wb-banner"))
    page.js(FIELD, "grid", "lr=1e-4,1e-3\nseed=1,2")
    page.js(PRESS, ".wbw-buttons button")
    page.until("predicted", lambda: "4 trials" in page.text(".wbw-would"))
    start = "return !document.querySelector('.wbw-buttons button:last-child').hidden"
    assert page.js(start)
    page.js(FIELD, "arguments", "--steps 20")
    assert not page.js(start)  # other values, so another prediction
    page.js(PRESS, ".wbw-buttons button")
    page.until("predicted again", lambda: page.js(start))
    looks(page)
    assert page.errors() == []


def looks(page: Page) -> None:
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in ((1440, 1700), (800, 2300), (500, 3000)):
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(0.9)
            page.js("document.querySelector('.jp-OutputArea-output').scrollIntoView()")
            time.sleep(0.5)
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"sweep-{shade}-{width}.png"))
            assert not page.js(OVERFLOW)
