"""The cost calculator in JupyterLab: controls, the table of offers, errors in place, looks."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page
from tests.browser.looks import both_themes_and_three_widths, type_into

pytestmark = pytest.mark.full

CELL = "from workbench_widgets import CostCalculator\nCostCalculator({options})"
VALUES = "return Object.fromEntries([...document.querySelectorAll('.wbc-numbers > div')].map((one) => [one.children[0].textContent, one.children[1].textContent]))"


@pytest.fixture
def show(lab: Lab, page: Page, store):
    """Open a notebook with one calculator in it."""

    def open_it(name: str, options: str) -> None:
        page.open(lab.notebook(f"{name}.ipynb", CELL.format(options=options)))
        page.run_cell(0)
        page.one(".wbm-headline")

    return open_it


def test_prices_offers_and_errors_in_place(page: Page, show) -> None:
    show("cost", "model='llama-3-8b', gpu='h100', gpus=8, strategy='fsdp', tokens='100B'")
    before = page.js(VALUES)
    assert before["Finished run"].startswith("$")
    type_into(page, "tokens", "200B")
    page.until("more tokens", lambda: page.js(VALUES)["Finished run"] != before["Finished run"])
    take = page.one(".wbc-offers tr[data-chosen='false'] button")
    provider = page.text(".wbc-offers tr[data-chosen='false'] th")
    page.js("arguments[0].focus(); arguments[0].click()", take)
    page.until("taken", lambda: page.text(".wbc-offers tr[data-chosen='true'] th") == provider)
    assert f"at {provider}" in page.text(".wbc-where")
    focused = "return !!document.activeElement.closest('.wbc-offers')"
    assert page.js(focused)
    type_into(page, "usd_per_hour", "cheap")
    page.until(
        "said",
        lambda: (
            "18" in page.text("[data-field=usd_per_hour] .wbm-problem")
            or "1.5-2.5" in page.text("[data-field=usd_per_hour] .wbm-problem")
        ),
    )
    assert page.js("return document.querySelector('.wbm-figure').dataset.stale") == "true"
    type_into(page, "usd_per_hour", "18-24")
    page.until("own price", lambda: page.js(VALUES)["Per month"] == "$15,120")
    page.one("[data-field=spot] input").click()
    type_into(page, "spot_usd_per_hour", "8")
    page.until("both bills", lambda: "longer than" in page.text(".wbc-verdict"))
    bars = "return [...document.querySelectorAll('.wbc-spot .wbm-small')].map((one) => parseFloat(one.style.width))"
    steady, spot = page.js(bars)
    assert 0 < spot < steady == 100
    page.js("document.querySelector('[data-field=tokens] input').focus()")
    page.js("arguments[0].blur()", page.one("[data-field=tokens] input"))
    assert page.errors() == []


def test_it_comes_back_after_a_reload(page: Page, show) -> None:
    show("cost-again", "model='gpt2', gpu='rtx-4090', tokens='1B', provider='runpod'")
    type_into(page, "tokens", "3B")
    page.until("three", lambda: "3 B tokens" in page.text(".wbm-head .wb-note"))
    values = page.js(VALUES)
    page.save()
    page.driver.refresh()
    page.until("back", lambda: page.js(VALUES) == values, 90)
    slider = page.one("[data-field=micro_batch] input[type=range]")
    page.js("arguments[0].focus()", slider)
    slider.send_keys(Keys.ARROW_RIGHT)
    page.until("answers", lambda: page.js(VALUES) != values)


def test_looks(page: Page, show) -> None:
    show(
        "looks-cost",
        "model='llama-3-8b', gpu='h100', gpus=8, strategy='fsdp', tokens='100B', micro_batch=2, "
        "provider='runpod', storage_gb=500, stopped_days=3, egress_gb=90, idle_hours=20",
    )
    both_themes_and_three_widths(page, "cost")
