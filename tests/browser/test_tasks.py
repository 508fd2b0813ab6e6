"""Six tasks of a newcomer, by mouse in JupyterLab: how many clicks each takes, and how long.

README.md holds the table; ``WORKBENCH_RENEW_TASKS=1`` writes the figures of this run into it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.conftest import SCRIPTS
from tests.widgets.sample_fleet import SampleFleet

pytestmark = pytest.mark.full

TABLE = Path(__file__).with_name("README.md")
PATIENCE = 180


class Hand:
    """A newcomer's mouse: counts what is pressed, and the seconds from the first press."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        self.began: float | None = None

    def click(self, found: Any) -> None:
        """Press an element, or what a selector finds, once the page no longer moves it."""
        one = self.page.one(found) if isinstance(found, str) else found
        self._press(1)
        self.page.until("it stays in its place", lambda: self._rests(one))
        ActionChains(self.page.driver).move_to_element(one).click().perform()

    def _rests(self, one: WebElement) -> bool:
        """Bring it into view; whether it is where it was, 200 ms later: charts above take room."""
        self.page.js("arguments[0].scrollIntoView({block: 'center'})", one)
        before = one.rect
        time.sleep(0.2)
        self.page.js("arguments[0].scrollIntoView({block: 'center'})", one)
        return one.rect == before

    def choose(self, selector: str, text: str) -> None:
        """Open a menu and press one of its lines."""
        one = self.page.one(selector)
        self.page.until(text, lambda: text in [line.text for line in Select(one).options])
        self._press(2)
        Select(one).select_by_visible_text(text)

    def tab(self, name: str) -> None:
        tabs = self.page.driver.find_elements("css selector", ".wb-tabs .lm-TabBar-tab")
        self.click(next(one for one in tabs if one.text.strip() == name))

    def type(self, selector: str, text: str) -> None:
        """Press a field and write into it."""
        self.click(selector)
        self.page.one(selector).send_keys(text, "\t")

    def _press(self, count: int) -> None:
        self.clicks += count
        if self.began is None:
            self.began = time.monotonic()


@pytest.fixture
def hand(lab: Lab, page: Page, store: Path) -> Callable[[], Hand]:
    """Opens `Workbench()` on the test's store, as the launcher's card does."""

    def opened() -> Hand:
        code = f"from workbench_widgets import Workbench\nWorkbench(store={str(store)!r})"
        page.open(lab.notebook("tasks.ipynb", code))
        page.driver.set_window_size(1440, 900)
        page.run_cell(0)
        page.one(".wb-tabs")
        page.until("the form", lambda: "accelerate" in page.text(".wb-form .wb-command"))
        return Hand(page)

    return opened


def done(task: str, hand: Hand) -> None:
    """Compare with the table's clicks, or write into it."""
    assert hand.began is not None
    seconds = time.monotonic() - hand.began
    print(f"{task}: {hand.clicks} clicks, {seconds:.1f} s")
    assert hand.page.errors() == []
    text = TABLE.read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(task)} \| (\d+|-) \| ([\d.]+|-) s \|", text, re.MULTILINE)
    assert row, f"{TABLE.name} has no row {task!r}"
    if "WORKBENCH_RENEW_TASKS" in os.environ:
        figures = f"| {task} | {hand.clicks} | {seconds:.1f} s |"
        TABLE.write_text(text.replace(row[0], figures), encoding="utf-8")
    else:
        assert hand.clicks == int(row[1])


def open_run(hand: Hand, run: str) -> None:
    hand.tab("Runs")
    hand.click(f"button[aria-label='Open {run}']")


def test_the_slow_gpu_of_64(hand: Callable[[], Hand], store: Path) -> None:
    SampleFleet(store, "fleet", nodes=8, each=8).write()
    mouse = hand()
    open_run(mouse, "8 nodes of 8 GPUs")
    slow = "gpu0 of node 6: 58 % busy; its peers 96 %"
    mouse.page.until("it is named", lambda: slow in mouse.page.text(".wb-grid-odd"), PATIENCE)
    mouse.click(".wb-grid-odd button")
    curves = ".wb-own .js-plotly-plot"
    mouse.page.until("its curves", lambda: mouse.page.one(curves), PATIENCE)
    done("Find the slow GPU of 64, and its curves", mouse)


