"""A checkpoint is read before it is sent. Of a large one that takes many minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from workbench.recover.checkpoints import Checkpoint, verify

_TELL_SECONDS = 1.0


def checked(checkpoint: Checkpoint, tell: Callable[[], None]) -> str:
    """What is wrong with it, as `verify` says; calls `tell` once a second. Raises OSError."""
    done = threading.Event()

    def go_on_telling() -> None:
        while not done.wait(_TELL_SECONDS):
            tell()

    thread = threading.Thread(target=go_on_telling, name="verify", daemon=True)
    thread.start()
    try:
        return verify(checkpoint)
    finally:
        done.set()
        thread.join()
