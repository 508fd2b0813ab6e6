"""Errors that the driver tells of this machine's GPUs: Xids, and memory errors that grow.

Numbers as in nvml.h; an event is reported once, to those who asked for events before.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from workbench.describe.bounded_calls import DRIVER, BoundedCalls
from workbench.describe.detection import nvml

_ECC_SECONDS = 10.0
_MOST_EVENTS = 64  # at one look: an event of each of many cards may come at once
_XID_CRITICAL = 0x8  # nvmlEventTypeXidCriticalError
_UNCORRECTED, _VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuError:
    """One kind of error of one card, since the run has been watched on its machine."""

    index: int | None = None
    """The driver's index; None = it did not say which card."""
    xid: int | None = None
    """The Xid; None = uncorrectable memory errors."""
    count: int = 1
    """How many: of memory errors since the start, whatever the counter was set to meanwhile."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read_errors` takes it back."""
        return asdict(self)


def read_errors(documents: Iterable[Mapping[str, Any]]) -> Iterator[GpuError]:
    """What another machine told; what is no error of a card is left out."""
    for document in documents:
        index, xid, count = document.get("index"), document.get("xid"), document.get("count")
        if isinstance(index, int | None) and isinstance(xid, int | None) and isinstance(count, int):
            yield GpuError(index=index, xid=xid, count=count)


@final
class GpuErrorWatch:
    """Asks NVML, and waits for no driver. Without one, or with a broken one, it is silent."""

    def __init__(self) -> None:
        self._library: Any | None = None
        self._handles: dict[int, Any] = {}
        self._events: Any | None = None
        self._counts: dict[int, int] = {}  # of memory errors, as the driver told last
        self._grown: dict[int, int] = {}
        self._errors: dict[tuple[int | None, int | None], GpuError] = {}
        self._begun = False
        self._due = 0.0
        self._thread = BoundedCalls()

    def look(self, indices: Sequence[int], monotonic: float) -> tuple[GpuError, ...]:
        """All errors of the cards `indices` since the first look; they do not go away."""
        count_memory = monotonic >= self._due
        if count_memory:
            self._due = monotonic + _ECC_SECONDS
        answer = self._thread.ask(lambda: self._look(indices, count_memory=count_memory))
        xids, counts = answer or ([], {})
        for xid, index in xids:
            self._errors[xid, index] = GpuError(index=index, xid=xid)
        for index, count in counts.items():
            self._count(index, count)
        return tuple(self._errors.values())

    def _count(self, index: int, count: int) -> None:
        before = self._counts.get(index, count)
        self._counts[index] = count
        # A reset of the card, or its driver's reload, begins the count anew: all of it is new.
        grown = self._grown.get(index, 0) + (count - before if count >= before else count)
        self._grown[index] = grown
        if grown > 0:
            self._errors[None, index] = GpuError(index=index, count=grown)

    def _look(
        self, indices: Sequence[int], *, count_memory: bool
    ) -> tuple[list[tuple[int, int | None]], dict[int, int]]:
        """New Xids, each with its GPU's index, and the counts of memory errors."""
        if not self._begun:
            self._begin(indices)
        ask, counts = self._ask, dict[int, int]()
        for index, handle in self._handles.items() if count_memory else ():
            count = ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
            if isinstance(count, int):
                counts[index] = count
        return list(self._xids()), counts

    def _begin(self, indices: Sequence[int]) -> None:
        self._library = nvml()
        if self._library is None and DRIVER.silent_seconds is not None:
            return  # it may answer later
        self._begun = True
        for index in indices:
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._handles[index] = handle
        self._events = self._ask("nvmlEventSetCreate")
        for handle in self._handles.values() if self._events is not None else ():
            self._ask("nvmlDeviceRegisterEvents", handle, _XID_CRITICAL, self._events)

    def _ask(self, name: str, *words: Any) -> Any | None:
        """One question; None for whatever a driver may answer instead."""
        try:
            return getattr(self._library, name)(*words)
        except Exception:  # noqa: BLE001  (NVMLError, a missing symbol, a broken library)
            return None

    def _xids(self) -> Iterator[tuple[int, int | None]]:
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)  # a time-out is an error too
            xid = getattr(event, "eventData", None)
            if not isinstance(xid, int):
                return
            yield xid, self._index(getattr(event, "device", None))

    def _index(self, device: Any) -> int | None:
        """A lost card does not tell its index any more; its handle is the one that it had."""
        index = self._ask("nvmlDeviceGetIndex", device)
        if isinstance(index, int):
            return index
        with contextlib.suppress(ctypes.ArgumentError, TypeError):
            for known_index, handle in self._handles.items():
                if _address(handle) == _address(device):
                    return known_index
        return None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
