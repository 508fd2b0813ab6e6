"""``Runs``: the table of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.pages import actions
from workbench.pages.run_rows import read_table, series_message
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra
from workbench_widgets.rereading import StoreFace, check_pause

_OPENED = "run_dashboard.js"


class Runs(StoreFace):
    """All runs of a store: sort, open, stop, tick some to compare their losses.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        refresh_seconds: Least time between two readings of the store.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of its range.
    """

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
        refuse_extra(Runs, unknown)
        check_pause(refresh_seconds)
        self.store = Path(wb.Store(store).root)
        opens = None if _openable else _OPENED  # Open shows it below the table
        config = store_config(self.store, face="runs.js", openable=_openable, opens=opens)
        super().__init__(config, **_read(self.store))
        self.start_rereading("workbench-runs", refresh_seconds)

    def refresh(self) -> None:
        """Read the store now."""
        table = _read(self.store)
        with self.hold_sync():
            for name, value in table.items():
                setattr(self, name, value)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        run = str(message.get("run"))
        if run not in {row["run"] for row in self.rows}:
            return  # only what the table shows can be acted on
        if kind == "open":
            for callback in self._on_open:
                callback(run)
        elif kind == "series":
            self.send(series_message(self.store / run))
        elif kind == "stop":
            stop_in_background(run, self.store, self.send, now=bool(message.get("now")))

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

    `say` gets the reason if that is refused.
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
    """What the face shows of the store; the old rows stay if it cannot be read."""
    try:
        return {**read_table(store), "problem": ""}
    except wb.WorkbenchError as error:
        return {"problem": sentence(error)}
