"""The planner in JupyterLab: sliders, the scatter's hover and click, why-not, handover, looks."""

from __future__ import annotations

import statistics

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page
from tests.browser.looks import both_themes_and_three_widths, type_into
from tests.widgets.slider_probe import MOVES

pytestmark = pytest.mark.full

OPTIONS = "model='llama-3.2-1b', tokens='5B'"
CELL = "from workbench_widgets import Planner\nplanner = Planner({options})\nplanner"
HEADLINE = ".wbm-headline"
# Where a trace's point is on screen, to be moved to and clicked as a hand does.
POINT = """
const [name, at] = arguments;
const plot = document.querySelector('.wb-area-pareto .js-plotly-plot');
const trace = plot.data.find((one) => one.name === name);
const { xaxis, yaxis } = plot._fullLayout;
const box = plot.getBoundingClientRect();
return {x: Math.round(box.left + xaxis._offset + xaxis.d2p(trace.x[at])),
        y: Math.round(box.top + yaxis._offset + yaxis.d2p(trace.y[at])), plan: trace.customdata[at][0]};
"""


@pytest.fixture
def show(lab: Lab, page: Page, store):
    """Open a notebook with one planner in it and wait for its plans."""

    def open_it(name: str, options: str = OPTIONS) -> None:
        page.open(lab.notebook(f"{name}.ipynb", CELL.format(options=options)))
        page.run_cell(0)
        page.one(".wbp-table tbody tr")
        drawn = "return document.querySelectorAll('.wb-area-pareto .scatterlayer .point').length"
        page.until("the scatter", lambda: page.js(drawn))

    return open_it


def kept(page: Page) -> int:
    return int(page.text(".wbm-head .wb-note").split(" tokens. ")[1].split(" of ")[0])


def test_sliders_scatter_and_table_answer(page: Page, show) -> None:
    show("plan")
    every = kept(page)
    slider = page.one("[data-field=budget_usd] input[type=range]")
    assert slider.get_attribute("aria-valuetext") == "no limit"
    page.js("arguments[0].focus()", slider)
    slider.send_keys(Keys.HOME)
    page.until("one plan", lambda: kept(page) == 1)
    slider.send_keys(Keys.END)
    page.until("all of them", lambda: kept(page) == every)
    spot = page.js(POINT, "cheapest for its time", 1)
    pointer = {"type": "mouseMoved", "x": spot["x"], "y": spot["y"]}
    page.driver.execute_cdp_cmd("Input.dispatchMouseEvent", pointer)
    page.until("hover", lambda: "tokens/s" in page.text(".wb-area-pareto .hoverlayer"))
    for kind in ("mousePressed", "mouseReleased"):
        press = {**pointer, "type": kind, "button": "left", "clickCount": 1}
        page.driver.execute_cdp_cmd("Input.dispatchMouseEvent", press)
    chosen = "return document.querySelector('.wbp-table tr[data-chosen=true]')?.dataset.plan"
    page.until("selected", lambda: page.js(chosen) == str(spot["plan"]))
    machines = page.text(".wbp-table tr[data-chosen=true] .wbp-pick")
    assert page.text(".wbp-title") == f"Selected: {machines}"
    assert "as fast as the cheapest" in page.text(".wbp-why")
    page.one(".wbp-table tbody tr:first-child .wbp-pick").click()
    page.until("the first", lambda: "cheapest" in page.text(".wbp-why"))
    times = sorted(page.driver.execute_async_script(MOVES, 30, "budget_usd", ".wbm-output"))
    p50, p95 = statistics.median(times), times[int(0.95 * len(times))]
    print(f"planner's slider, event to figure: p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    assert p50 < 250  # the budget is 100 ms on an idle machine; a loaded one must not fail here
    assert page.errors() == []


def test_why_not_another_model_and_use(page: Page, show) -> None:
    show("plan-why")
    page.until("groups", lambda: page.text(".wbp-group summary"))
    groups = "return [...document.querySelectorAll('.wbp-group')].map((one) => one.dataset.kind)"
    assert {"memory", "dominated", "price unknown"} <= set(page.js(groups))
    page.js("document.querySelector('.wbp-group[data-kind=memory]').open = true")
    assert "too much" in page.text(".wbp-group[data-kind=memory] .wbp-examples")
    assert "The runner-up" in page.text(".wbm-why")
    page.one(".wbp-detail .wbm-simulate").click()
    page.until("handed over", lambda: "launch form" in page.text(".wbp-detail .wb-banner"))
    assert "wb.launch(" in page.text(".wbp-settings")
    type_into(page, "tokens", "many")
    page.until("said", lambda: "300B" in page.text("[data-field=tokens] .wbm-problem"))
    type_into(page, "tokens", "7B")
    page.until("searched again", lambda: "7 B tokens" in page.text(".wbm-head .wb-note"))
    page.until("done", lambda: page.js("return document.querySelector('.wbp-searching').hidden"))
    still = "return document.querySelector('.wbp-group[data-kind=memory]').open"
    page.until("what was opened is open", lambda: page.js(still))
    values = page.text(HEADLINE)
    page.save()
    page.driver.refresh()
    page.until("back after a reload", lambda: page.text(HEADLINE) == values, 90)
    page.until("its scatter", lambda: page.js(POINT, "cheapest for its time", 0))
    assert page.errors() == []


def test_looks(page: Page, show) -> None:
    show(
        "looks-plan",
        "model='llama-3-8b', tokens='100B', spot=True, budget_usd=20000, deadline_hours=1000",
    )
    page.until("the story", lambda: page.text(".wbp-group summary"))
    rules = "return document.querySelectorAll('.wbp-detail .wba-rules li').length"
    page.until("the advice", lambda: page.js(rules) > 4)
    page.js("document.querySelector('.wb-advice').open = true")
    both_themes_and_three_widths(page, "plan")
