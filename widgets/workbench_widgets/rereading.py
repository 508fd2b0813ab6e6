"""The thread of a panel that reads its store again and again, as long as somebody may look."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from workbench.pages.pauses import pause_seconds


class Rereads(Protocol):
    """A face that reads its store itself."""

    def reread(self) -> None:
        """Read it now, and say on the face what went wrong."""


def start_rereading(
    face: Rereads, name: str, least_seconds: float, *, at_once: bool = False
) -> threading.Event:
    """Let a thread reread until the returned event is set or the face is forgotten.

    Its pauses are `pause_seconds`; `at_once`: the first reading comes without a pause.
    """
    closed = threading.Event()
    args = (weakref.ref(face), closed, least_seconds, 0.0 if at_once else least_seconds)
    threading.Thread(target=_keep_rereading, args=args, name=name, daemon=True).start()
    return closed


def _keep_rereading(
    known: weakref.ref[Rereads], closed: threading.Event, least_seconds: float, pause: float
) -> None:
    while not closed.wait(pause):
        face = known()
        if face is None:
            return
        begun = time.monotonic()
        face.reread()
        pause = pause_seconds(time.monotonic() - begun, least_seconds)
        del face
