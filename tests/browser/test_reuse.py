"""A run's settings are taken into the launch form of `Workbench`, changed and resumed by mouse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER
from tests.conftest import TINY_GPT

PATIENCE = 180
IN_SIGHT = """const { top, bottom } = document.querySelector(arguments[0]).getBoundingClientRect();
return top >= 0 && bottom <= innerHeight"""

FITS = """const row = document.querySelector('.wb-reused');
return row.scrollWidth <= row.clientWidth + 1"""


@pytest.mark.full
def test_a_stopped_run_goes_on_with_more_steps(lab: Lab, page: Page, store: Path) -> None:
    arguments = ["--steps", "4", "--checkpoint-every", "2", *TINY_GPT]
    code = f"""import workbench as wb
from workbench_widgets import Workbench
run = wb.launch("gpt", {arguments}, processes=2, cpu=True, store={str(store)!r}, warm=True)
assert run.wait({PATIENCE}) == "succeeded", run.status
Workbench(store={str(store)!r}, open="last")"""
    page.open(lab.notebook("reuse.ipynb", code))
    page.driver.set_window_size(1440, 900)
    page.run_cell(0)
    button = "return [...document.querySelectorAll('button')].find((one) => one.textContent.trim() === arguments[0])"
    reuse = page.until("the run", lambda: page.js(button, "Reuse settings"), PATIENCE)
    page.js("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", reuse)
    line = ".wb-form .wb-reused .wb-banner"
    page.until("what it is", lambda: "has finished" in page.text(line), PATIENCE)
    assert page.js(IN_SIGHT, line)
    assert page.js("return document.querySelector('.wb-reused button').disabled")
    typed = page.one(".wbf input[id$='-text']")
    typed.clear()
    typed.send_keys(" ".join(["--steps", "6", *arguments[2:]]), "\t")
    page.until("it may", lambda: "from step 4, in the same run" in page.text(line), PATIENCE)
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width in (1440, 800):
            page.driver.set_window_size(width, 900)
            page.until("it fits", lambda: page.js(FITS))
            name = f"reuse-{theme.split()[1].lower()}-{width}.png"
            page.driver.save_screenshot(str(FOLDER / name))
    page.js("arguments[0].click()", page.js(button, "Resume"))
    page.until("its end", lambda: "Finished after 6 steps" in page.text(".wb-header"), PATIENCE)
    assert page.errors() == []
