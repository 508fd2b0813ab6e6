"""Snapshots of a run for a page that cannot read its files: pushed by a daemon thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.store.files import read_json

_LEAVES_ENDED_SECONDS = 60.0  # a resumed run's view may say "ended" until its supervisor looks
PUSH_SECONDS = 1.0  # at most one message a second: each costs about 1 kB of header
BYTES_PER_SECOND = 12_000  # of views: a large one is pushed less often; logs come beside them


def snapshot_of(directory: Path) -> dict[str, Any] | None:
    """The message a dashboard draws from, None before the first ``view.json``."""
    view = read_json(directory / "view.json")
    if view is None:
        return None
    if view.get("phase") == "ended" and "processes_left" not in view:  # of an earlier version
        view |= read_json(directory / "exit.json") or {}
    written_at = view.get("written_at")
    age = time.time() - written_at if written_at else None
    return {"type": "snapshot", "view": view, "age_seconds": age}


class SnapshotPusher:
    """Pushes each new snapshot until the run has ended and its last snapshot is delivered."""

    def __init__(self, run: Any, push: Callable[[dict[str, Any]], None]) -> None:
        self._directory = Path(run.directory)
        self._push = push
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_seq: Any = None
        self._subscribed = False
        self._awake_until = 0.0

    def resumed(self) -> None:
        """The run goes on: who had asked for snapshots gets them again."""
        self._awake_until = time.monotonic() + _LEAVES_ENDED_SECONDS
        if self._subscribed:
            self.start()

    def start(self) -> None:
        """A page asked for snapshots: it gets the present one, and the next ones as they come."""
        with self._lock:
            self._last_seq, self._subscribed = None, True
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._thread = threading.Thread(
                    target=self._loop, name="workbench-snapshots", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End the thread; the run goes on."""
        self._stopped.set()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            snapshot = snapshot_of(self._directory)
            if snapshot is not None and snapshot["view"].get("seq") != self._last_seq:
                self._last_seq = snapshot["view"].get("seq")
                self._push(snapshot)
            ended = snapshot is not None and snapshot["view"].get("phase") == "ended"
            if snapshot is not None and ended and time.monotonic() > self._awake_until:
                with self._lock:
                    if self._last_seq == snapshot["view"].get("seq"):
                        self._thread = None
                        return
            self._stopped.wait(self._pause())

    def _pause(self) -> float:
        try:
            size = (self._directory / "view.json").stat().st_size
        except OSError:
            size = 0
        return max(PUSH_SECONDS, size / BYTES_PER_SECOND)
