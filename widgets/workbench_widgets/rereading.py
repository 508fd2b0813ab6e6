"""The thread of a panel that reads its store again and again, as long as somebody may look."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from workbench.pages.pauses import pause_seconds
from workbench_widgets.presence import Presence


class Rereads(Protocol):
    """A face that reads its store itself."""

    presence: Presence

    def reread(self) -> None:
        """Read it now, and say on the face what went wrong."""


def start_rereading(
    face: Rereads, name: str, least_seconds: float, *, at_once: bool = False
) -> threading.Event:
    """Let a thread reread until the returned event is set or the face is forgotten.

    Its pauses are `pause_seconds`; `at_once`: the first reading comes without a pause.
    """
    closed = threading.Event()
    pause = 0.0 if at_once else least_seconds
    args = (weakref.ref(face), face.presence, closed, least_seconds, pause)
    threading.Thread(target=_keep_rereading, args=args, name=name, daemon=True).start()
    return closed


def _keep_rereading(
    known: weakref.ref[Rereads],
    presence: Presence,
    closed: threading.Event,
    least_seconds: float,
    pause: float,
) -> None:
    while not presence.wait(closed, pause):
        face = known()
        if face is None:
            return
        begun = time.monotonic()
        face.reread()
        pause = pause_seconds(time.monotonic() - begun, least_seconds)
        del face
