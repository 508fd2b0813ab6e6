"""Screenshots in both themes and several widths: to be looked at; here only clipping is asserted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER, OVERFLOW
from tests.browser.test_faces import SAMPLE
from tests.widgets.sample_runs import SampleRun
from tests.widgets.sample_troubles import CHECKPOINTS, TROUBLES

FEWER = {1600: 1290, 800: 1700}
HEIGHTS = {1600: 1700, 800: 2400, 500: 3600}
CLIPPED = """
const visible = (one) => one.getClientRects().length > 0;
return [...document.querySelectorAll('.wb-root :is(h2, h3, h4, button, th, dt, dd, .wb-badge, .wb-panel-value, .wb-chips li)')]
  .filter((one) => visible(one) && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')
  .map((one) => one.textContent)
"""


def make_runs(store: Path) -> None:
    SampleRun(store, "gpt-cpu", name="gpt, 2 CPU processes", started=time.time() - 60).write(240)
    eight = SampleRun(
        store,
        "llama-8gpu",
        name="llama-8b fine-tune",
        total=20_000,
        gpus=8,
        processes=8,
        step_seconds=0.9,
        usd_per_hour=23.92,
        started=time.time() - 9_000,
    )
    eight.write(9_000, written_at=time.time() + 120)
    SampleRun(store, "fresh", name="just launched").write(
        0, phase="starting", written_at=time.time() + 120
    )
    failed = SampleRun(store, "failed", name="lr 6e-3", started=time.time() - 500)
    sentence = (
        "Rank 1 failed: ValueError: loss is NaN (train.py, line 31). Lower --lr, then launch again."
    )
    ended = {"phase": "ended", "outcome": "failed", "message": sentence}
    failed.write(90, nonfinite_step=78, checkpoints=CHECKPOINTS, **ended)
    troubled = SampleRun(store, "troubled", name="when it breaks", started=time.time() - 60)
    troubled.write(121, written_at=time.time() + 120, **TROUBLES)


@pytest.mark.parametrize(
    "face",
    [
        pytest.param("workbench", marks=pytest.mark.full),
        *(
            pytest.param(face, marks=pytest.mark.full)
            for face in ("gpt-cpu", "llama-8gpu", "fresh", "failed", "troubled")
        ),
    ],
)
def test_both_themes_and_widths(lab: Lab, page: Page, store: Path, face: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    make_runs(store)
    code = (
        f"Workbench(store={str(store)!r}, open='gpt-cpu')"
        if face == "workbench"
        else f"RunDashboard(sample({face!r}))"
    )
    page.open(lab.notebook(f"looks-{face}.ipynb", SAMPLE.format(store=str(store)), code))
    page.run_cell(0)
    page.run_cell(1)
    page.one(".wb-header")
    if face != "fresh":
        page.until("curve", lambda: page.points() > 10)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in HEIGHTS.items() if face == "troubled" else FEWER.items():
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(1.2)  # plotly.js redraws after the resize
            page.js(
                "document.querySelector('.jp-OutputArea-output').scrollIntoView({block: 'start'})"
            )
            time.sleep(0.3)
            page.driver.save_screenshot(
                str(FOLDER / f"{face}-{theme.split()[1].lower()}-{width}.png")
            )
            assert page.js(CLIPPED) == []
            assert not (wider := page.js(OVERFLOW)), wider
    assert page.errors() == []
