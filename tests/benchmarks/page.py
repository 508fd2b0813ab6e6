"""What a live dashboard costs its page: traffic over the comm, and CPU time seen and hidden.

Real JupyterLab, real Chromium; the run is a sample of 8 GPUs that goes through the real view.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.browser.lab import Lab, Page
from tests.widgets.sample_fleet import STEPS, SampleFleet

CELL = """\
from pathlib import Path
from types import SimpleNamespace
from workbench_widgets import RunDashboard
RunDashboard(SimpleNamespace(id="fleet", directory=Path({folder!r})), transport="comm")
"""
HIDDEN = "return document.hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCost:
    """What was measured."""

    live_bytes_per_second: float
    """Received over the kernel's websocket while the dashboard is seen."""
    live_cores: float
    """CPU time of all of Chromium per second, the dashboard seen."""
    hidden_cores: float
    """The same while it is hidden."""
    notebook_cores: float
    """The same of a hidden notebook without a dashboard."""


def measure(seconds: float) -> PageCost:
    """Each phase takes so many seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lab = Lab(folder / "root", folder / "home")
        page = Page(folder / "profile")
        fleet = SampleFleet(folder / "elsewhere", "fleet", each=8)
        try:
            page.open(lab.notebook("page.ipynb", CELL.format(folder=str(fleet.directory))))
            with out_of_sight(page):
                notebook = cores(page, seconds)
            with growing(fleet):
                page.run_cell(0)
                page.until("the first curve", lambda: page.points() >= 100, 120)
                time.sleep(5)  # until what a first display asks for has come
                page.comm_bytes()
                begun = time.monotonic()
                live = cores(page, seconds)
                received = page.comm_bytes() / (time.monotonic() - begun)
                with out_of_sight(page):
                    hidden = cores(page, seconds)
            return PageCost(
                live_bytes_per_second=received,
                live_cores=live,
                hidden_cores=hidden,
                notebook_cores=notebook,
            )
        finally:
            page.close()
            lab.close()


@contextmanager
def growing(fleet: SampleFleet) -> Iterator[None]:
    """A step a second."""
    builder, ended = fleet.write(), threading.Event()

    def grow() -> None:
        steps = STEPS
        while not ended.wait(1.0):
            steps += 1
            fleet.grow(builder, steps)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def out_of_sight(page: Page) -> Iterator[None]:
    """The browser's window is minimised: the page is hidden, as behind another tab."""
    focus = "Emulation.setFocusEmulationEnabled"  # a page that seems focused is never hidden
    page.driver.execute_cdp_cmd(focus, {"enabled": False})
    page.driver.minimize_window()
    page.until("it is hidden", lambda: page.js(HIDDEN))
    time.sleep(3)
    try:
        yield
    finally:
        window = page.driver.execute_cdp_cmd("Browser.getWindowForTarget", {})["windowId"]
        bounds = {"windowId": window, "bounds": {"windowState": "normal"}}
        page.driver.execute_cdp_cmd("Browser.setWindowBounds", bounds)
        page.driver.execute_cdp_cmd(focus, {"enabled": True})
        page.until("it is seen again", lambda: not page.js(HIDDEN))


def cores(page: Page, seconds: float) -> float:
    """CPU seconds of all of Chromium's processes, per second."""
    driver = psutil.Process(page.driver.service.process.pid)
    before, begun = _spent(driver), time.monotonic()
    time.sleep(seconds)
    after, took = _spent(driver), time.monotonic() - begun
    return sum(spent - before.get(pid, 0.0) for pid, spent in after.items()) / took


def _spent(driver: psutil.Process) -> dict[int, float]:
    found: dict[int, float] = {}
    for one in driver.children(recursive=True):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[one.pid] = times.user + times.system
    return found
