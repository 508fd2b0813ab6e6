"""``QueuePanel``: the devices with who holds them, and the runs that wait for them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.queueing import Queue
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra
from workbench_widgets.rereading import StoreFace, check_pause


class QueuePanel(StoreFace):
    """The queue of a store: who holds which device, who waits; move, drop, pause, start.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        refresh_seconds: Least time between two readings of the store.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of its range.
    """

    _unread = False
    shown = traitlets.Dict().tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        refresh_seconds: float = 2.0,
        **unknown: object,
    ) -> None:
        refuse_extra(QueuePanel, unknown)
        check_pause(refresh_seconds)
        self.queue = Queue(store)
        self._acting = threading.Lock()
        config = store_config(Path(wb.Store(store).root), face="queue.js")
        super().__init__(config, shown=self.queue.document())
        self.start_rereading("workbench-queue", refresh_seconds)

    def refresh(self) -> None:
        """Read the queue now."""
        self.shown = self.queue.document()

    def reread(self) -> None:
        """Read the queue; where its store has gone, the panel says so."""
        try:
            self.refresh()
        except (wb.WorkbenchError, OSError) as error:
            self._unread, self.problem = True, sentence(error)
        else:
            if self._unread:  # what a button said stays
                self._unread, self.problem = False, ""

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
                self._unread, self.problem = False, sentence(error)
            else:
                self.problem = ""
            self.reread()

    def __repr__(self) -> str:
        device_lines = [
            f"  {device.title}: {', '.join(holder.text for holder in device.holders) or 'free'}"
            for device in self.queue.devices()
        ]
        return "\n".join([repr(self.queue), *device_lines])
