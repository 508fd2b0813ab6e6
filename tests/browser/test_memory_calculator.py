"""The memory calculator in JupyterLab: sliders, words, keyboard, simulation, reload, looks."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW

CELL = "from workbench_widgets import MemoryCalculator\nface = MemoryCalculator({options})\nface"
NUMBERS = "return [...document.querySelectorAll('.wbm-numbers dd:not(.wbm-says)')].map((one) => one.textContent)"
CLIPPED = """
return [...document.querySelectorAll('.wbm :is(h2, h3, button, label, dt, dd, summary, .wbm-value, .wbm-verdict, .wbm-saves, td, th)')]
  .filter((one) => one.getClientRects().length && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')
  .map((one) => one.textContent)
"""
UNLABELLED = """
return [...document.querySelectorAll('.wbm :is(button, input, select)')].filter((one) =>
  !one.textContent.trim() && !one.getAttribute('aria-label') && !one.labels?.length).map((one) => one.outerHTML)
"""


@pytest.fixture
def show(lab: Lab, page: Page, store: Path):
    """Open a notebook with one calculator in it."""

    def open_it(name: str, options: str) -> None:
        page.open(lab.notebook(f"{name}.ipynb", CELL.format(options=options)))
        page.run_cell(0)
        page.one(".wbm-headline")

    yield open_it
    shutil.rmtree(lab.root / "runs", ignore_errors=True)


def winner(page: Page) -> str:
    return page.text(".wbm-rows li[data-wins='true'] .wbm-name")


def slide(page: Page, field: str, key: str, times: int) -> None:
    slider = page.one(f"[data-field={field}] input[type=range]")
    page.js("arguments[0].focus()", slider)
    for _ in range(times):
        slider.send_keys(key)


@pytest.mark.full
def test_sliders_change_numbers_winner_and_words(page: Page, show) -> None:
    show("slide", "model='llama-3.2-1b', gpu=['h100-sxm', 'a100-sxm-40'], seq_len=1024")
    first, numbers = winner(page), page.js(NUMBERS)
    assert len(numbers) == 3
    assert first == "optimizer step"
    assert "optimizer's step" in page.text(".wbm-why")
    slide(page, "micro_batch", Keys.ARROW_RIGHT, 5)
    page.until("another winner", lambda: winner(page) == "loss backward")
    page.until("its words", lambda: "loss's backward" in page.text(".wbm-why"))
    assert page.js(NUMBERS) != numbers
    focused = "return document.activeElement?.closest('[data-field]')?.dataset.field"
    assert page.js(focused) == "micro_batch"  # the answer took no one's focus away
    verdicts = (
        "return [...document.querySelectorAll('.wbm-cards li')].map((one) => one.dataset.fits)"
    )
    slide(page, "micro_batch", Keys.ARROW_RIGHT, 2)
    page.until("one fits, one does not", lambda: page.js(verdicts) == ["true", "false"])
    assert "does not fit" in page.text(".wbm-cards li:nth-child(2)")
    assert page.errors() == []


@pytest.mark.full
def test_model_search_apply_and_errors_in_place(page: Page, show) -> None:
    show("search", "model='gpt2', gpu='rtx-4090'")
    field = page.one("[data-field=model] input")
    field.click()
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("llama 3 8b")
    assert field.get_attribute("aria-expanded") == "true"
    field.send_keys(Keys.ENTER)
    page.until("the model", lambda: "Llama 3 8B" in page.text(".wbm-head .wb-note"))
    page.until("does not fit", lambda: page.text(".wbm-headline").startswith("Does not fit"))
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("lmaa-3-8b", Keys.ENTER)
    page.until(
        "said in place", lambda: "Did you mean" in page.text("[data-field=model] .wbm-problem")
    )
    assert page.js("return document.querySelector('.wbm-figure').dataset.stale") == "true"
    assert "Llama 3 8B" in page.text(".wbm-head .wb-note")  # the last good figure
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("llama-3-8b", Keys.ENTER)
    page.until(
        "good again",
        lambda: page.js("return document.querySelector('.wbm-figure').dataset.stale") == "false",
    )
    rank = page.one("[data-field=lora_rank] input")
    rank.send_keys(Keys.CONTROL, "a")
    rank.send_keys("-3", Keys.ENTER)
    page.until("least", lambda: "at least 0" in page.text("[data-field=lora_rank] .wbm-problem"))
    rank.send_keys(Keys.CONTROL, "a")
    rank.send_keys("0", Keys.ENTER)
    page.until("no problem", lambda: page.text("[data-field=lora_rank] .wbm-problem") == "")
    button = page.one(".wbm-switches button[aria-label='Apply QLoRA nf4 r16']")
    page.js("arguments[0].focus(); arguments[0].click()", button)
    page.until("it fits", lambda: page.text(".wbm-headline").startswith("Fits"))
    assert page.one("[data-field=quantization] select").get_attribute("value") == "nf4"
    assert rank.get_attribute("value") == "16"
    page.until(
        "focus stays in the list",
        lambda: page.js("return !!document.activeElement.closest('.wbm-switches')"),
    )
    assert page.js(UNLABELLED) == []
    assert page.errors() == []


@pytest.mark.full
def test_simulation_beside_the_closed_form_and_reload(page: Page, show) -> None:
    pytest.importorskip("transformers")
    show("exact", "model='gpt2', gpu='rtx-4090', seq_len=128")
    page.one(".wbm-simulate").click()
    page.until(
        "progress",
        lambda: page.js("return !document.querySelector('.wbm-exact progress').hidden"),
        10,
    )
    page.until("compared", lambda: "x" in page.text(".wbm-compared tbody td:last-child"), 200)
    page.js("document.querySelector('.wbm-timeline').scrollIntoView({block: 'center'})")
    page.until(
        "timeline",
        lambda: (
            page.js("return document.querySelector('.wbm-timeline .js-plotly-plot')?.data.length")
            or 0
        ),
    )
    slide(page, "seq_len", Keys.ARROW_RIGHT, 1)
    page.until("said to be old", lambda: page.one(".wbm-old").is_displayed())
    numbers = page.js(NUMBERS)
    page.save()
    page.driver.refresh()
    page.until("the figure is back", lambda: page.js(NUMBERS) == numbers, 90)
    page.until(
        "so is the simulation", lambda: "x" in page.text(".wbm-compared tbody td:last-child")
    )
    assert (
        page.js(
            "return document.querySelector('[data-field=seq_len] input').getAttribute('aria-valuetext')"
        )
        == "256 tokens"
    )


LOOKS = {
    "one": "model='llama-3.2-1b', gpu=['h100-sxm', 'rtx-4090'], micro_batch=8",
    "fsdp": "model='llama-3-8b', gpu=['h100-sxm', 'b200', 'mi325x'], gpus=8, strategy='fsdp', micro_batch=2",
    "pipeline": "model='llama-3-70b', gpus=8, nodes=4, strategy='zero1', tp=4, pp=8, accumulate=16",
}


@pytest.mark.full
@pytest.mark.parametrize("name", LOOKS)
def test_both_themes_and_three_widths(page: Page, show, name: str) -> None:
    """Screenshots to be looked at; asserted is only that nothing is clipped or overflows."""
    FOLDER.mkdir(exist_ok=True)
    show(f"looks-{name}", LOOKS[name])
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in ((1600, 1350), (800, 2300), (500, 3000)):
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(0.7)
            page.js(
                "document.querySelector('.jp-OutputArea-output').scrollIntoView({block: 'start'})"
            )
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"memory-{name}-{shade}-{width}.png"))
            assert page.js(CLIPPED) == []
            assert not (wider := page.js(OVERFLOW)), wider
    assert page.errors() == []
