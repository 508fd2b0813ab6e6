"""What the page of a run asks of the store's files, with a Python process's help."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from workbench.errors import WorkbenchError
from workbench.observe.current_view import current_view
from workbench.observe.curve_window import curve_window
from workbench.observe.text_samples import PICTURE
from workbench.observe.view_json import finite
from workbench.store.files import read_file
from workbench.store.layout import RunPaths
from workbench.store.runs import Store
from workbench.store.status import read_status

_RUNS = 300
_PICTURE_BYTES = 8 << 20


def _window(paths: RunPaths, message: Mapping[str, Any]) -> Any:
    """The curves between two steps, at the resolution of the metric files."""
    return finite(curve_window(paths, int(message["first"]), int(message["last"])))


def _runs(paths: RunPaths, _message: Mapping[str, Any]) -> list[str]:
    """Ids of the store's runs, newest first."""
    return Store(paths.directory.parent).ids()[:_RUNS]


def _view(paths: RunPaths, message: Mapping[str, Any]) -> Any:
    """Another run's view."""
    return finite(current_view(Store(paths.directory.parent).find(str(message["run"]))))


def _picture(paths: RunPaths, message: Mapping[str, Any]) -> str:
    """A picture of the samples, in base 64."""
    name = str(message["name"])
    if not re.fullmatch(PICTURE, name):
        raise ValueError(name)
    return base64.b64encode(read_file(paths.directory / name, _PICTURE_BYTES)).decode()


def answer(kind: str, paths: RunPaths, message: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one of `QUESTIONS`; its value is None where the files do not tell."""
    try:
        value = QUESTIONS[kind](paths, message)
    except (OSError, ValueError, TypeError, LookupError, OverflowError, WorkbenchError):
        value = None
    return {"type": "answer", "id": message.get("id"), "value": value}


def status_message(paths: RunPaths) -> dict[str, Any]:
    """What the command line would say of the run's state now."""
    return {"type": "status", **asdict(read_status(paths))}


QUESTIONS: dict[str, Callable[[RunPaths, Mapping[str, Any]], Any]] = {
    "window": _window,
    "runs": _runs,
    "view": _view,
    "picture": _picture,
}
"""Question -> what answers it."""
