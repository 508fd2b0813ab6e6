"""Torch's flight recorder: the ring in which it notes its collectives, on gloo and on NCCL.

Threads read it. While the interpreter ends they must not: a thread that comes back from torch's
code then is torn down in the middle of it, and the rank dies of SIGSEGV.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The entries that torch keeps; of two that are set the first counts."""
_OF_ALL_BACKENDS = "_dump_fr_trace_json"  # torch that has it keeps 2000 by default, before: none
_LAST_SECONDS = 10.0  # for a read that has begun; it takes 30 ms of an idle core


class FlightRecorder:
    """The ring of this process, until `end`."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._over = False

    @property
    def keeps(self) -> bool:
        """Whether torch surely notes collectives: else an empty ring tells nothing of them."""
        for name in SIZE_VARIABLES:
            if name in os.environ:
                with contextlib.suppress(ValueError):
                    return int(os.environ[name]) > 0
                return False
        return hasattr(_module(), _OF_ALL_BACKENDS)

    def dump(self, name: str, **options: bool) -> bytes:
        """What torch's function `name` returns as JSON; empty where it does not, or after `end`."""
        function: Any = getattr(_module(), name, None)
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


def _module() -> Any:
    torch = sys.modules.get("torch")
    return getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
