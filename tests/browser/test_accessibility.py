"""axe-core on every face, in light and wide, in dark and narrow: nothing above "minor".

``WORKBENCH_RENEW_PICTURES=1`` takes each theme in each width, and leaves all screenshots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.browser.axe import findings
from tests.browser.lab import Lab, Page
from tests.browser.looks import FOLDER
from tests.browser.test_compare import make_runs as make_compared_runs
from tests.browser.test_export import TWO
from tests.browser.test_faces import SAMPLE
from tests.browser.test_scaling_study import CELL as SCALING
from tests.browser.ui_server import UiServer
from tests.compare.test_profile import span
from tests.compare.test_profile import write as write_trace
from tests.sweeping.plans import sweep_of_results
from tests.trained_model.made import exported_run
from tests.widgets.sample_runs import SampleRun
from tests.widgets.sample_troubles import CHECKPOINTS, TROUBLES
from tests.widgets.test_calibration import keep as keep_calibration
from workbench.queueing import Queue

NARROW, WIDE = (800, 1700), (1440, 1300)
LOOKS = (
    {"light": (NARROW, WIDE), "dark": (NARROW, WIDE)}
    if "WORKBENCH_RENEW_PICTURES" in os.environ
    else {"light": (WIDE,), "dark": (NARROW,)}
)
OUTPUT = ".jp-OutputArea-output"
PLOT = "return !!document.querySelector('.wb-root .js-plotly-plot')"


def make_runs(store: Path) -> None:
    live = SampleRun(store, "live", name="llama-8b", gpus=8, processes=8, usd_per_hour=23.92)
    live.write(300, written_at=time.time() + 600)
    failed = SampleRun(store, "failed", name="lr 6e-3", started=time.time() - 500)
    sentence = "Rank 1 failed: ValueError: loss is NaN (train.py, line 31)."
    ended = {"phase": "ended", "outcome": "failed", "message": sentence}
    failed.write(90, nonfinite_step=78, checkpoints=CHECKPOINTS, **ended)
    troubled = SampleRun(store, "troubled", started=time.time() - 60)
    troubled.write(121, written_at=time.time() + 600, **TROUBLES)


def fill_queue(store: Path) -> None:
    queue = Queue(store)
    queue.set_slots(4)
    queue.pause()
    for name in ("warm-up 1e-4", "long"):
        wb.launch("gpt", cpu=True, processes=2, store=store, name=name, queue=True)


def make_profile(store: Path) -> None:
    SampleRun(store, "made").write(90, phase="ended", outcome="succeeded")
    for rank, busy in enumerate((75, 50)):
        write_trace(store, rank, [span("cpu_op", "aten::mm", 0, busy)], [100])


FACES = {
    # face -> (its runs, the cell, a selector of what must be there)
    "launcher": (make_runs, "from workbench_widgets import Launcher\nLauncher(store={store!r})", ".wb-command"),
    "live": (make_runs, "RunDashboard(sample('live'))", PLOT),
    "failed": (make_runs, "RunDashboard(sample('failed'))", PLOT),
    "troubled": (make_runs, "RunDashboard(sample('troubled'))", PLOT),
    "memory": (make_runs, "from workbench_widgets import MemoryCalculator\nMemoryCalculator(gpus=8, strategy='fsdp')", ".wbm-headline"),
    "cost": (make_runs, "from workbench_widgets import CostCalculator\nCostCalculator(model='llama-3-8b', gpus=8, strategy='fsdp')", ".wbc-offers"),
    "planner": (make_runs, "from workbench_widgets import Planner\nPlanner(model='llama-3.2-1b', tokens='5B')", ".wbp-table tbody tr"),
    "compare": (make_compared_runs, "from workbench_widgets import Compare\nCompare(store={store!r}, runs=['baseline', 'warm'])", PLOT),
    "runs": (make_runs, "Runs(store={store!r})", ".wb-runs tbody tr"),
    "queue": (fill_queue, "from workbench_widgets import DevicePicker, QueuePanel\nfrom IPython.display import display\ndisplay(QueuePanel(store={store!r}), DevicePicker(store={store!r}))", ".wb-queue tbody tr"),
    "sweep": (sweep_of_results, "from workbench_widgets import Sweep\nSweep(store={store!r}, cpu=True)", ".wbw-figures .js-plotly-plot"),
    "sweep-form": (sweep_of_results, "from workbench_widgets import Sweep\nSweep(store={store!r}, cpu=True)", "return document.querySelector('.wbw-new').open = true"),
    "fault-lab": (make_runs, "from workbench_widgets import FaultLab\nFaultLab(store={store!r}, run=sample('troubled'))", PLOT),
    "calibration": (keep_calibration, "from workbench_widgets import Calibration\nCalibration(store={store!r}, cpu=True)", ".wb-calibrated tbody tr"),
    "scaling-study": (make_runs, SCALING, "return !!document.querySelector('.wbs-area .js-plotly-plot') || void document.querySelector('.wbs-buttons .wb-button').click()"),
    "export": (make_runs, f"from workbench_widgets import Export\nExport({TWO}, provider='runpod', spot=True)", ".wbx-engines tr"),
    "profile": (make_profile, "import workbench as wb\nfrom workbench_widgets import Profile\nProfile(wb.attach('made', {store!r}))", ".wb-profile .wbf-rank"),
    "talk": (exported_run, "import workbench as wb\nfrom workbench_widgets import Talk\nTalk(wb.attach('a', {store!r} + '/runs'))", ".wb-root textarea"),
    "workbench": (make_runs, "Workbench(store={store!r}, open='live')", PLOT),
    "learn": (make_runs, "face = Workbench(store={store!r}, open=None)\nface.open_tab('Learn')\nface", ".wb-tabs"),
}  # fmt: skip


def objections(
    page: Page, name: str, within: str, paint: Callable[[str], None], ready: Callable[[], object]
) -> list[str]:
    """axe-core's findings in both themes; screenshots to be looked at."""
    FOLDER.mkdir(exist_ok=True)
    told = []
    for shade, sizes in LOOKS.items():
        paint(shade)
        page.until(f"{name} is drawn", ready, 120)
        for width, height in sizes:
            page.driver.set_window_size(width, height)
            time.sleep(1.0)  # plotly.js redraws after the resize
            page.driver.save_screenshot(str(FOLDER / f"axe-{name}-{shade}-{width}.png"))
            told += [f"{shade} {width}: {one}" for one in findings(page, within)]
    return told


