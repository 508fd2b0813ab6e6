"""Widgets of an executed notebook are in the page that nbconvert makes of it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from workbench.observe.notebook_widgets import VIEW

ROOT = Path(__file__).parents[2]
STATE = "application/vnd.jupyter.widget-state+json"


def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: list[Any], states: Any) -> str:
    """What the real nbconvert writes of a cell with these outputs, with our configuration."""
    app = pytest.importorskip("nbconvert.nbconvertapp")
    models = {
        name: {"model_name": "AnyModel", "model_module": "anywidget", "state": state}
        for name, state in states.items()
    }
    widgets = {STATE: {"state": models, "version_major": 2, "version_minor": 0}}
    cell = {"cell_type": "code", "source": "show()", "metadata": {}, "outputs": outputs}
    cell |= {"execution_count": 1, "id": "widgets"}
    book = {"cells": [cell], "metadata": {"widgets": widgets}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps(book), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(ROOT / "environments"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    converter = app.NbConvertApp()
    converter.initialize(["--to", "html", "--log-level", "ERROR", str(path)])
    converter.start()
    return path.with_suffix(".html").read_text(encoding="utf-8")


def shown(model: str, text: str) -> dict[str, Any]:
    data = {VIEW: {"model_id": model, "version_major": 2, "version_minor": 0}, "text/plain": text}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def views(written: str) -> int:
    """Places in the page that wait for a widget manager."""
    return written.count(f'<script type="{VIEW}">')


def test_a_widget_is_kept_as_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {
        "calculator": {"config": {"bundle": "workbench-1.json"}},
        "tabs": {"children": ["IPY_MODEL_inner"]},
        "inner": {"children": ["IPY_MODEL_calculator", "IPY_MODEL_tabs"]},
        "slider": {"value": 3},
    }
    outputs = [shown("calculator", "fits: 12 GiB <b>"), shown("tabs", "Workbench('runs')")]
    outputs.append(shown("slider", "IntSlider(value=3)"))
    written = page(tmp_path, monkeypatch, outputs, states)
    assert "fits: 12 GiB &lt;b&gt;</pre>" in written
    assert "Workbench('runs')</pre>" in written
    assert views(written) == 1  # the slider is ipywidgets' own


def test_a_dashboard_becomes_the_report_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "gpt-1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "report.html").write_text('<h1 class="x">gpt-1 succeeded</h1><script>bad()</script>')
    elsewhere = tmp_path / "no-run"
    elsewhere.mkdir()
    (elsewhere / "report.html").write_text("not a run's")
    config = {"bundle": "workbench-1.json"}
    states = {
        "ended": {"config": {**config, "directory": str(run)}},
        "running": {"config": {**config, "directory": str(tmp_path / "runs" / "gone")}},
        "foreign": {"config": {**config, "directory": str(elsewhere)}},
    }
    outputs = [shown(name, f"RunDashboard({name})") for name in states]
    written = page(tmp_path, monkeypatch, outputs, states)
    (frame,) = re.findall(r"<iframe[^>]*>", written)
    assert 'sandbox=""' in frame
    assert '<h1 class="x">gpt-1 succeeded</h1>' in html.unescape(frame)
    assert "not a run's" not in written
    assert written.count("A widget: open the notebook to use it.") == 3
    assert views(written) == 0
