"""`workbench ui` in a real browser: a live run of two ranks, seen and stopped without Jupyter."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.browser.conftest import SCRIPT
from tests.browser.lab import Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.browser.ui_server import UiServer
from tests.widgets.sample_runs import SampleRun
from workbench.store.processes import find_marked

PATIENCE = 120


@pytest.fixture
def server(store: Path) -> Iterator[UiServer]:
    store.mkdir(exist_ok=True)
    one = UiServer(store)
    yield one
    assert one.close() == 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """Stopped afterwards, whatever happened."""
    root = tmp_path / "runs"
    yield root
    for row in wb.runs(root):
        run = wb.attach(row["run"], root)
        if row["outcome"] is None and find_marked(run.document.get("marker") or "none"):
            run.stop(now=True)


def told(page: Page) -> list[str]:
    """Everything in the console, a file that is not there included, and answers beyond 399."""
    found = [one["message"] for one in page.driver.get_log("browser") if one["level"] == "SEVERE"]
    for entry in page.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.responseReceived":
            answer = message["params"]["response"]
            if answer["status"] >= 400:
                found.append(f"{answer['status']} {answer['url']}")
    return found


def test_a_live_run_is_seen_and_stopped_without_jupyter(
    page: Page, server: UiServer, store: Path, tmp_path: Path
) -> None:
    script = Path(shutil.copy(SCRIPT, tmp_path / "train.py"))
    run = wb.launch(script, processes=2, cpu=True, store=store, warm=True, name="seen")
    page.driver.get(server.url)
    page.until("it is listed", lambda: "seen" in page.text(".wb-runs tbody"), PATIENCE)
    assert page.one(".wb-runs .wb-stop").get_attribute("disabled")  # no token: reading alone
    page.one(".wb-runs button[aria-label='Open seen']").click()
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    page.until("it grows", lambda: page.last_step() >= 30, PATIENCE)
    page.until("the log", lambda: "<b>not bold</b> <img" in page.text(".wb-log[aria-label=Log]"))
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    stop = page.one(".wb-header .wb-stop")
    assert stop.get_attribute("disabled")
    assert "token" in (stop.get_attribute("title") or "")
    act = f"return fetch('/api/runs/{run.id}/act', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: '{{\"type\": \"stop\"}}'}}).then((one) => one.status)"
    assert told(page) == []
    assert page.js(act) == 403
    assert run.state == "running"
    told(page)  # the refusal just asked for

    page.driver.get(f"{server.url}?token={server.token}#/run/{run.id}")
    page.until("a curve again", lambda: page.points() >= 5, PATIENCE)
    assert server.token not in page.driver.current_url
    assert server.token not in page.js("return document.cookie")
    stop = page.one(".wb-header .wb-stop")
    stop.click()
    stop.click()
    page.until("it says so", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    assert run.outcome == "stopped"
    report = page.one(".wb-site-report", PATIENCE)
    page.driver.get(report.get_attribute("href") or "")
    page.until("the report", lambda: "stopped" in page.text("h1"))
    assert told(page) == []


def test_runs_of_one_name_are_told_apart_and_opened_in_a_narrow_window(
    page: Page, server: UiServer, store: Path
) -> None:
    name = "fit-of-a-long-name-with-many-words"
    for number, run in enumerate((name, f"{name}-2")):
        started = time.time() - 100 * number
        SampleRun(store, run, name=name, started=started).write(20, phase="ended", outcome="failed")
    page.driver.set_window_size(800, 900)
    page.driver.get(server.url)
    page.until("two rows", lambda: f"{name}-2" in page.text(".wb-runs"), PATIENCE)
    names = "return [...document.querySelectorAll('.wb-runs td:nth-child(2)')].map((one) => one.textContent)"
    assert page.js(names)[-2:] == [name, f"{name}-2"]
    seen = """
    const button = document.querySelector("[aria-label$='-words-2'].wb-button"), box = button.getBoundingClientRect();
    return button.contains(document.elementFromPoint(box.right - 2, box.top + box.height / 2));
    """
    assert page.js(seen), "the button lies within the window"


@pytest.mark.full
def test_the_page_follows_by_changes_and_says_when_its_server_is_gone(
    page: Page, server: UiServer, store: Path
) -> None:
    run = SampleRun(store, "grows", gpus=8, processes=8)
    run.write(100)
    page.driver.get(f"{server.url}#/run/grows")
    page.until("a curve", lambda: page.points() >= 90, PATIENCE)
    page.driver.get_log("performance")
    for steps in (101, 102, 103):
        run.write(steps)
        page.until("it follows", lambda steps=steps: page.last_step() == steps, PATIENCE)
    asked = "return performance.getEntriesByType('resource').filter((one) => one.name.includes('view.json')).map((one) => one.encodedBodySize)"
    sizes = page.js(asked)
    assert sizes[-1] < sizes[0] / 10  # what changed alone
    assert page.errors() == []
    server.close()
    page.until(
        "it says so",
        lambda: "workbench ui does not respond" in page.text(".wb-header .wb-banner"),
        PATIENCE,
    )


@pytest.mark.full
def test_looks(page: Page, server: UiServer, store: Path) -> None:
    """Screenshots to be looked at; asserted is that nothing overflows."""
    FOLDER.mkdir(exist_ok=True)
    for number, (outcome, steps) in enumerate((("succeeded", 400), ("failed", 120), (None, 300))):
        run = SampleRun(store, f"run-{number}", gpus=8, processes=8, usd_per_hour=24.0)
        phase = "running" if outcome is None else "ended"
        run.write(steps, phase=phase, outcome=outcome)
    for place in ("runs", "run"):
        page.driver.get(server.url + ("#/run/run-2" if place == "run" else ""))
        ready = (
            (lambda: page.points() >= 100)
            if place == "run"
            else (lambda: "run-2" in page.text(".wb-runs"))
        )
        page.until(place, ready, PATIENCE)
        for theme in ("light", "dark"):
            page.js("localStorage.setItem('workbench-theme', arguments[0])", theme)
            page.driver.refresh()
            page.until(place, ready, PATIENCE)
            for width, height in ((1440, 900), (800, 1600)):
                page.driver.set_window_size(width, height)
                time.sleep(1.0)
                page.driver.save_screenshot(str(FOLDER / f"ui-{place}-{theme}-{width}.png"))
                assert not (wider := page.js(OVERFLOW)), wider
    assert told(page) == []
