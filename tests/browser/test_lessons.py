"""The tab Learn in JupyterLab: a lesson opens with a click or by the keyboard."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page

CELL = """from pathlib import Path
from workbench_widgets.lessons import Lessons
Lessons(Path("lessons <1>"))"""
CURRENT = "return document.querySelector('.jp-mod-current .lm-TabBar-tabLabel')?.textContent"


@pytest.mark.full
def test_a_lesson_opens_from_the_list(lab: Lab, page: Page) -> None:
    folder = lab.root / "lessons <1>"
    folder.mkdir()
    for name in ("00_begin", "01_memory"):
        lab.notebook(f"lessons <1>/{name}.ipynb", "1 + 1")
    page.open(lab.notebook("learn.ipynb", CELL))
    page.run_cell(0)
    page.one("a[data-commandlinker-command]").click()
    page.until("the first lesson", lambda: page.js(CURRENT) == "00_begin.ipynb")
    page.wait_for_kernel()
    page.open(lab.address("learn.ipynb"))
    page.run_cell(0)
    page.one("li:nth-child(2) a[data-commandlinker-command]").send_keys(Keys.ENTER)
    page.until("the second lesson", lambda: page.js(CURRENT) == "01_memory.ipynb")
    page.wait_for_kernel()
    assert not page.errors()


COPIED = """from workbench_widgets.lessons import Lessons
Lessons()"""


def test_lessons_outside_of_the_server_are_copied_with_a_press(lab: Lab, page: Page) -> None:
    page.open(lab.notebook("copied.ipynb", COPIED))
    page.run_cell(0)
    page.one(".jp-OutputArea-output button").click()
    link = page.one("li:nth-child(2) a[data-commandlinker-command]")
    assert (lab.root / "lessons" / "01_memory.ipynb").is_file()
    link.click()
    page.until("the lesson", lambda: page.js(CURRENT) == "01_memory.ipynb")
    page.wait_for_kernel()
    assert not page.errors()
