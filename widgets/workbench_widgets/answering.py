"""Work that answers a press and may make faces: Jupyter always allows it, marimo in its own way."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

_WITHOUT_CODE: ContextVar[bool] = ContextVar("without_code", default=False)


DOUBLE_CLICK_SECONDS = 0.6
"""What the first of two clicks began may be over, or stop at the second: that one is no other."""


class Presses:
    """The presses of one button."""

    def __init__(self) -> None:
        self._last = -math.inf

    def is_another(self) -> bool:
        """Note a press; False: the second of a double click, or of a key that is held down."""
        before, self._last = self._last, time.monotonic()
        return self._last - before > DOUBLE_CLICK_SECONDS


def _marimo() -> Any:
    """The module, where marimo is the host, else None."""
    marimo: Any = sys.modules.get("marimo")
    return marimo if marimo is not None and marimo.running_in_notebook() else None


@contextlib.contextmanager
def inner_faces() -> Iterator[None]:
    """Faces made here are drawn by the one around them.

    marimo takes a widget's own JavaScript only while a cell runs, and no cell does after a press:
    there they are made without, and `ControlTree` mounts them.
    """
    token = _WITHOUT_CODE.set(_marimo() is not None)
    try:
        yield
    finally:
        _WITHOUT_CODE.reset(token)


def without_code() -> bool:
    """Whether a face that is made now has to go without its own JavaScript."""
    return _WITHOUT_CODE.get()


def in_background(work: Callable[[], Any], name: str) -> None:
    """Run it in a daemon thread; marimo hears only threads of its own."""

    def run() -> None:
        with inner_faces():
            work()

    marimo = _marimo()
    kind = threading.Thread if marimo is None else marimo.Thread
    kind(target=run, name=name, daemon=True).start()
