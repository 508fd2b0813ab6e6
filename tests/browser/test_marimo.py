"""The faces in a real marimo notebook: drawn in their colours, and answered by the kernel."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("marimo", reason="marimo is not installed")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import workbench as wb
from tests.browser.conftest import SCRIPT
from tests.browser.lab import Page
from tests.browser.looks import FOLDER
from tests.browser.marimo_server import Marimo

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PATIENCE = 120
NOTEBOOK = Path(__file__).with_name("marimo_faces.py")
# marimo draws each widget in a shadow tree.
FIND = """
const found = [...document.querySelectorAll('marimo-anywidget')]
  .flatMap((one) => [...(one.shadowRoot?.querySelectorAll(arguments[0]) ?? [])]);
"""
TEXTS = f"{FIND} return found.map((one) => one.textContent)"
FIRST = f"{FIND} return found[0]"
LAST_STEP = f"{FIND} return Math.max(0, ...found[0].data.map((trace) => trace.x.at(-1) ?? 0))"
PAINTED = f"""{FIND}
const read = (node, name) => getComputedStyle(node)[name];
return {{ink: read(found[0], 'color'), badge: read(found[0].querySelector('.wb-badge'), 'borderRadius')}};
"""
LOSS = ".wb-area-loss .js-plotly-plot"


@pytest.fixture
def run(foreign_store: Path, tmp_path: Path) -> wb.Run:
    script = Path(shutil.copy(SCRIPT, tmp_path / "train.py"))
    return wb.launch(script, processes=2, cpu=True, store=foreign_store, warm=True, name="seen")


@pytest.fixture
def open_in(
    page: Page, run: wb.Run, foreign_store: Path, tmp_path: Path
) -> Iterator[Callable[[str], None]]:
    servers = []

    def open_notebook(theme: str) -> None:
        servers.append(
            Marimo(NOTEBOOK, tmp_path / theme, theme, WORKBENCH_STORE=str(foreign_store))
        )
        page.driver.get(servers[-1].url)
        page.until("a curve", lambda: page.js(LAST_STEP, LOSS) >= 5, PATIENCE)

    yield open_notebook
    page.driver.get("about:blank")
    for server in servers:
        server.close()


def texts(page: Page, selector: str) -> list[str]:
    return page.js(TEXTS, selector)


def changes(page: Page, selector: str, act: Callable[[], Any]) -> None:
    """What the face says is another sentence after the act: the kernel has answered."""
    before = texts(page, selector)[0]
    assert before
    act()
    page.until(f"another {selector}", lambda: texts(page, selector)[0] not in ("", before), 60)


def type_in(page: Page, face: str, field: str, text: str) -> None:
    """Replace what a control says, as a hand does."""
    control = page.js(FIRST, f"[aria-label='{face}'] [data-field={field}] input")
    page.js("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", control)
    keys = ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL)
    keys.send_keys(text, Keys.ENTER).perform()


def test_faces_are_drawn_and_answered(page: Page, run: wb.Run, open_in) -> None:
    open_in("light")
    shown = page.js(LAST_STEP, LOSS)
    page.until("it grows", lambda: page.js(LAST_STEP, LOSS) > shown + 5, PATIENCE)
    page.until("the log", lambda: "step" in "".join(texts(page, ".wb-log[aria-label=Log]")))
    for face in ("Memory calculator", "Cost calculator"):
        headline = f"[aria-label='{face}'] .wbm-headline"
        page.until(face, lambda headline=headline: texts(page, headline)[0])
    changes(
        page,
        "[aria-label='Memory calculator'] .wbm-headline",
        lambda: type_in(page, "Memory calculator", "model", "llama-3-70b"),
    )
    changes(
        page,
        "[aria-label='Cost calculator'] .wbm-headline",
        lambda: type_in(page, "Cost calculator", "tokens", "300B"),
    )
    page.until("plans", lambda: len(texts(page, ".wbp-table tbody tr")) > 1, PATIENCE)
    page.until("a layout", lambda: texts(page, ".wbs-cell"))
    page.until("the table of runs", lambda: "seen" in "".join(texts(page, ".wb-runs tbody")))
    page.until("runs to compare", lambda: "seen" in "".join(texts(page, ".wbx-runs tbody")))
    stop = page.js(FIRST, ".wb-header .wb-stop")
    page.js("arguments[0].scrollIntoView({block: 'center'})", stop)
    stop.click()
    stop.click()
    page.until("stopped", lambda: texts(page, ".wb-header .wb-badge") == ["Stopped"], PATIENCE)
    assert run.outcome == "stopped"
    assert page.errors() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_faces_have_their_colours(page: Page, open_in, theme: str) -> None:
    open_in(theme)
    painted = page.js(PAINTED, ".wb-root:has(.wb-header)")
    assert painted["badge"] == "999px"  # the style sheet is there
    bright = sum(map(int, painted["ink"].removeprefix("rgb(").rstrip(")").split(","))) > 3 * 128
    assert bright == (theme == "dark")
    FOLDER.mkdir(exist_ok=True)
    for width in (800, 1440):
        page.driver.set_window_size(width, 1300)
        wider = f"{FIND} return found.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
        page.until("nothing overflows", lambda wider=wider: page.js(wider, ".wb-root") == 0, 20)
        page.driver.save_screenshot(str(FOLDER / f"marimo-{theme}-{width}.png"))
