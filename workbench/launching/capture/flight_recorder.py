"""Torch's flight recorder: the ring in which it notes its collectives, on gloo and on NCCL.

Threads read it. While the interpreter ends they must not: a thread that comes back from torch's
code then is torn down in the middle of it, and the rank dies of SIGSEGV.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

_LAST_SECONDS = 10.0  # for a read that has begun; it takes 30 ms of an idle core


class FlightRecorder:
    """The ring of this process, until `end`."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._over = False

    def dump(self, name: str, **options: bool) -> bytes:
        """What torch's function `name` returns as JSON; empty where it does not, or after `end`."""
        torch = sys.modules.get("torch")
        module = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
        function: Any = getattr(module, name, None)
        with self._reading:
            if function is None or self._over:
                return b""
            with contextlib.suppress(Exception):
                content = function(**options)
                return content if isinstance(content, bytes) else str(content).encode()
        return b""

    def end(self) -> None:
        """Wait for a read that has begun, and allow no other."""
        self._over = True
        if self._reading.acquire(timeout=_LAST_SECONDS):
            self._reading.release()
