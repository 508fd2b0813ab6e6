"""S8: hostile names, messages and log lines in the report and the dashboard, in a real browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.browser.conftest import MISSING
from tests.fuzz import junk
from tests.security.payloads import MARKUP
from workbench.observe.report import write_report
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths

pytestmark = [
    pytest.mark.full,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
ALIVE = "img[src='x'], svg[onload], iframe[srcdoc], a[href^='javascript']"


def hostile_run(root: Path) -> RunPaths:
    """A run in which every text that others can write is markup."""
    text = " ".join(MARKUP)
    paths = RunPaths(root / "hostile")
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    finding = {**junk.FINDING, "kind": text, "evidence": text, "cause": text, "next": text}
    run = {**junk.RUN, "run": "hostile", "name": text, "script": text, "arguments": MARKUP}
    run |= {
        "strategy_name": text,
        "command": MARKUP,
        "environment": {text: text},
        "warnings": [text],
    }
    parts = {"parts": {text: 5}, "total_bytes": 5, "assumptions": [text]}
    run |= {"predicted": {"memory": parts}, "workbench_version": text, "created_at": time.time()}
    (rank,) = junk.VIEW["ranks"]
    (device,) = junk.VIEW["devices"]
    (saved,) = junk.VIEW["checkpoints"]
    (attempt,) = junk.VIEW["attempts"]
    view = {
        **junk.VIEW,
        "run": "hostile",
        "name": text,
        "message": text,
        "strategy": text,
        "phase": "ended",
        "outcome": "failed",
        "ended_at": time.time(),
        "written_at": time.time(),
        "ranks": [{**rank, "log_tail": MARKUP, "ended": text}],
        "devices": [{**device, "id": text, "name": text}],
        "host": {**junk.VIEW["host"], "name": text},
        "findings": [finding],
        "checkpoints": [{**saved, "path": text, "name": text, "problem": text}],
        "attempts": [{**attempt, "why": text, "checkpoint": text, "message": text}],
    }
    end = {**junk.EXIT, "message": text, "finding": finding, "outcome": "failed"}
    write_json_atomic(paths.run, run)
    write_json_atomic(paths.view, view)
    write_json_atomic(paths.findings, {"findings": [finding]})
    for rank_number in (0, 1):
        paths.rank_log(rank_number).write_text("\n".join(MARKUP))
    write_report(paths, end)
    write_json_atomic(paths.exit, end)
    return paths


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from tests.browser.lab import Page

    browser = Page(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def check_inert(page, text: str) -> None:
    assert page.js("return document.title") != "pwned"
    assert page.js("return document.querySelectorAll(arguments[0]).length", ALIVE) == 0
    assert text in page.js("return document.body.innerText")
    assert "pwned" not in page.js("return document.title")


def test_the_report_is_inert(page, tmp_path: Path) -> None:
    paths = hostile_run(tmp_path)
    page.driver.get(paths.report.as_uri())
    assert page.js("return document.scripts.length") == 0
    assert "<img src=x onerror=" in page.js("return document.title")  # as text
    page.js("document.title = 'looked at'")
    time.sleep(0.5)
    check_inert(page, "</script><script>")
    assert page.js("return document.querySelectorAll('body > *, figure, pre').length") > 3


def test_the_dashboard_and_the_table_are_inert(page, tmp_path: Path) -> None:
    """In JupyterLab, where a line that got out of its place would be code with the user's login."""
    from tests.browser.lab import Lab

    lab = Lab(tmp_path / "root", tmp_path / "home")
    try:
        hostile_run(lab.root / "runs")
        store = str(lab.root / "runs")
        page.open(
            lab.notebook(
                "hostile.ipynb",
                "import workbench as wb\nfrom workbench_widgets import RunDashboard, Runs\n"
                f"RunDashboard(wb.attach('hostile', {store!r}))",
                f"Runs(store={store!r})",
            )
        )
        page.run_cell(0)
        page.until("the dashboard", lambda: "onerror" in page.text(".wb-root"), 60)
        page.run_cell(1)
        page.until(
            "the table", lambda: page.js("return document.querySelectorAll('.wb-root').length") > 1
        )
        time.sleep(2)
        check_inert(page, "<img src=x onerror=")
        assert page.js("return window.jupyterapp.shell.currentWidget !== null")
        page.save()
        saved = json.loads((lab.root / "hostile.ipynb").read_text())
        assert not {
            kind
            for cell in saved["cells"]
            for output in cell["outputs"]
            for kind, text in output.get("data", {}).items()
            if kind == "text/html" and "<img src=x" in "".join(text)
        }
    finally:
        lab.close()


def test_the_payloads_are_live_ones(page, tmp_path: Path) -> None:
    """Unescaped, they do what the tests above look for."""
    path = tmp_path / "live.html"
    path.write_text("<title>calm</title>" + "".join(MARKUP))
    page.driver.get(path.as_uri())
    page.until("the title is taken", lambda: page.js("return document.title") == "pwned", 10)
    assert wb.__version__
