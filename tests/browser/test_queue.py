"""The queue's panel and the picker of devices in a real browser, both themes, three widths."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.browser.looks import CLIPPED, FOLDER, OVERFLOW
from workbench.queueing import Queue

pytestmark = pytest.mark.full

RUNS = "return [...document.querySelectorAll('.wb-queue tbody tr')].map((one) => one.children[1].textContent)"
CODE = """
from workbench_widgets import DevicePicker, QueuePanel
from IPython.display import display
picker = DevicePicker(store={store!r})
display(QueuePanel(store={store!r}), picker)
"""


def test_move_drop_and_tick(lab: Lab, page: Page, store: Path) -> None:
    queue = Queue(store)
    queue.set_slots(4)
    queue.pause()
    for name in ("warm-up 1e-4", "long", "<b>third</b>"):
        wb.launch("gpt", cpu=True, processes=2, store=store, name=name, queue=True)
    first, second, third = (one.run for one in queue.jobs())
    page.open(lab.notebook("queue.ipynb", CODE.format(store=str(store))))
    page.run_cell(0)
    page.until("the runs", lambda: third in page.js(RUNS), 60)
    page.js(f"document.querySelector('[aria-label=\"Move up {third}\"]').click()")
    page.until("moved", lambda: page.js(RUNS)[-3:] == [first, third, second])
    page.js(f"document.querySelector('[aria-label$=\"queue: {first}\"]').click()")
    page.until("dropped", lambda: first not in page.js(RUNS))
    page.js("document.querySelectorAll('.wb-chips input')[2].click()")
    page.until(
        "ticked", lambda: page.js("return document.querySelectorAll('.wb-chips input')[2].checked")
    )
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width in (1600, 800, 500):
            page.driver.set_window_size(width, 900)
            page.focus_mode()
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"queue-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
            assert not page.js(CLIPPED)
    assert not page.errors()
