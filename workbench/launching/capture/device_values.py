"""Numbers of small tensors on a GPU, read without ever waiting for the device.

They are copied to pinned memory on the script's own stream and taken when the copy has ended.
Pinned memory is used again, so that hardly any step allocates it. CUDA is spoken to only where the
script has initialised it, and not while a CUDA graph is captured: even the question whether a copy
has ended would end the capture with an error.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

_Item = TypeVar("_Item")
_BLOCK = 512  # numbers of 8 bytes: one page
_MOST = 1024  # copies on their way; a device that is further behind has its oldest given up
_LOOK_SECONDS = 0.005


def may_ask() -> bool:
    """Whether CUDA may be spoken to now: the script uses it, and captures no graph."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing()


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph: nothing of a tensor can be known now."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


class _Slot(NamedTuple):
    """Pinned memory for some numbers, and the event that follows a copy into it."""

    key: tuple[int, int]
    buffer: Any
    event: Any


class DeviceValues(Generic[_Item]):
    """A queue: items, each with the numbers that it waits for, handed back in their order."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[_Item, _Slot | None]] = collections.deque()
        self._free: dict[tuple[int, int], list[_Slot]] = collections.defaultdict(list)
        self._block: Any = None
        self._used = _BLOCK

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: _Item, tensors: Sequence[Any]) -> None:
        """Queue `item` with the numbers of `tensors`, of one element each or of more.

        Those of CPU and of other devices may be among them. The item is handed back without
        numbers where they cannot be copied: while a graph is captured, or where CUDA refuses.
        """
        slot = None
        with contextlib.suppress(Exception):
            slot = self._sent(tensors)
        self._waiting.append((item, slot))

    def _sent(self, tensors: Sequence[Any]) -> _Slot | None:
        torch: Any = sys.modules["torch"]
        device = next(tensor.device for tensor in tensors if tensor.is_cuda)
        with torch.no_grad(), torch.cuda.device(device):
            if not may_ask():
                return None
            flat = [
                tensor.detach().reshape(-1).double().to(device, non_blocking=True)
                for tensor in tensors
            ]
            values = flat[0] if len(flat) == 1 else torch.cat(flat)
            slot = self._slot(torch, (device.index, values.numel()))
            slot.buffer.copy_(values, non_blocking=True)
            slot.event.record()
        return slot

    def _slot(self, torch: Any, key: tuple[int, int]) -> _Slot:
        if self._free[key]:
            return self._free[key].pop()
        size = key[1]
        if size > _BLOCK:
            buffer = torch.empty(size, dtype=torch.float64, pin_memory=True)
            return _Slot(key, buffer, torch.cuda.Event())
        if self._used + size > _BLOCK:
            self._block = torch.empty(_BLOCK, dtype=torch.float64, pin_memory=True)
            self._used = 0
        buffer = self._block[self._used : self._used + size]
        self._used += size
        return _Slot(key, buffer, torch.cuda.Event())

    def arrived(self) -> list[tuple[_Item, list[float] | None]]:
        """Items whose numbers are there, with them; None = they will never be. Waits for nothing.

        After an error of the device no number arrives any more: all items come, each without.
        """
        ready: list[tuple[_Item, list[float] | None]] = []
        if not self._waiting or is_capturing():
            return ready
        while self._waiting:
            slot = self._waiting[0][1]
            numbers: list[float] | None = None
            if slot is not None:
                try:
                    if slot.event.query():
                        numbers = slot.buffer.tolist()
                        self._free[slot.key].append(slot)
                    elif len(self._waiting) <= _MOST:
                        break
                except Exception:
                    numbers = None
            ready.append((self._waiting.popleft()[0], numbers))
        return ready

    def drain(self, seconds: float) -> list[tuple[_Item, list[float] | None]]:
        """All that waits, at the end of the process; a hung device is waited for `seconds`."""
        ready = self.arrived()
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            ready += self.arrived()
        ready += [(item, None) for item, _ in self._waiting]
        self._waiting.clear()
        return ready
