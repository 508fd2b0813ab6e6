"""JupyterLab with the workbench's extension: cards, live runs in the status bar, pages in tabs."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.browser.lab import Lab, Page

PATIENCE = 120
FRAME = ".jp-MainAreaWidget iframe"
NOTE = ".Toastify__toast"
CURVE = """
document.querySelector("[aria-label='Open seen <b>']")?.click(); // of several runs the table is shown
return document.querySelectorAll(".wb-area-loss .js-line").length > 0;
"""


def cards(page: Page) -> list[str]:
    return page.js(
        "return [...document.querySelectorAll('.jp-LauncherCard')].map((one) => one.textContent)"
    )


def notes(page: Page) -> str:
    texts = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return " | ".join(page.js(texts, NOTE))


def hover(page: Page) -> str:
    return page.js("return document.querySelector('.wb-status').title")


def in_frame(page: Page, script: str) -> object:
    """What `script` returns in the page that the tab holds."""
    page.driver.switch_to.frame(page.one(FRAME, PATIENCE))
    try:
        return page.js(script)
    finally:
        page.driver.switch_to.default_content()


@pytest.mark.full
def test_a_run_is_seen_opened_stopped_and_its_end_is_told(
    page: Page, lab: Lab, store: Path
) -> None:
    page.driver.get(f"{lab.url}/lab/workspaces/status?token={lab.token}&reset")
    page.until("our cards", lambda: "Training Workbench" in cards(page), PATIENCE)
    assert "Training Runs" in cards(page)
    page.errors()  # what JupyterLab itself says while it starts
    run = wb.launch(
        lab.root / "train.py", processes=2, cpu=True, store=store, warm=True, name="seen <b>"
    )
    status = page.one(".wb-status", PATIENCE)  # other tests' runs may be live on this host, too
    page.until("the step", lambda: "seen <b> · step" in hover(page), PATIENCE)
    assert "CPU" in status.text
    status.click()
    page.until("its curve, without a kernel", lambda: in_frame(page, CURVE), PATIENCE)
    assert lab.api("GET", "kernels") == []
    for theme, light in (("JupyterLab Dark", "false"), ("JupyterLab Light", "true")):
        page.theme(theme)
        assert in_frame(page, "return document.body.dataset.jpThemeLight") == light
    in_frame(page, "document.querySelector('.wb-header .wb-stop').click()")
    in_frame(page, "document.querySelector('.wb-header .wb-stop').click()")
    page.until("it stops", lambda: run.outcome == "stopped", PATIENCE)
    page.until("the end is told", lambda: "seen <b>: stopped" in notes(page), PATIENCE)
    assert page.errors() == []


@pytest.mark.full
def test_a_card_opens_the_workbench_in_a_notebook(page: Page, lab: Lab, store: Path) -> None:
    del store  # it ends the kernel afterwards
    page.driver.get(f"{lab.url}/lab/workspaces/card?token={lab.token}&reset")
    page.until("our cards", lambda: "Training Workbench" in cards(page), PATIENCE)
    page.js(
        "[...document.querySelectorAll('.jp-LauncherCard')]"
        ".find((one) => one.textContent === 'Training Workbench').click()"
    )
    launch = page.one(".wb-form .mod-primary", PATIENCE)
    page.until("Launch is possible", launch.is_enabled, PATIENCE)
    assert (lab.root / "Workbench.ipynb").is_file()
    (lab.root / "Workbench.ipynb").unlink()
