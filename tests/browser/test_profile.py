"""The profile in a real JupyterLab: made by the dashboard's button, drawn, linked, in both themes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW

pytestmark = pytest.mark.full

LAUNCH = """\
import workbench as wb
from workbench_widgets import Profile, RunDashboard
run = wb.launch("gpt", ["--steps", "100000"], cpu=True, processes=2, store={store!r}, warm=True)
RunDashboard(run)
"""
SHOW = "face = Profile(run, steps=3, memory=True); face"
ROW = ".wb-profile .wbf-rank"


def test_a_profile_from_the_button_to_the_picture(lab: Lab, page: Page, store: Path) -> None:
    page.open(lab.notebook("profile.ipynb", LAUNCH.format(store=str(store)), SHOW, "run.stop()"))
    page.run_cell(0)
    page.until(
        "the button",
        lambda: page.js(
            "const one = [...document.querySelectorAll('.wb-header button')]"
            ".find((one) => one.textContent === 'Profile 5 steps' && !one.hidden);"
            "one?.click(); return Boolean(one)"
        ),
        120,
    )
    page.until(
        "its answer",
        lambda: "Full profile: Profile(run)" in page.text(".wb-header .wb-banner"),
        120,
    )
    page.run_cell(1)
    page.until(
        "two ranks", lambda: page.js(f"return document.querySelectorAll('{ROW}').length") == 2
    )
    said = page.js(f"return document.querySelector('{ROW} .wbm-bar').getAttribute('aria-label')")
    assert "compute" in said
    assert "exposed communication" in said
    before = page.text(".wb-profile .wb-detail")
    page.js("document.querySelector('.wb-profile .wb-header button').click()")
    page.until("another", lambda: page.text(".wb-profile .wb-detail") != before, 120)
    page.js("document.querySelector('.wb-profile').scrollIntoView({block: 'end'})")
    page.until(
        "the memory",
        lambda: page.js("return document.querySelector('.wb-profile .js-plotly-plot') !== null"),
    )
    link = page.js("return document.querySelector('.wb-profile a[download]').href")
    packed = page.js(
        "return fetch(arguments[0]).then((one) => one.arrayBuffer()).then((one) => one.byteLength)",
        link,
    )
    assert packed > 10_000
    assert "merged.trace.json.gz" in link
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        time.sleep(0.7)
        page.js("document.querySelector('.wb-profile').scrollIntoView({block: 'start'})")
        page.driver.save_screenshot(str(FOLDER / f"profile-{theme.split()[1].lower()}.png"))
        assert not (wider := page.js(OVERFLOW)), wider
    page.js("document.querySelector('.wb-header').scrollIntoView({block: 'start'})")
    page.driver.save_screenshot(str(FOLDER / "profile-button.png"))
    assert not page.errors()
