"""``QueuePanel``: the devices with who holds them, and the runs that wait for them."""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.queueing import Queue
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_unknown

_OPTIONS = ("store", "refresh_seconds")


class QueuePanel(Face):
    """The queue of a store: who holds which device, who waits; move, drop, pause, start.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        refresh_seconds: Least time between two readings of the store.

    Raises:
        TypeError: an unknown option.
    """

    _closed: threading.Event | None = None
    shown = traitlets.Dict().tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        refresh_seconds: float = 2.0,
        **unknown: object,
    ) -> None:
        refuse_unknown("QueuePanel", unknown, _OPTIONS)
        self.queue = Queue(store)
        self._acting = threading.Lock()
        config = store_config(Path(wb.Store(store).root), face="queue.js")
        super().__init__(config, shown=self.queue.document())
        self._closed = threading.Event()
        threading.Thread(
            target=_keep_reading,
            args=(weakref.ref(self), self._closed, refresh_seconds),
            name="workbench-queue",
            daemon=True,
        ).start()

    def refresh(self) -> None:
        """Read the queue now."""
        self.shown = self.queue.document()

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """A button was pressed. Runs in the kernel's main thread, so it only hands over."""
        if kind in {"move", "drop", "pause", "start"}:
            args = (kind, message.get("run"), message.get("position"))
            threading.Thread(target=self.act, args=args, daemon=True).start()

    def act(self, kind: str, run: object = None, position: object = None) -> None:
        """Do what a button says; an error appears in the panel."""
        with self._acting:
            try:
                if kind == "move" and isinstance(run, str) and isinstance(position, int):
                    self.queue.move(run, position)
                elif kind == "drop" and isinstance(run, str):
                    self.queue.drop(run)
                elif kind == "pause":
                    self.queue.pause()
                elif kind == "start":
                    self.queue.start()
            except Exception as error:  # noqa: BLE001 - whatever it is, the panel has to say it
                self.problem = sentence(error)
            else:
                self.problem = ""
            self.refresh()

    def close(self) -> None:
        """End the widget. The queue goes on."""
        if self._closed is not None:
            self._closed.set()
        super().close()

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        held = [
            f"  {one.title}: {', '.join(holder.text for holder in one.holders) or 'free'}"
            for one in self.queue.devices()
        ]
        return "\n".join([repr(self.queue), *held])


def _keep_reading(
    widget: weakref.ref[QueuePanel], closed: threading.Event, least_seconds: float
) -> None:
    """Refresh until the widget is closed or forgotten; spends at most 5 % of its time."""
    pause = least_seconds
    while not closed.wait(pause):
        face = widget()
        if face is None:
            return
        begun = time.monotonic()
        try:
            face.refresh()
        except wb.WorkbenchError as error:  # the store has gone: say so, look again
            face.problem = str(error)
        pause = max(least_seconds, 20 * (time.monotonic() - begun))
        del face
