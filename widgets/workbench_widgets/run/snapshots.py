"""Snapshots of a run for a page that cannot read its files: pushed by a daemon thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.pages.snapshots import Snapshots
from workbench_widgets.presence import GONE_SECONDS, Presence

_LEAVES_ENDED_SECONDS = 60.0  # a resumed run's view may say "ended" until its supervisor looks
PUSH_SECONDS = 1.0  # at most one message a second: each costs about 1 kB of header
REST_SECONDS = 8.0  # while no one looks at the page
LONGEST_SECONDS = 5.0  # between two messages to a page that is seen
BYTES_PER_SECOND = 2_400  # of changes: what changes much is drawn slowly, so it comes less often


class SnapshotPusher:
    """Pushes each new snapshot until the run has ended and its last snapshot is delivered.

    The first after `start` is whole, the next ones say what changed since the one before. A page
    that was not heard for long is asked by ``slow`` to say that it is there.
    """

    def __init__(
        self,
        run: Any,
        push: Callable[[dict[str, Any]], None],
        presence: Presence | None = None,
    ) -> None:
        self._presence = presence or Presence()
        self._directory = Path(run.directory)
        self._push = push
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._snapshots = Snapshots(self._directory)
        self._sent: str | None = None  # the version that the page has
        self._subscribed = False
        self._resting = False
        self._awake_until = 0.0

    def resumed(self) -> None:
        """The run continues: who had asked for snapshots gets them again."""
        self._awake_until = time.monotonic() + _LEAVES_ENDED_SECONDS
        if self._subscribed:
            self.start()

    def start(self) -> None:
        """A page asked for snapshots: it gets the present one, and the next ones as they come."""
        with self._lock:
            self._sent, self._subscribed = None, True
            self._wake.set()
            if self._thread is None or not self._thread.is_alive():
                self._stopped = False
                self._thread = threading.Thread(
                    target=self._loop, name="workbench-snapshots", daemon=True
                )
                self._thread.start()

    def set_resting(self, *, resting: bool) -> None:
        """No one looks at the page: push less often. Another page that is seen says so itself."""
        self._resting = resting
        if not resting:
            self._wake.set()

    def heard(self) -> None:
        """A page sent something, whatever it was."""
        if self._presence.heard():
            self._wake.set()

    def stop(self) -> None:
        """End the thread; the run continues."""
        self._stopped = True
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopped:
            self._wake.clear()
            bytes_sent = self._send_news()
            view = self._snapshots.latest
            ended = view is not None and view.get("phase") == "ended"
            if ended and time.monotonic() > self._awake_until:
                with self._lock:
                    if self._sent is not None:
                        self._thread = None
                        return
            self._wake.wait(self._pause_seconds(bytes_sent))

    def _pause_seconds(self, bytes_sent: int) -> float:
        if self._presence.gone:
            return GONE_SECONDS
        least = REST_SECONDS if self._resting else PUSH_SECONDS
        return max(least, min(LONGEST_SECONDS, bytes_sent / BYTES_PER_SECOND))

    def _send_news(self) -> int:
        """Push what the page does not have; returns the size of changes. A whole view is rare."""
        with self._lock:
            snapshot = self._snapshots.since(self._sent)
            if snapshot is None or snapshot["version"] == self._sent:
                return 0
            self._sent = snapshot["version"]
        if self._resting or self._presence.doubtful:
            snapshot["slow"] = True
        self._presence.message_sent()
        self._push(snapshot)
        return len(json.dumps(snapshot)) if "changes" in snapshot else 0
