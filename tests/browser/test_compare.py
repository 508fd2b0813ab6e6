"""The Compare face in a real browser: tick, switch the axis, filter, label, delete; both themes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.browser.test_looks import CLIPPED
from tests.compare.made_runs import make_run
from workbench.store.labels import change_labels, read_labels
from workbench.store.runs import Store

pytestmark = pytest.mark.full

SIZES = ((1600, 1300), (800, 1500), (500, 1900))
TRACES = "return document.querySelector('.wbx .js-plotly-plot')?.data.length ?? 0"
TITLE = "return document.querySelector('.wbx .js-plotly-plot').layout.xaxis.title.text"


def make_runs(root: Path) -> None:
    now = time.time() - 1.7e9
    make_run(root, "baseline", name="gpt baseline", steps=400, slow=90, age=now - 4000)
    warm = {"arguments": ["--lr", "1e-3", "--warmup", "100"], "slow": 60}
    make_run(root, "warm", name="lr 1e-3, warm-up", steps=400, age=now - 3000, **warm)
    fsdp = {
        "strategy_name": "fsdp",
        "strategy": {"name": "fsdp", "dp_shard": 4},
        "usd_per_hour": 9.6,
    }
    make_run(root, "sharded", ranks=4, steps=350, step_seconds=0.3, age=now - 2000, **fsdp)
    broken = {"outcome": "failed", "floor": 3.4, "usd_per_hour": None}
    make_run(root, "broken", name="<b>no price</b>", steps=90, age=now - 1000, **broken)
    change_labels(Store(root).find("baseline"), add=["baseline", "paper"], note="figure 2")


def test_tick_switch_label_delete(lab: Lab, page: Page, store: Path) -> None:
    make_runs(store)
    code = f"from workbench_widgets import Compare\nCompare(store={str(store)!r}, runs=['baseline', 'warm'])"
    page.open(lab.notebook("compare.ipynb", code))
    page.run_cell(0)
    page.until("two curves", lambda: page.js(TRACES) == 2, 60)
    for count in (3, 4):
        page.js("document.querySelector('.wbx-runs .wb-check input:not(:checked)').click()")
        page.until("one more curve", lambda count=count: page.js(TRACES) == count)
    page.until("differences", lambda: "argument --lr" in page.text(".wbx-beside"))
    page.js(
        "const one = document.querySelector('.wbx select[aria-label=\"Horizontal axis\"]');"
        " one.selectedIndex = 3;"
        " one.dispatchEvent(new Event('change'))"
    )
    page.until("dollars", lambda: page.js(TITLE) == "US dollars" and page.js(TRACES) == 3)
    assert "<b>no price</b>  no dollars" in page.text(".wbx .wb-chips")
    looks(page)
    where = page.one(".wbx-filter input[type=text]")
    where.send_keys("tag=paper", Keys.ENTER)
    rows = "return document.querySelectorAll('.wbx-runs tbody tr').length"
    page.until("filtered", lambda: page.js(rows) == 1)
    page.js("document.querySelector('.wbx-runs tbody button').click()")
    page.one(".wbx-edit label:nth-of-type(2) input").send_keys(" of the paper", Keys.ENTER)
    page.until(
        "note", lambda: read_labels(Store(store).find("baseline")).note == "figure 2 of the paper"
    )
    delete = "document.querySelector('.wbx-edit .wb-resume').click()"
    page.js(delete)
    page.until(
        "asked",
        lambda: "Press again to delete baseline permanently" in page.text(".wbx [role=status]"),
    )
    assert (store / "baseline").is_dir()
    page.js(delete)
    page.until("deleted", lambda: not (store / "baseline").exists())
    page.until("its curve is gone", lambda: page.js(TRACES) == 2)
    assert page.errors() == []


def looks(page: Page) -> None:
    """Screenshots in both themes; asserted is that nothing is clipped or overflows."""
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in SIZES:
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(1.2)  # plotly.js redraws after the resize
            page.js(
                "document.querySelector('.jp-OutputArea-output').scrollIntoView({block: 'start'})"
            )
            time.sleep(0.3)
            name = f"compare-{theme.split()[1].lower()}-{width}.png"
            page.driver.save_screenshot(str(FOLDER / name))
            assert page.js(CLIPPED) == []
            assert not (wider := page.js(OVERFLOW)), wider
    page.driver.set_window_size(1600, 1300)