@pytest.mark.full
@pytest.mark.parametrize("face", FACES)
def test_a_face_in_jupyterlab(lab: Lab, page: Page, store: Path, face: str) -> None:
    make, cell, there = FACES[face]
    make(store)
    code = (SAMPLE + cell.replace("{store!r}", repr(str(store)))).replace(
        "{store!r}", repr(str(store))
    )
    page.open(lab.notebook(f"axe-{face}.ipynb", code))
    page.run_cell(0)
    page.focus_mode()

    def ready() -> object:
        return page.js(there) if there.startswith("return") else page.one(there, 1)

    told = objections(
        page, face, OUTPUT, lambda shade: page.theme(f"JupyterLab {shade.title()}"), ready
    )
    assert not told, "\n".join(told)
    assert not page.errors()


def test_the_table_of_runs_at_once(lab: Lab, page: Page, store: Path) -> None:
    """The quick part: one face, one theme, one width."""
    make_runs(store)
    page.open(
        lab.notebook(
            "axe-quick.ipynb", SAMPLE.format(store=str(store)) + f"Runs(store={str(store)!r})"
        )
    )
    page.run_cell(0)
    page.one(".wb-runs tbody tr")
    told = findings(page, OUTPUT)
    assert not told, "\n".join(told)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UiServer]:
    make_runs(tmp_path / "runs")
    command = UiServer(tmp_path / "runs")
    yield command
    command.close()


@pytest.mark.full
@pytest.mark.parametrize("place", ["", "#/run/failed"])
def test_the_page_of_workbench_ui(page: Page, server: UiServer, place: str) -> None:
    page.driver.get(server.url + place)
    ready = (lambda: page.points() >= 50) if place else (lambda: "lr 6e-3" in page.text(".wb-runs"))

    def paint(shade: str) -> None:
        page.js("localStorage.setItem('workbench-theme', arguments[0])", shade)
        page.driver.refresh()

    told = objections(page, "ui-run" if place else "ui", "html", paint, ready)
    assert not told, "\n".join(told)
