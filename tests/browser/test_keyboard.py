"""Keys alone in JupyterLab: launch a real run, watch it, stop it; where the focus is can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import workbench as wb
from tests.browser.lab import Lab, Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PATIENCE = 120
FORM = ".wb-form"
LAUNCH = f"{FORM} .mod-primary"
# An outline, or a shadow or border that stands for it; and something to see it around.
VISIBLE = """
const node = document.activeElement;
const { outlineStyle, outlineWidth } = getComputedStyle(node);
const { width, height, top, bottom } = node.getBoundingClientRect();
return outlineStyle !== 'none' && parseFloat(outlineWidth) >= 1 && width > 4 && height > 4
  && bottom > 0 && top < innerHeight;
"""
OURS = "return !!document.activeElement.closest('.wb-form, .wb-root, .wb-tabs')"
MATCHES = "return document.activeElement.matches(arguments[0])"
TRACES = "return document.querySelector('.wb-area-loss .js-plotly-plot').data.length"
WHICH = "return document.activeElement.outerHTML.slice(0, 160)"


def press(page: Page, *keys: str, holding: str = "") -> None:
    chain = ActionChains(page.driver)
    if holding:
        chain.key_down(holding)
    chain.send_keys(*keys)
    if holding:
        chain.key_up(holding)
    chain.perform()


def tab_to(page: Page, selector: str, *, back: bool = False, most: int = 60) -> None:
    """Press Tab until the element has the focus; each stop in our faces shows that it has it."""
    for _ in range(most):
        press(page, Keys.TAB, holding=Keys.SHIFT if back else "")
        assert not page.js(OURS) or page.js(VISIBLE), f"the focus is not seen: {page.js(WHICH)}"
        if page.js(MATCHES, selector):
            return
    raise AssertionError(f"{most} presses of Tab do not reach {selector}")


def test_launch_watch_and_stop_without_a_mouse(lab: Lab, page: Page, store: Path) -> None:
    code = f"from workbench_widgets import Workbench; Workbench(store={str(store)!r})"
    page.open(lab.notebook("keyboard.ipynb", code))
    press(page, Keys.ENTER, holding=Keys.CONTROL)  # runs the cell
    page.until("the form", page.one(LAUNCH, PATIENCE).is_enabled)
    cells = "return window.jupyterapp.shell.currentWidget.content.widgets.length"
    tab_to(page, f"{FORM} .wb-fields select")
    press(page, "b", "a")  # letters that add cells, were they JupyterLab's
    press(page, Keys.END)  # "A script …"
    page.until("a script", lambda: page.one(f"{FORM} input[placeholder='train.py']", 1))
    assert page.js(cells) == 1
    tab_to(page, f"{FORM} input[placeholder='train.py']")
    press(page, "train.py", Keys.TAB)
    page.until("the exact command", lambda: "train.py" in page.text(f"{FORM} .wb-command"))
    tab_to(page, f"{FORM} .wb-more")
    press(page, Keys.SPACE)
    page.until("the other options", lambda: "Hide" in page.text(f"{FORM} .wb-more"))
    press(page, Keys.SPACE)
    page.until("folded again", lambda: "Show" in page.text(f"{FORM} .wb-more"))
    page.until("Launch is possible", page.one(LAUNCH).is_enabled)
    tab_to(page, LAUNCH, back=True)
    press(page, Keys.ENTER)

    page.until("its name has the focus", lambda: page.js(MATCHES, ".wb-header h2"), PATIENCE)
    page.until("a curve", lambda: page.points() >= 3, PATIENCE)
    tab_to(page, ".wb-chart-bar input[type=range]")
    press(page, Keys.HOME)
    page.until("unsmoothed", lambda: page.js(TRACES) == 1)
    tab_to(page, ".wb-header .wb-stop", back=True)
    press(page, Keys.ENTER)
    press(page, Keys.SPACE)
    page.until("stopped", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    assert wb.attach("last", store).outcome == "stopped"
    assert page.js(MATCHES, ".wb-header h2")
    tab_to(page, ".wb-tabs .lm-TabBar-tab", back=True)
    press(page, Keys.ARROW_RIGHT, Keys.ENTER)
    page.until("the table of runs", lambda: page.one(".wb-runs tbody tr", 1))
    assert page.errors() == []
