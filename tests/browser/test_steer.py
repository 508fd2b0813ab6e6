"""Steering a live run with the mouse: the dashboard's menu."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.conftest import SCRIPTS

ATTACH = "import workbench as wb\nfrom workbench_widgets import RunDashboard\nRunDashboard(wb.attach('last', {store!r}))"
PATIENCE = 180


def press(page: Page, text: str) -> None:
    page.js(
        "[...document.querySelectorAll('.wb-steer button')].find((one) => one.textContent === arguments[0]).click()",
        text,
    )


@pytest.mark.full
def test_rate_look_and_checkpoint(lab: Lab, page: Page, store: Path) -> None:
    arguments = ["--how", "plain", "--steps", "4000", "--step-seconds", "0.1"]
    run = wb.launch(
        SCRIPTS / "steered.py", arguments, processes=1, cpu=True, store=store, warm=True
    )
    page.open(lab.notebook("steer.ipynb", ATTACH.format(store=str(store))))
    page.driver.set_window_size(1440, 900)
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    page.one(".wb-steer > summary").click()
    note = lambda: page.text(".wb-steer p")  # noqa: E731
    page.one(".wb-steer input[placeholder='1e-4']").send_keys("0.002")
    press(page, "Set")
    page.until("it is said", lambda: "lr is 0.002 instead of" in note(), PATIENCE)
    page.until("it is on the curve", lambda: page.js(MARKS) >= 1, PATIENCE)
    press(page, "Save checkpoint")
    page.until("it is refused", lambda: "How this script saves" in note(), PATIENCE)
    page.one(".wb-steer input[size='18']").send_keys("2")
    press(page, "Look")
    page.until("a table", lambda: "gradients" in page.text(".wb-steer table"), PATIENCE)
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width in (1440, 600):
            page.driver.set_window_size(width, 900)
            page.focus_mode()
            page.driver.save_screenshot(
                str(FOLDER / f"steer-{theme.split()[1].lower()}-{width}.png")
            )
            assert not (wider := page.js(OVERFLOW)), wider
    assert page.errors() == []
    run.stop(now=True)


MARKS = "return [...document.querySelectorAll('.annotation-text')].filter((one) => one.textContent.includes('◆')).length"
