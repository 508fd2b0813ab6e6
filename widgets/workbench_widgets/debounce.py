"""Runs an action once the user has stopped moving a control."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Debouncer:
    """At most one call waits; a newer one takes its place. Runs in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._timer: threading.Timer | None = None

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` after so many seconds without another call."""
        self.cancel()
        timer = self._timer = threading.Timer(seconds, action, arguments)
        timer.name, timer.daemon = self._name, True
        timer.start()

    def cancel(self) -> None:
        """Nothing waits now."""
        if self._timer is not None:
            self._timer.cancel()
