"""``Runs``: the table of a store."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.pages import actions
from workbench.pages.pauses import pause_seconds
from workbench.pages.run_rows import read_table, series_message
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_unknown
from workbench_widgets.presence import Presence

_OPTIONS = ("store", "refresh_seconds")
_OPENED = "run_dashboard.js"


class Runs(Face):
    """All runs of a store: sort, open, stop, tick some to compare their losses.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        refresh_seconds: Least time between two readings of the store.

    Raises:
        TypeError: an unknown option.
    """

    _closed: threading.Event | None = None
    rows = traitlets.List().tag(sync=True)
    of = traitlets.Int().tag(sync=True)  # runs in the store
    problem = traitlets.Unicode().tag(sync=True)  # why the rows are older ones
    opened = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        refresh_seconds: float = 2.0,
        _openable: bool = False,
        **unknown: object,
    ) -> None:
        refuse_unknown("Runs", unknown, _OPTIONS)
        self.store = Path(wb.Store(store).root)
        self._on_open: list[Any] = []
        opens = None if _openable else _OPENED  # Open shows it below the table
        config = store_config(self.store, face="runs.js", openable=_openable, opens=opens)
        super().__init__(config, **_read(self.store))
        self._closed = threading.Event()
        threading.Thread(
            target=_keep_reading,
            args=(weakref.ref(self), self.presence, self.store, self._closed, refresh_seconds),
            name="workbench-runs",
            daemon=True,
        ).start()

    def on_open(self, callback: Any) -> None:
        """Call ``callback(run_id)`` when someone presses Open."""
        self._on_open.append(callback)

    def refresh(self) -> None:
        """Read the store now."""
        self.show_table(_read(self.store))

    def show_table(self, read: dict[str, Any]) -> None:
        """Show what was read of the store."""
        with self.hold_sync():
            for name, value in read.items():
                setattr(self, name, value)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        run = message.get("run")
        if run not in {row["run"] for row in self.rows}:
            return  # only what the table shows can be acted on
        if kind == "open":
            for callback in self._on_open:
                callback(run)
        elif kind == "series":
            self.send(series_message(self.store / str(run)))
        elif kind == "stop":
            stop_in_background(str(run), self.store, self.send, now=bool(message.get("now")))

    def close(self) -> None:
        """End the widget. The runs continue."""
        if self._closed is not None:
            self._closed.set()
        super().close()

    def __repr__(self) -> str:
        lines = [f"Runs of {self.store} ({len(self.rows)})"]
        lines += [
            f"  {row['run']}  {row['outcome'] or row['state']}  step {row['steps']}"
            for row in self.rows[:10]
        ]
        return "\n".join(lines)


def stop_in_background(
    run: str, store: Path, say: Callable[[dict[str, Any]], None], *, now: bool
) -> None:
    """Ask a run to stop without holding up the kernel (this process ends an unwatched one).

    `say` is told where that is refused.
    """

    def ask() -> None:
        try:
            refused = actions.stop(wb.attach(run, store), now=now)
        except wb.WorkbenchError:
            return  # deleted meanwhile: its row goes
        if refused is not None:
            say({"type": "resumed", **refused})

    threading.Thread(target=ask, name="workbench-stop", daemon=True).start()


def _read(store: Path) -> dict[str, Any]:
    """What the face shows of the store; the rows of before stay where it cannot be read."""
    try:
        return {**read_table(store), "problem": ""}
    except wb.WorkbenchError as error:
        return {"problem": sentence(error)}


def _keep_reading(
    widget: weakref.ref[Runs],
    presence: Presence,
    store: Path,
    closed: threading.Event,
    least_seconds: float,
) -> None:
    """Refresh the rows until the widget is closed or forgotten."""
    pause = least_seconds
    while not presence.wait(closed, pause):
        begun = time.monotonic()
        read = _read(store)
        pause = pause_seconds(time.monotonic() - begun, least_seconds)
        face = widget()
        if face is None:
            return
        if not closed.is_set():
            face.show_table(read)
        del face
