"""Figures of an executed notebook are in the page that nbconvert makes of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from workbench.observe.notebook_figures import FIGURE, keep_figures

ROOT = Path(__file__).parents[2]
LIBRARY = "* plotly.js v"


def figure(value: float, title: str) -> dict[str, object]:
    return {"data": [{"type": "bar", "y": [value]}], "layout": {"title": {"text": title}}}


def notebook(*bundles: dict[str, object]) -> dict[str, object]:
    outputs = [{"output_type": "display_data", "data": one, "metadata": {}} for one in bundles]
    cell = {"cell_type": "code", "source": "", "outputs": outputs, "metadata": {}}
    cell |= {"execution_count": 1, "id": "figures"}
    return {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_nbconvert_keeps_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real nbconvert, with the configuration that the package installs."""
    app = pytest.importorskip("nbconvert.nbconvertapp")
    pytest.importorskip("plotly")
    first, second = figure(12.345678, "one </script><b>"), figure(98.7654321, "two")
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps(notebook({FIGURE: first}, {FIGURE: second, "text/plain": "Figure"})))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(ROOT / "environments"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    converter = app.NbConvertApp()
    converter.initialize(["--to", "html", "--log-level", "ERROR", str(path)])
    converter.start()
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    assert page.count(LIBRARY) == 1
    assert page.index(LIBRARY) < page.index("12.345678") < page.index("98.7654321")
    assert "one \\u003c/script\\u003e\\u003cb\\u003e" in page
    assert page.count('Plotly.newPlot("plotly-figure-') == 2
    assert "cdn.plot.ly" not in page.replace(
        page[page.index(LIBRARY) : page.index("12.345678")], ""
    )
    assert len(path.read_bytes()) < 2000  # the notebook is as it was


def test_a_figure_with_html_of_its_own_is_left_alone() -> None:
    own = {FIGURE: figure(1.0, "own"), "text/html": "<div>drawn</div>"}
    book, _ = keep_figures(notebook(dict(own)), {})
    assert book["cells"][0]["outputs"][0]["data"] == own


def test_without_plotly_a_notebook_is_converted_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    bundle = {FIGURE: figure(1.0, "x")}
    book, resources = keep_figures(notebook(dict(bundle)), {"a": 1})
    assert book == notebook(bundle)
    assert resources == {"a": 1}


def test_the_package_installs_the_configuration() -> None:
    """Where nbconvert and where the server look for it; both name the same function."""
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("wheel.shared-data]\n")[2]
    shared = dict(re.findall(r'(?m)^"(.+)" = "(.+)"$', text.partition("\n[")[0]))
    configured = {there: here for here, there in shared.items() if there.startswith("etc/")}
    assert set(configured) == {
        "etc/jupyter/jupyter_nbconvert_config.json",
        "etc/jupyter/jupyter_server_config.d/training-workbench.json",
    }
    name = f"{keep_figures.__module__}.{keep_figures.__name__}"
    for source in configured.values():
        known = json.loads((ROOT / source).read_text())
        assert known["HTMLExporter"] == {"preprocessors": [name]}
