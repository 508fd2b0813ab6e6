"""How old a metric is when it has been drawn: real JupyterLab, real Chromium, a real run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import workbench as wb
from tests.browser.lab import Lab, Page

SCRIPT = Path(__file__).parent.parent / "browser" / "train_slowly.py"
LAST_STEP = (
    "const plot = document.querySelector('.wb-area-loss .js-plotly-plot');"
    "return Math.max(0, ...plot.data.map((trace) => trace.x.at(-1) ?? 0))"
)
CELL = (
    "import workbench as wb\nfrom workbench_widgets import RunDashboard\n"
    "RunDashboard(wb.attach('last', {store!r}))"
)


def measure(seconds: float) -> list[float]:
    """Seconds from the end of a step to the moment its point was on screen, once per repaint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lab = Lab(folder / "root", folder / "home")
        page = Page(folder / "profile")
        store = lab.root / "runs"
        run = wb.launch(SCRIPT, processes=2, cpu=True, store=store)
        try:
            page.open(lab.notebook("paint.ipynb", CELL.format(store=str(store))))
            page.run_cell(0)
            page.until("the first points", lambda: page.points() >= 2, 120)
            return list(_delays(page, run, seconds))
        finally:
            run.stop(now=True)
            page.close()
            lab.close()


def _delays(page: Page, run: wb.Run, seconds: float) -> Iterator[float]:
    """For every step written while we look: the age it had when a repaint first included it."""
    repaints: list[tuple[float, int]] = []
    first = page.js(LAST_STEP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        step = page.js(LAST_STEP)
        if not repaints or step != repaints[-1][1]:
            repaints.append((time.time(), step))
        time.sleep(0.02)
    for row in run.metrics():
        shown = next((at for at, step in repaints if step >= row["step"]), None)
        if row["step"] > first and shown is not None:
            yield shown - row["time"]
