"""The main job in a real browser: launch, watch, reload, restart, stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import workbench as wb
from tests.browser.conftest import marked
from tests.browser.lab import Lab, Page

ATTACH = "import workbench as wb\nfrom workbench_widgets import RunDashboard\nRunDashboard(wb.attach('last', {store!r}))"
PICTURE = Path(__file__).with_name("dashboard.png")
RENEW = (
    "WORKBENCH_RENEW_PICTURES" in os.environ
)  # the test leaves the repository as it is otherwise
PATIENCE = 120  # a loaded machine is slow, not wrong; what is promised in seconds is asserted apart
IN_VIEW = (
    "const { top } = document.querySelector('.wb-header').getBoundingClientRect();"
    "return top >= 0 && top < innerHeight / 3"
)
HOT = (
    "return [...document.querySelectorAll('.wb-finding:not([data-severity=cleared])')]"
    ".some((one) => one.textContent.includes('too hot'))"
)
BUSY = "import time; time.sleep({seconds})"


def start(lab: Lab, store: Path, **more) -> wb.Run:
    return wb.launch(lab.root / "train.py", processes=2, cpu=True, store=store, warm=True, **more)


def kernel(lab: Lab, notebook: str) -> dict:
    """That of one notebook: what a page before it asked for late may live beside it."""
    (found,) = [one for one in lab.api("GET", "sessions") if one["path"] == notebook]
    return found["kernel"]


def test_launch_with_the_mouse(lab: Lab, page: Page, store: Path) -> None:
    page.open(
        lab.notebook(
            "launch.ipynb",
            f"from workbench_widgets import Workbench; Workbench(store={str(store)!r})",
        )
    )
    page.driver.set_window_size(1440, 900)
    page.run_cell(0)
    page.one(".wb-form select option:last-child").click()  # "A script …"
    page.until(
        "asks for a path", lambda: "path of a Python script" in page.text(".wb-form .wbm-headline")
    )
    assert page.one(".wb-form button.jupyter-button").get_attribute("disabled")
    path = page.one(".wb-form input[placeholder='train.py']")
    path.send_keys("tain.py\t")
    page.until("near miss is named", lambda: "train.py" in page.text(".wb-form .wb-banner"))
    path.clear()
    path.send_keys("train.py\t")
    page.until("the exact command", lambda: "train.py" in page.text(".wb-form .wb-command"))
    button = page.one(".wb-form button.jupyter-button")
    page.until("Launch is possible", button.is_enabled)
    button.click()
    page.until(
        "the run's dashboard", lambda: page.text(".wb-badge").strip() in ("Starting", "Running")
    )
    page.until("it is in view", lambda: page.js(IN_VIEW))
    assert not page.js("return document.querySelector('.wb-form').getClientRects().length")
    page.until("curve on screen", lambda: page.points() >= 1, PATIENCE)
    drawn_at = time.time()
    first_step_at = wb.attach("last", store).view()["first_step_at"]
    print(f"first step -> curve on screen: {drawn_at - first_step_at:.1f} s")
    assert drawn_at - first_step_at <= 10
    assert page.errors() == []


@pytest.mark.full
def test_reload_while_the_kernel_is_busy(lab: Lab, page: Page, store: Path) -> None:
    run = start(lab, store)
    page.open(lab.notebook("busy.ipynb", ATTACH.format(store=str(store)), BUSY.format(seconds=280)))
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 30, PATIENCE)
    page.save()
    page.run_cell(1)
    page.until("kernel busy", lambda: kernel(lab, "busy.ipynb")["execution_state"] == "busy")
    before = page.last_step()
    page.driver.refresh()
    reloaded_at = time.monotonic()
    page.until("the full curve is back", lambda: page.last_step() >= before, PATIENCE)
    print(f"reload -> full curve with a busy kernel: {time.monotonic() - reloaded_at:.1f} s")
    assert (
        page.js("return document.querySelector('.wb-area-loss .js-plotly-plot').data[0].x[0]") == 1
    )
    shown = page.last_step()
    page.until("it grows on", lambda: page.last_step() > shown)
    assert kernel(lab, "busy.ipynb")["execution_state"] == "busy"
    assert page.js("return document.querySelectorAll('.wb-header').length") == 1
    lab.api("POST", f"kernels/{kernel(lab, 'busy.ipynb')['id']}/interrupt")
    page.until(
        "the widget takes over",
        lambda: page.js(
            "return document.querySelectorAll('[data-workbench-live] .wb-root').length"
        ),
        PATIENCE,
    )
    page.until(
        "the fallback steps aside",
        lambda: (
            page.js("return document.querySelectorAll('[data-workbench-fallback] .wb-root').length")
            == 0
        ),
    )
    assert run.state == "running"


@pytest.mark.full
def test_kernel_restart_leaves_the_run_alone(lab: Lab, page: Page, store: Path) -> None:
    run = start(lab, store)
    page.open(lab.notebook("restart.ipynb", ATTACH.format(store=str(store))))
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    ranks = {
        key: value["pid"]
        for key, value in json.loads((run.directory / "state.json").read_text())["ranks"].items()
    }
    lab.api("POST", f"kernels/{kernel(lab, 'restart.ipynb')['id']}/restart")
    page.until("kernel idle", lambda: kernel(lab, "restart.ipynb")["execution_state"] == "idle")
    before = page.last_step()
    page.run_cell(0)
    page.until("attach brings everything back", lambda: page.last_step() >= before, PATIENCE)
    assert run.state == "running"
    after = {
        key: value["pid"]
        for key, value in json.loads((run.directory / "state.json").read_text())["ranks"].items()
    }
    assert after == ranks


def test_stop_leaves_no_process_and_says_so(lab: Lab, page: Page, store: Path) -> None:
    run = start(lab, store)
    page.open(lab.notebook("stop.ipynb", ATTACH.format(store=str(store)), BUSY.format(seconds=280)))
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    marker = run.document["marker"]
    assert len(marked(marker)) >= 3  # the launcher and two ranks
    page.run_cell(1)  # it works while the kernel is busy
    button = page.one(".wb-stop")
    button.click()
    assert "again" in button.text.lower()
    button.click()
    page.until("it says so", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    # The cell runs on; the kernel's own state is that of the last message that it answered.
    assert page.js("return document.querySelectorAll('.jp-InputPrompt')[1].textContent") == "[*]:"
    assert marked(marker) == []
    assert run.outcome == "stopped"
    page.until("and what is left", lambda: "process" in page.text(".wb-header .wb-banner"))
    assert not button.is_displayed()


@pytest.mark.full
def test_comm_carries_a_store_outside_the_root(lab: Lab, page: Page, foreign_store: Path) -> None:
    run = start(lab, foreign_store)
    page.open(lab.notebook("comm.ipynb", ATTACH.format(store=str(foreign_store))))
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    page.until("the log", lambda: "step" in page.text(".wb-log[aria-label=Log]"))
    shown = page.last_step()
    page.comm_bytes()
    begun = time.monotonic()
    page.until("it grows on", lambda: page.last_step() >= shown + 30, PATIENCE)
    per_second = page.comm_bytes() / (time.monotonic() - begun)
    print(f"comm transport: {per_second / 1000:.1f} kB/s")
    assert per_second <= 20_000  # the views, the log and their headers
    button = page.one(".wb-stop")
    button.click()
    button.click()
    page.until("stopped through the comm", lambda: page.text(".wb-badge") == "Stopped", PATIENCE)
    assert run.outcome == "stopped"


@pytest.mark.full
def test_foreign_text_is_text(lab: Lab, page: Page, store: Path) -> None:
    name = "<img src=x onerror=\"document.title='pwned'\">"
    run = start(lab, store, name=name)
    book = (
        ATTACH.format(store=str(store)) + "\n",
        f"from workbench_widgets import Runs; Runs(store={str(store)!r})",
    )
    page.open(lab.notebook("foreign.ipynb", book[0], book[1]))
    page.run_cell(0)
    page.run_cell(1)
    page.until("a curve", lambda: page.points() >= 5, PATIENCE)
    page.until(
        "the log line as it is",
        lambda: "<b>not bold</b> <img" in page.text(".wb-log[aria-label=Log]"),
    )
    assert page.text(".wb-header h2") == name
    assert "\x1b" not in page.text(".wb-log[aria-label=Log]")
    page.until("the table's name", lambda: name in page.text(".wb-runs"))
    page.save()
    page.driver.refresh()
    page.until("a curve again", lambda: page.points() >= 5, PATIENCE)
    assert page.js("return document.querySelectorAll('.wb-root img, .wb-root b').length") == 0
    assert "pwned" not in page.driver.title
    assert run.state == "running"


@pytest.mark.full
def test_the_recipe_is_watched_to_its_end(lab: Lab, page: Page, store: Path) -> None:
    run = wb.launch("gpt", ["--steps", "60"], processes=2, cpu=True, store=store, warm=True)
    page.open(lab.notebook("recipe.ipynb", ATTACH.format(store=str(store))))
    page.run_cell(0)
    page.until("a curve", lambda: page.points() >= 20, PATIENCE)
    page.until("the end of the training", lambda: run.outcome, PATIENCE)
    assert run.wait(PATIENCE) == "succeeded"
    assert run.view()["loss_last"] < run.view()["loss_first"] - 0.5
    page.until("its state", lambda: page.text(".wb-badge").strip() == "Succeeded", PATIENCE)


@pytest.mark.full
def test_the_picture_in_the_readme(lab: Lab, page: Page, store: Path, tmp_path: Path) -> None:
    """Eight simulated GPUs, one of them too hot: what `make pod` shows, with its finding open."""
    words = ["--model", "llama-3-8b", "--gpu", "h100-sxm", "--gpus", "8", "--strategy", "fsdp"]
    words += ["--tokens", "1B", "--usd-per-hour", "20", "--checkpoint-minutes", "60"]
    words += ["--speed", "60", "--fault", "throttle@20m:3", "--name", "llama-3-8b"]
    environment = {**os.environ, "WORKBENCH_STORE": str(store)}
    rehearsal = [sys.executable, "-m", "workbench", "rehearse", *words]
    picture = PICTURE if RENEW else tmp_path / PICTURE.name
    begin = f"import os; os.environ['WORKBENCH_STORE'] = {str(store)!r}\nimport workbench as wb"
    show = 'from workbench_widgets import RunDashboard\n\nRunDashboard(wb.attach("last"))'
    page.open(lab.notebook("picture.ipynb", begin, show))
    page.driver.set_window_size(1600, 1580)
    page.focus_mode()
    page.run_cell(0)
    page.until("the kernel", lambda: kernel(lab, "picture.ipynb")["execution_state"] == "idle")
    # Within half a minute from now the card is hot, for half a minute.
    played = subprocess.Popen(rehearsal, env=environment, stdout=subprocess.DEVNULL)
    try:
        page.until("the rehearsal", lambda: any(store.iterdir()), PATIENCE)
        page.run_cell(1)
        page.js("window.jupyterapp.shell.currentWidget.content.widgets[0].hide()")
        page.until("the hot GPU's finding", lambda: page.js(HOT), PATIENCE)
        time.sleep(2.5)
        page.driver.save_screenshot(str(picture))
        assert "Running, rehearsal" in page.text(".wb-badge")
        assert page.js("return document.querySelectorAll('.wb-tile').length") == 8
        assert picture.stat().st_size <= 300_000
        assert page.errors() == []
    finally:
        played.terminate()
        played.wait(PATIENCE)
