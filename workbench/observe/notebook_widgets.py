"""Widgets in an exported notebook: what they last said, and the report of a run that has ended.

A page has no kernel, so a widget in it cannot be drawn. Its output has a text beside the view, and
the page shows that. A run's dashboard has the run's ``report.html`` below it, in a frame without
scripts.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.store.files import read_tail
from workbench.store.layout import RunPaths

VIEW = "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"
_MAX_REPORT_BYTES = 4 * 2**20
_TEXT = "font-family:monospace;white-space:pre-wrap"
_FRAME = "width:100%;height:640px;border:1px solid #d0d7de;border-radius:8px"


def keep_widgets(notebook: Any) -> None:
    """Give every widget of the workbench in `notebook` HTML in place of its view."""
    states = _states(notebook)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = data.get("text/plain")
            if VIEW not in data or not text:
                continue
            configs = list(_configs(states, data[VIEW].get("model_id", "")))
            if configs:
                del data[VIEW]
                data["text/html"] = _text(text) + "".join(_reports(configs))


def _states(notebook: Any) -> Mapping[str, Any]:
    """Model id -> what the kernel knew of it when the notebook was saved."""
    saved = notebook["metadata"].get("widgets", {}).get(_STATE, {})
    return {name: model.get("state", {}) for name, model in saved.get("state", {}).items()}


def _configs(states: Mapping[str, Any], model: str) -> Iterator[Mapping[str, Any]]:
    """Of the workbench's faces in this widget: itself, or its children to any depth."""
    waiting, visited = [model], set[str]()
    while waiting:
        name = waiting.pop().removeprefix("IPY_MODEL_")
        if name in visited or name not in states:
            continue
        visited.add(name)
        config = states[name].get("config")
        if isinstance(config, Mapping) and "bundle" in config:
            yield config
        waiting += reversed(states[name].get("children") or ())


def _text(text: str | list[str]) -> str:
    escaped = html.escape("".join(text))
    note = "<p><small>A widget: open the notebook to use it.</small></p>"
    return f'<pre style="{_TEXT}">{escaped}</pre>\n{note}'


def _reports(configs: list[Mapping[str, Any]]) -> Iterator[str]:
    """A frame for each run that has ended; each run once."""
    folders = dict.fromkeys(str(config["directory"]) for config in configs if "directory" in config)
    for folder in folders:
        paths = RunPaths(Path(folder))
        try:
            if not paths.run.is_file() or paths.report.stat().st_size > _MAX_REPORT_BYTES:
                continue
            page = read_tail(paths.report, _MAX_REPORT_BYTES)
        except OSError:
            continue
        yield f'<iframe sandbox style="{_FRAME}" srcdoc="{html.escape(page)}"></iframe>'
