"""Findings, waiting, checkpoints and the fault lab in a real browser."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.widgets.sample_runs import SampleRun
from tests.widgets.sample_troubles import CHECKPOINTS, HOSTILE, TROUBLES, finding, hang
from tests.widgets.sample_troubles import timeline as sample_timeline

pytestmark = pytest.mark.full

PATIENCE = 120
FACES = """\
from pathlib import Path
from types import SimpleNamespace
import workbench as wb
from workbench_widgets import Checkpoints, FaultLab, RunDashboard
STORE = Path({store!r})
def resume(checkpoint=None):
    (STORE / "asked.txt").write_text(str(checkpoint))
    raise wb.UsageError({hostile!r})
def sample(run):
    stop = lambda now=False: None
    return SimpleNamespace(id=run, directory=STORE / run, request_stop=stop, resume=resume)
"""
FINDINGS = "return [...document.querySelectorAll('.wb-area-findings > ul h4')].map((one) => one.textContent)"
WORDS = """
const plot = document.querySelector('.wb-area-waits .js-plotly-plot');
return plot ? plot.data.flatMap((trace) => trace.hovertext) : []
"""
HIDDEN = "return !document.querySelector(arguments[0]).checkVisibility()"
FROZEN = "return document.querySelector('.wb-area-ranks').textContent"


def opened(lab: Lab, page: Page, store: Path, name: str, code: str) -> None:
    begin = FACES.format(store=str(store), hostile=HOSTILE)
    page.open(lab.notebook(f"{name}.ipynb", begin, code))
    page.run_cell(0)
    page.run_cell(1)


def test_findings_appear_lead_to_the_panel_and_clear(lab: Lab, page: Page, store: Path) -> None:
    run = SampleRun(store, "troubled")
    run.write(100, attempt=1)
    opened(lab, page, store, "findings", "RunDashboard(sample('troubled'))")
    page.until("curve", lambda: page.points() >= 50)
    assert page.text(".wb-area-findings .wb-note") == "No findings"
    assert page.js(HIDDEN, ".wb-alarm")
    bad = {**finding(HOSTILE), "cause": HOSTILE, "evidence": HOSTILE, "next": HOSTILE}
    run.write(121, **{**TROUBLES, "findings": [bad, hang(), *TROUBLES["findings"][2:]]})
    page.until("the error comes first", lambda: page.js(FINDINGS)[:1] == ["Hang"])
    assert len(page.js(FINDINGS)) == 2
    assert hang()["cause"] in page.text(".wb-alarm")
    assert "And 1 more." in page.text(".wb-alarm")
    assert page.text(".wb-spoken[role=alert]") == f"Error: {hang()['cause']}"
    for part in (hang()["evidence"], hang()["next"], "rank 1", "since step 121", "95 % sure"):
        assert part in page.text(".wb-area-findings")
    assert page.text(".wb-cleared summary") == "1 cleared"
    assert page.text(".wb-attempt").startswith("Attempt 2, resumed from step 60: rank 1 was killed")
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    assert HOSTILE in page.text(".wb-area-findings")
    page.one(".wb-alarm").send_keys(Keys.ENTER)
    focused = "return document.activeElement.className"
    page.until("the panel has the focus", lambda: "wb-area-findings" in page.js(focused))
    over = {"cleared_at": time.time(), "replaced_by": "deadlock@1"}
    run.write(130, findings=[{**hang(), **over}])
    page.until("cleared", lambda: page.text(".wb-area-findings .wb-note") == "No open findings")
    gone = "return document.querySelector('.wb-cleared .wb-circumstances').textContent"
    assert "replaced by deadlock@1" in page.js(gone)
    assert page.js(HIDDEN, ".wb-alarm")
    assert "pwned" not in page.driver.title
    assert page.errors() == []


def test_who_waited_for_whom_in_words(lab: Lab, page: Page, store: Path) -> None:
    run = SampleRun(store, "waits")
    run.write(121, **TROUBLES)
    opened(lab, page, store, "waits", "RunDashboard(sample('waits'))")
    panel = page.one(".wb-area-waits")  # below the devices: a panel is drawn once it is in sight
    page.js("arguments[0].scrollIntoView({block: 'center'})", panel)
    words = page.until("bars", lambda: page.js(WORDS))
    late = "step 119: rank 1 entered backward 31.3 ms after the first; the others waited"
    assert late in words
    waited = "step 119: rank 0 entered backward first and waited 31.3 ms for rank 1"
    assert any(one.startswith(f"{waited}; it waited 6.1 ms for data") for one in words)
    assert not any(one.startswith("step 107") for one in words)  # the last twelve
    assert page.text(".wb-area-waits .wb-panel-value") == "rank 1: 29.6 ms late (median)"
    said = "return document.querySelector('.wb-area-waits .wb-plot').getAttribute('aria-label')"
    assert "rank 1 entered backward 29.6 ms after the first (median)" in page.js(said)
    restarts = "return document.querySelector('.wb-area-loss .js-plotly-plot').layout.shapes.map((one) => one.x0)"
    assert page.js(restarts) == [60]
    run.write(130, timeline=sample_timeline(late=0.0))
    page.until("in sync", lambda: "in sync" in page.text(".wb-area-waits .wb-panel-value"))
    run.write(131, timeline={"step": [1], "ranks": [{"rank": 0, "entered": [None]}, {"rank": 1}]})
    page.until("n/a is no bar", lambda: page.js(HIDDEN, ".wb-area-waits"))
    run.write(132, timeline=sample_timeline())
    page.until("bars again", lambda: not page.js(HIDDEN, ".wb-area-waits"))
    run.write(133, timeline=sample_timeline(), processes=1)
    page.until("one process waits for nobody", lambda: page.js(HIDDEN, ".wb-area-waits"))
    assert page.errors() == []


def test_resume_asks_twice_and_says_what_went_wrong(lab: Lab, page: Page, store: Path) -> None:
    run, asked = SampleRun(store, "saved"), store / "asked.txt"
    run.write(121, checkpoints=CHECKPOINTS, written_at=time.time() + 120)
    opened(lab, page, store, "saved", "RunDashboard(sample('saved'))")
    page.until("four", lambda: len(buttons(page)) == 4)
    assert [one.is_enabled() for one in buttons(page)] == [False] * 4  # it still runs
    assert page.js(HIDDEN, ".wb-stop-box .wb-resume")
    run.write(121, phase="ended", outcome="failed", checkpoints=CHECKPOINTS)
    page.until("it has ended", lambda: all(one.is_enabled() for one in buttons(page)))
    assert [one.is_displayed() for one in buttons(page)] == [True, True, False, True]
    text = page.text(".wb-checkpoints")
    assert "brokenmodel.safetensors has 1,000 of 428,113 bytes" in text
    assert "not yet" in text
    assert "n/a" in text
    buttons(page)[1].click()
    assert buttons(page)[1].text == "Press again: resume from here"
    assert not asked.exists()
    buttons(page)[1].click()
    page.until("asked", lambda: asked.read_text() == "step-00000100")
    page.until("the error", lambda: HOSTILE in page.text(".wb-area-checkpoints .wb-note"))
    assert HOSTILE in page.text(".wb-header .wb-banner")
    head = page.one(".wb-stop-box .wb-resume")
    head.click()
    head.click()
    page.until("the newest whole one", lambda: asked.read_text() == "None")
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    assert page.errors() == []


def buttons(page: Page) -> list:
    return page.driver.find_elements("css selector", ".wb-checkpoints .wb-resume")


def test_the_lab_breaks_a_training_and_shows_what_was_found(
    lab: Lab, page: Page, store: Path
) -> None:
    opened(lab, page, store, "faults", f"lab = FaultLab(store={str(store)!r})\nlab")
    press(page, "Start the training")
    page.until("steps", lambda: page.points() >= 5, PATIENCE)
    press(page, "Slow rank")
    page.until("said what to look at", lambda: "orange bar is rank 1" in page.text(".wb-lab-look"))
    page.until("found", lambda: "Straggler" in page.js(FINDINGS), PATIENCE)
    assert page.text(".wb-area-waits .wb-panel-value").startswith("rank 1:")
    looks(page, "faults")
    press(page, "Heal")
    press(page, "Killed rank (SIGKILL)")
    page.until("restarted", lambda: page.text(".wb-attempt").startswith("Attempt 2"), PATIENCE)
    assert "SIGKILL" in page.text(".wb-attempt")
    page.until("it trains on", lambda: page.text(".wb-badge") == "Running", PATIENCE)
    run = wb.attach("last", store)
    assert run.stop()["processes_left"] == 0
    page.until("it has ended", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    resume = page.one(".wb-stop-box .wb-resume")
    resume.click()
    resume.click()
    page.until("resumed", lambda: page.text(".wb-attempt").startswith("Attempt 3"), PATIENCE)
    page.until("it trains on", lambda: page.text(".wb-badge") == "Running", PATIENCE)
    lines = (run.directory / "attempts.jsonl").read_text().splitlines()
    starts = [one for one in map(json.loads, lines) if one["event"] == "start"]
    assert [one["attempt"] for one in starts] == [1, 2, 3]
    assert page.errors() == []


def press(page: Page, text: str) -> None:
    def button() -> WebElement | None:
        for one in page.driver.find_elements("css selector", ".wb-lab button"):
            if one.text.strip() == text and one.is_enabled():
                return one
        return None

    page.js("arguments[0].click()", page.until(f"{text} can be pressed", button))


def looks(page: Page, name: str) -> None:
    """Screenshots to be looked at; asserted is that nothing overflows."""
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in ((1600, 1600), (800, 2200), (500, 3400)):
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(0.8)
            top = "document.querySelector('.wb-lab').scrollIntoView({block: 'start'})"
            page.js(top)
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"{name}-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
