"""`StoreFace`: its thread reads its store again and again, as long as somebody may look."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from workbench.pages.pauses import pause_seconds
from workbench_widgets.face import Face
from workbench_widgets.presence import Presence

_LEAST_SECONDS = 0.2
_A_DAY = 86_400


def check_pause(refresh_seconds: Any, longest: int = _A_DAY) -> None:
    """Refuse a pause that cannot be. Raises ValueError: no number, or out of its range."""
    is_number = isinstance(refresh_seconds, int | float)
    if not (is_number and _LEAST_SECONDS <= refresh_seconds <= longest):
        limits = f"{_LEAST_SECONDS} to {longest:,}"
        raise ValueError(f"refresh_seconds={refresh_seconds!r}: give {limits}")


class StoreFace(Face):
    """Abstract: a subclass reads its store in `refresh`, and calls `start_rereading` once made."""

    _closed: threading.Event | None = None  # ipywidgets closes what could not be made, too
    _on_open: tuple[Callable[[str], object], ...] = ()

    def start_rereading(self, name: str, least_seconds: float, *, at_once: bool = False) -> None:
        """Let a thread reread until the face is closed or forgotten.

        Its pauses are `pause_seconds`; `at_once`: the first reading comes without a pause.
        """
        self._closed = threading.Event()
        pause = 0.0 if at_once else least_seconds
        args = (weakref.ref(self), self.presence, self._closed, least_seconds, pause)
        threading.Thread(target=_keep_rereading, args=args, name=name, daemon=True).start()

    def refresh(self) -> None:
        """Read the store now."""
        raise NotImplementedError

    def reread(self) -> None:
        """Read the store, and say on the face what went wrong."""
        self.refresh()

    def on_open(self, callback: Callable[[str], object]) -> None:
        """Call ``callback(run_id)`` when someone opens a run."""
        self._on_open = (*self._on_open, callback)

    def close(self) -> None:
        """End the widget. What runs continues."""
        if self._closed is not None:
            self._closed.set()
        super().close()


def _keep_rereading(
    face_reference: weakref.ref[StoreFace],
    presence: Presence,
    closed: threading.Event,
    least_seconds: float,
    pause: float,
) -> None:
    while not presence.wait(closed, pause):
        face = face_reference()
        if face is None:
            return
        begun = time.monotonic()
        face.reread()
        pause = pause_seconds(time.monotonic() - begun, least_seconds)
        del face
