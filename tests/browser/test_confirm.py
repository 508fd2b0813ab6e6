"""The question of Stop: it stays until it is confirmed, taken back with Escape, or left."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER
from tests.browser.test_faces import SAMPLE
from tests.widgets.sample_runs import SampleRun

FOCUS = "document.querySelector(arguments[0]).focus()"
FOCUSED = "return document.activeElement.matches(arguments[0])"
ROWS = "return document.querySelectorAll('.wb-runs tbody tr').length"


def press(page: Page, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


def test_escape_and_leaving_take_back_the_question_but_no_stop(
    lab: Lab, page: Page, store: Path
) -> None:
    run = SampleRun(store, "asked")
    run.write(60)
    code = SAMPLE.format(store=str(store)) + "RunDashboard(sample('asked'))"
    page.open(lab.notebook("confirm.ipynb", code))
    page.run_cell(0)
    page.until("curve", lambda: page.points() >= 30)
    stop, spoken = ".wb-header .wb-stop", ".wb-stop-box > .wb-spoken"
    page.js(FOCUS, stop)
    press(page, Keys.ENTER)
    assert page.text(stop) == "Press again: stop"
    assert page.text(spoken) == "Stop? Press again to confirm, or Escape to cancel."
    screenshots(page)
    assert page.text(stop) == "Press again: stop"
    press(page, Keys.ESCAPE)
    assert page.text(stop) == "Stop"
    assert page.text(spoken) == "Canceled."
    assert page.js(FOCUSED, stop)
    press(page, Keys.ENTER, Keys.TAB)
    assert page.text(stop) == "Stop"
    assert not (run.directory / "control" / "stop").exists()

    page.js(FOCUS, stop)
    press(page, Keys.ENTER, Keys.SPACE)
    page.until("the stop is requested", lambda: page.text(stop) == "Stop now")
    page.until("its file", (run.directory / "control" / "stop").exists)
    press(page, Keys.ENTER)
    assert page.text(stop) == "Press again: stop now"
    press(page, Keys.ESCAPE)
    assert page.text(stop) == "Stop now"
    press(page, Keys.ENTER, Keys.TAB)
    assert page.text(stop) == "Stop now"
    assert page.text(".wb-stop-note") == "Stopping …"
    assert not (run.directory / "control" / "stop-now").exists()
    assert page.errors() == []


def screenshots(page: Page) -> None:
    FOLDER.mkdir(exist_ok=True)
    for shade in ("Light", "Dark"):
        page.theme(f"JupyterLab {shade}")
        page.driver.save_screenshot(str(FOLDER / f"confirm-{shade.lower()}.png"))


def test_a_new_row_leaves_the_question_and_the_focus(lab: Lab, page: Page, store: Path) -> None:
    SampleRun(store, "first").write(60)
    code = SAMPLE.format(store=str(store)) + f"Runs(store={str(store)!r})"
    page.open(lab.notebook("confirm-rows.ipynb", code))
    page.run_cell(0)
    stop = page.one(".wb-runs .wb-stop")
    stop.click()
    SampleRun(store, "second").write(30)
    page.until("a second row", lambda: page.js(ROWS) == 2)
    assert stop.text == "Press again: stop"
    assert page.driver.switch_to.active_element == stop
