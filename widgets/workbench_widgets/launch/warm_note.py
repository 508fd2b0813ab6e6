"""``WarmNote``: starts the warm server that fits a launch in the background, and says how far."""

from __future__ import annotations

import threading

import ipywidgets as widgets

import workbench as wb
from workbench.launching.start.warm_server import start_ahead

_STARTING = "Warm start: importing torch in the background …"
_READY = "Warm start ready: launches are forked from process {pid}, which has imported torch."
_LATER = "Warm start: torch is imported with the first launch."


class WarmNote(widgets.Label):
    """One line under the form; the calls return at once."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("wb-hint")
        self._thread: threading.Thread | None = None

    def switch(self, *, on: bool, request: wb.Request | None) -> None:
        """Start the server that fits `request` when warm starts are switched `on`."""
        if not on:
            self.value = ""
        elif request is None:  # the form has a problem, and says it
            self.value = _LATER
        else:
            self.value = _STARTING
            self._thread = threading.Thread(
                target=self._start, args=(request,), name="workbench-warm", daemon=True
            )
            self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the start under way is over."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _start(self, request: wb.Request) -> None:
        try:
            text = _READY.format(pid=start_ahead(request)["pid"])
        except (wb.WorkbenchError, OSError) as error:
            text = f"No warm start: {error}"
        if self._thread is threading.current_thread() and self.value:
            self.value = text  # neither switched off nor started again meanwhile
