"""``ScriptNote``: a button that measures something of what the form would start."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ipywidgets as widgets

import workbench as wb
from workbench.errors import sentence
from workbench.launching.prepare.targets import MODULE
from workbench_widgets.answering import Presses


class _StoppedError(Exception):
    """The work was stopped by a click."""


class ScriptNote(widgets.HBox):
    """A button and a line under the form. A second click stops; closing the form does, too.

    Args:
        name: What the button says.
        icon: Beside it.
        offer: The line until it was clicked.
        on_end: Called in the thread of the work when it is done, was stopped or failed.
    """

    def __init__(
        self, name: str, icon: str, offer: str, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._on_end = on_end
        self._name, self._icon, self._offer = name, icon, offer
        self._request: wb.Request | None = None
        self._latest: wb.Request | None = None
        self._thread: threading.Thread | None = None
        self._stop, self._presses = threading.Event(), Presses()
        self.button = widgets.Button(description=name, icon=icon)
        self.line = widgets.Label(offer)
        self.line.add_class("wb-hint")
        super().__init__([self.button, self.line])
        self.add_class("wb-script-note")
        self.button.on_click(self._on_click)
        self.show(None)

    @property
    def running(self) -> bool:
        """Whether the script is being run for it."""
        thread = self._thread  # it takes itself away when it has ended
        return thread is not None and thread.is_alive()

    def show(self, request: wb.Request | None) -> None:
        """Offer it for what `request` would start, where that makes sense."""
        self._latest = request
        if self.running:
            return
        before, self._request = self._request, None
        if request is not None and self.offered(request):
            self._request = request
            if before is None or self.result_key(before) != self.result_key(request):
                self.line.value = self._offer
        self.layout.display = "none" if self._request is None else ""

    def start(self) -> threading.Thread | None:
        """Do it in the background; None where nothing is offered."""
        request = self._request
        if request is None or self.running:
            return None
        self._stop.clear()
        self.button.description, self.button.icon = "Stop", "stop"
        thread = self._thread = threading.Thread(
            target=self._run, args=(request,), name=f"workbench-{self._name.lower()}", daemon=True
        )
        thread.start()
        return thread  # `_thread` is gone when it has ended

    def offered(self, request: wb.Request) -> bool:
        """Whether what `request` would start has a use for it."""
        raise NotImplementedError

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Do it, and return the line that is left. Raises WorkbenchError: it could not be done."""
        raise NotImplementedError

    def result_key(self, request: wb.Request) -> tuple[object, ...]:
        """What a result holds for: with another one the offer stands again."""
        return target(request)

    def _on_click(self, _button: object) -> None:
        if not self._presses.is_another():
            return
        if self.running:
            self._stop.set()
        else:
            self.start()

    def _run(self, request: wb.Request) -> None:
        def on_progress(text: str) -> None:
            if self._stop.is_set():
                raise _StoppedError
            self.line.value = text

        try:
            self.line.value = self.work(request, on_progress)
        except _StoppedError:
            self.line.value = "Stopped; nothing was kept."
        except (wb.WorkbenchError, OSError) as error:
            self.line.value = sentence(error)
        finally:
            self.button.description, self.button.icon = self._name, self._icon
            self._thread = None
        self._on_end()
        self.show(self._latest)  # the form may have changed meanwhile

    def close(self) -> None:
        """Stop what is under way, and leave."""
        self._stop.set()
        super().close()


def target(request: wb.Request) -> tuple[str, tuple[str, ...]]:
    """Script and arguments, as ``wb.measure`` and ``verify`` take them."""
    name = f"{MODULE}{request.module}" if request.module else str(request.script)
    return name, request.arguments
