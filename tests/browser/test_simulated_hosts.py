"""VS Code's webview and Colab's frames, simulated: their limits in Chromium, no kernel, a comm by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workbench_widgets import Compare, MemoryCalculator, RunDashboard
from workbench_widgets.face import Face

import workbench as wb
from tests.browser.lab import Page
from tests.browser.looks import type_into
from tests.browser.simulated_host import WEBVIEW, SimulatedHost
from tests.browser.test_compare import make_runs
from tests.widgets.sample_runs import SampleRun

HEADLINE = ".wbm-headline"
CURVES = "return document.querySelectorAll('.js-plotly-plot .js-line').length"


@pytest.fixture
def host(page: Page) -> Iterator[Callable[..., SimulatedHost]]:
    hosts = list[SimulatedHost]()

    def make(policy: str = "", face: Face | None = None) -> SimulatedHost:
        shown = face or MemoryCalculator(gpus=8, strategy="fsdp")
        hosts.append(SimulatedHost(shown, policy))
        return hosts[-1]

    yield make
    page.driver.switch_to.default_content()
    page.driver.get("about:blank")
    for one in hosts:
        one.close()


def drawn_and_answered(page: Page, cell: SimulatedHost) -> None:
    cell.until(page, "the headline", lambda: page.text(HEADLINE))
    before = page.text(HEADLINE)
    type_into(page, "model", "llama-3-70b")
    cell.until(page, "another answer", lambda: page.text(HEADLINE) not in ("", before))
    assert page.js("return document.querySelectorAll('style[data-workbench]').length") == 1
    assert page.js("return document.querySelectorAll('[role=alert]:not([hidden])').length") == 0


def test_the_loader_under_the_simulated_policy_of_a_vs_code_webview(
    page: Page, host: Callable[..., SimulatedHost]
) -> None:
    cell = host(WEBVIEW)
    page.driver.get(f"{cell.url}/cell")
    drawn_and_answered(page, cell)
    assert page.js("return window.violations") == []
    page.js("fetch('/cell').catch(() => {})")  # the policy is in force
    page.until("a refusal", lambda: page.js("return window.violations") == ["connect-src"])


def test_plotly_under_the_simulated_policy_of_a_vs_code_webview(
    page: Page, host: Callable[..., SimulatedHost], tmp_path: Path
) -> None:
    make_runs(tmp_path)
    cell = host(WEBVIEW, Compare(store=tmp_path, runs=["baseline", "warm"]))
    page.driver.get(f"{cell.url}/cell")
    cell.until(page, "curves", lambda: page.js(CURVES))
    assert page.js("return window.violations") == []


def test_a_simulated_colab_frame_of_another_origin(
    page: Page, host: Callable[..., SimulatedHost]
) -> None:
    cell = host()
    page.driver.get(cell.url)
    page.driver.switch_to.frame(page.one("iframe"))
    assert page.js("return window.origin") == "null"
    drawn_and_answered(page, cell)


@pytest.mark.parametrize("framed", [False, True], ids=["webview", "frame"])
def test_a_dashboard_is_live_and_stops_its_run_in_either(
    page: Page, host: Callable[..., SimulatedHost], tmp_path: Path, *, framed: bool
) -> None:
    run = SampleRun(tmp_path, "one", gpus=2, log_lines=["<b>a line</b>"])
    run.write(100)
    attached = wb.attach("one", tmp_path)
    cell = host("" if framed else WEBVIEW, RunDashboard(attached))
    page.driver.get(cell.url if framed else f"{cell.url}/cell")
    if framed:
        page.driver.switch_to.frame(page.one("iframe"))
    cell.until(page, "the curve", lambda: page.last_step() == 100)
    log = ".wb-log[aria-label=Log]"
    cell.until(page, "the log", lambda: "<b>a line</b>" in page.text(log))
    run.write(101)
    cell.until(page, "it follows", lambda: page.last_step() == 101)
    stop = page.one(".wb-header .wb-stop")
    stop.click()
    cell.exchange(page)
    stop.click()
    cell.until(page, "the run is asked to stop", (run.directory / "control" / "stop").exists)
    assert page.js("return window.violations") == []
