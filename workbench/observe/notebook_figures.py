"""Plotly figures in what ``jupyter nbconvert --to html`` and JupyterLab's HTML export write.

A figure in a notebook is plotly's own media type, which no HTML page can draw, so nbconvert drops
it. `keep_figures` is a preprocessor: it gives each figure the HTML that draws it, and the page one
plotly.js, the installed one. Notebooks stay as small as they are. The configuration of nbconvert
and of the server names it (``environments/jupyter_*_config.json``, installed into
``etc/jupyter``). The workbench's widgets are kept with them, as text (`notebook_widgets`).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.observe.notebook_widgets import keep_widgets

FIGURE = "application/vnd.plotly.v1+json"
_HTML = "text/html"
_SPECIAL = "<>&\u2028\u2029"  # to HTML, and ends of lines to JavaScript


def keep_figures(notebook: Any, resources: Any) -> tuple[Any, Any]:
    """Give figures and widgets of an executed notebook their HTML; nbconvert hands it a copy.

    Args:
        notebook: An ``nbformat.NotebookNode``; its outputs are changed.
        resources: Handed back as they are.
    """
    figures = list(_without_html(notebook))
    library = _plotly_js() if figures else None
    for number, data in enumerate(figures if library is not None else ()):
        data[_HTML] = _drawn(data[FIGURE], f"plotly-figure-{number}")
        if number == 0:  # before the first figure, once in the page
            data[_HTML] = f"<script>{library}</script>\n{data[_HTML]}"
    keep_widgets(notebook)
    return notebook, resources


def _without_html(notebook: Any) -> Iterator[Any]:
    """The media bundles of figures that a page could not show."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if FIGURE in data and _HTML not in data:
                yield data


def _plotly_js() -> str | None:
    """The library as the text of a script element; None where plotly is not installed."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace("</script", "<\\/script")
            return f"window.PlotlyConfig = {{MathJaxConfig: 'local'}};\n{text}"
    return None


def _drawn(figure: Any, name: str) -> str:
    """A place in the page, and the call that draws the figure there."""
    content = {key: figure[key] for key in ("data", "layout", "frames") if key in figure}
    content["config"] = {"responsive": True, **figure.get("config", {})}
    text = json.dumps(content, ensure_ascii=False)
    for character in _SPECIAL:  # inside strings alone, so it stays the same JSON
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<div id="{name}"></div>\n<script>Plotly.newPlot("{name}", {text});</script>'
