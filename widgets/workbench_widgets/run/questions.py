"""What the page of a run asks of the store's files, with the kernel's help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.observe.current_view import current_view
from workbench.observe.curve_window import curve_window
from workbench.observe.view_json import finite
from workbench.store.layout import RunPaths
from workbench.store.runs import Store

_RUNS = 300


def _window(paths: RunPaths, message: Mapping[str, Any]) -> Any:
    """The curves between two steps, at the resolution of the metric files."""
    return finite(curve_window(paths, int(message["first"]), int(message["last"])))


def _runs(paths: RunPaths, _message: Mapping[str, Any]) -> list[str]:
    """Ids of the store's runs, newest first."""
    return Store(paths.directory.parent).ids()[:_RUNS]


def _view(paths: RunPaths, message: Mapping[str, Any]) -> Any:
    """Another run's view."""
    return finite(current_view(Store(paths.directory.parent).find(str(message["run"]))))


QUESTIONS: dict[str, Callable[[RunPaths, Mapping[str, Any]], Any]] = {
    "window": _window,
    "runs": _runs,
    "view": _view,
}
"""Question -> what answers it."""