def test_validation_loss_by_dollars(
    hand: Callable[[], Hand], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "2.5")
    for steps in ("60", "90"):
        run = wb.launch(SCRIPTS / "logs_names.py", [steps], cpu=True, store=store, warm=True)
        assert run.wait(PATIENCE) == "succeeded", run.status
    mouse = hand()
    page = mouse.page
    mouse.tab("Compare")
    page.one(".wbx-runs tbody tr")
    for row in (1, 2):
        mouse.click(f".wbx-runs tbody tr:nth-child({row}) .wb-check input")
    mouse.choose(".wbx select[aria-label='Curve']", "eval/loss")
    mouse.choose(".wbx select[aria-label='Horizontal axis']", "Dollars")
    drawn = (
        "const plot = document.querySelector('.wbx .js-plotly-plot');"
        "return plot?.data?.length === 2 && plot.layout.xaxis.title.text === 'US dollars'"
    )
    page.until("two curves over dollars", lambda: page.js(drawn), PATIENCE)
    done("Compare the validation loss of two runs by dollars", mouse)


def test_where_the_loss_became_nan(hand: Callable[[], Hand], store: Path) -> None:
    options = ["--steps", "60", "--nan-at", "31"]
    run = wb.launch(SCRIPTS / "raw_ddp.py", options, processes=2, cpu=True, store=store, warm=True)
    run.wait(PATIENCE)
    mouse = hand()
    open_run(mouse, run.id)
    page = mouse.page
    page.until("the step", lambda: "step 31" in page.text(".wb-area-findings"), PATIENCE)
    done("See in a run at which step the loss became NaN", mouse)


def test_launch_of_an_own_script(hand: Callable[[], Hand]) -> None:
    mouse = hand()
    page = mouse.page
    mouse.choose(".wb-form select", "A script …")
    mouse.type(".wb-form input[placeholder='train.py']", "train.py")
    button = page.one(".wb-form button.jupyter-button")
    page.until("Launch is possible", button.is_enabled)
    mouse.click(button)
    page.until("its curve", lambda: page.points() >= 1, PATIENCE)
    done("Launch an own script on two ranks, to the first point of its curve", mouse)


def test_stop_and_resume(
    hand: Callable[[], Hand], lab: Lab, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(lab.root.with_name("home")))  # whose key vouches for the run
    options = ["--size", "1", "--minutes", "10", "--checkpoint-every", "0"]
    run = wb.launch("gpt", options, processes=2, cpu=True, store=store, warm=True)
    run.wait(PATIENCE, steps=20)
    mouse = hand()
    open_run(mouse, run.id)
    page = mouse.page
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    for _ in range(2):  # the second press confirms
        mouse.click(".wb-stop")
    page.until("stopped", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    before = run.view()["steps"]
    for _ in range(2):
        mouse.click(".wb-stop-box .wb-resume")
    page.until("it goes on", lambda: run.view()["steps"] > before, PATIENCE)
    done("Stop a run with a checkpoint, and resume it", mouse)


def test_a_chart_as_a_picture(hand: Callable[[], Hand], store: Path, tmp_path: Path) -> None:
    run = wb.launch(SCRIPTS / "raw_ddp.py", ["--steps", "60"], cpu=True, store=store, warm=True)
    run.wait(PATIENCE)
    mouse = hand()
    page = mouse.page
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    open_run(mouse, run.id)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    mouse.choose("select[aria-label='Save Loss']", "PNG")
    picture = tmp_path / "loss.png"
    page.until("the picture", picture.exists, PATIENCE)
    assert picture.read_bytes().startswith(b"\x89PNG")
    done("Get a run's loss chart as a PNG file", mouse)
