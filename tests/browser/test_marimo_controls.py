"""Workbench, Launcher and FaultLab in a real marimo notebook: a run from its form to its stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("marimo", reason="marimo is not installed")

from selenium.webdriver.common.keys import Keys

import workbench as wb
from tests.browser.lab import Page
from tests.browser.looks import FOLDER
from tests.browser.marimo_server import Marimo
from tests.browser.test_marimo import FIND, LAST_STEP, LOSS, PATIENCE, texts

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

NOTEBOOK = Path(__file__).with_name("marimo_controls.py")
SHOWN = f"{FIND} return found.filter((one) => one.checkVisibility())"
BUTTON = f"""{FIND}
return found.find((one) => one.textContent === arguments[1] && !one.disabled && one.checkVisibility());
"""
WIDER = f"{FIND} return found.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
PROBLEMS = "pre[role=alert]"


@pytest.fixture
def notebook(page: Page, theme: str, foreign_store: Path, tmp_path: Path) -> Iterator[Page]:
    server = Marimo(NOTEBOOK, tmp_path / "host", theme, WORKBENCH_STORE=str(foreign_store))
    page.driver.get(server.url)
    yield page
    page.driver.get("about:blank")
    server.close()


def press(page: Page, within: str, text: str) -> None:
    one = page.until(text, lambda: page.js(BUTTON, f"{within} button", text), PATIENCE)
    page.js("arguments[0].scrollIntoView({block: 'center'})", one)
    one.click()


def shown(page: Page, selector: str) -> list[Any]:
    return page.js(SHOWN, selector)


def screenshots(page: Page, name: str, theme: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for width in (800, 1440):
        page.driver.set_window_size(width, 1300)
        page.until("nothing overflows", lambda: page.js(WIDER, ".wb-controls") == 0, 20)
        page.driver.save_screenshot(str(FOLDER / f"marimo-{name}-{theme}-{width}.png"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_launch_watch_and_stop(notebook: Page, theme: str, foreign_store: Path) -> None:
    page, tabs = notebook, ".wb-tabs"
    page.until("three forms", lambda: len(shown(page, ".wb-form")) == 3, PATIENCE)
    assert "No run is open" in texts(page, f"{tabs} .wb-hint")[-1]
    name = shown(page, f"{tabs} .wb-fields .widget-text input")[0]
    name.send_keys("from marimo", Keys.ENTER)
    screenshots(page, "form", theme)
    press(page, f"{tabs} .wb-form", "Launch")
    badge = f"{tabs} .wb-header .wb-badge"
    page.until("it runs", lambda: texts(page, badge) == ["Running"], PATIENCE)
    assert texts(page, f"{tabs} .wb-header h2") == ["from marimo"]
    page.until("a curve", lambda: page.js(LAST_STEP, f"{tabs} {LOSS}") >= 3, PATIENCE)
    screenshots(page, "run", theme)
    assert len(shown(page, ".wb-form")) == 2  # its form is folded
    press(page, tabs, "New run")
    page.until("the form again", lambda: len(shown(page, ".wb-form")) == 3)

    press(page, tabs, "Memory")  # a face that is made now, while no cell runs
    headline = f"{tabs} .wbm-headline"
    page.until("its answer", lambda: texts(page, headline)[0], PATIENCE)
    press(page, tabs, "Runs")
    page.until("the table", lambda: "from marimo" in "".join(texts(page, ".wb-runs tbody")))
    press(page, f"{tabs} .wb-runs", "Open")
    page.until("its dashboard", lambda: shown(page, f"{tabs} .wb-header .wb-stop"), PATIENCE)
    press(page, f"{tabs} .wb-header", "Stop")
    press(page, f"{tabs} .wb-header", "Press again: stop")
    page.until("it is stopped", lambda: texts(page, badge) == ["Stopped"], PATIENCE)
    assert wb.attach("last", foreign_store).outcome == "stopped"
    assert texts(page, PROBLEMS) == []
    assert page.errors() == []


@pytest.mark.parametrize("theme", ["light"])
def test_a_fault_is_caused_and_found(notebook: Page, foreign_store: Path) -> None:
    page, lab = notebook, ".wb-lab"
    press(page, lab, "Start the training")
    page.until("a curve", lambda: page.js(LAST_STEP, LOSS) >= 5, PATIENCE)
    press(page, lab, "Slow rank")
    page.until("what to look at", lambda: "rank 1" in texts(page, f"{lab} .wb-lab-look")[0])
    found = ".wb-area-findings > ul h4"
    page.until("it is found", lambda: "Straggler" in "".join(texts(page, found)), PATIENCE)
    press(page, lab, "Heal")
    page.until("healed", lambda: "Fault ended" in texts(page, f"{lab} .wb-lab-look")[0])
    assert wb.attach("last", foreign_store).stop()["processes_left"] == 0
    assert texts(page, PROBLEMS) == []
    assert page.errors() == []
