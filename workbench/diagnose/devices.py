"""The latest readings of every GPU of all machines, as the rules look at them.

Each machine's samples have that machine's clock; durations are taken within one machine's.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from workbench.describe.hardware import with_parts
from workbench.store.schema import SystemLine

MINUTE = 60.0
READINGS_MAX = 120
"""Readings of each GPU."""
BEST_CLOCKS = 10
"""One high reading is none."""
LOST_SAMPLES, SILENT_SAMPLES = 3, 12
"""Without a reading of one GPU, and of all GPUs of a machine at once."""
STALE_SECONDS = 60.0
"""A machine that has told nothing for so long is another rule's."""
_WORKING_PERCENT = 50.0


class Reading(NamedTuple):
    """One GPU at one moment; None = the driver does not tell."""

    time: float  # Unix seconds of its machine
    util: float | None
    clock_mhz: float | None
    temperature_c: float | None
    throttle: int | None  # see `observe.throttle`


@dataclass(slots=True)
class Device:
    """One GPU."""

    node: int
    """Its machine."""
    index: int
    """The driver's."""
    part: int = 0
    """Which slice (MIG) of its card it is, in the order of its machine."""
    readings: deque[Reading] = field(default_factory=lambda: deque[Reading](maxlen=READINGS_MAX))
    """Oldest first."""
    first_at: float | None = None
    """Time of its first reading."""
    answered_at: float | None = None
    """Time of the latest sample that holds any reading of it."""
    best_clocks: list[float] = field(default_factory=list[float])
    """The highest SM clocks while it worked, ascending."""

    @property
    def best_clock(self) -> float:
        """The clock that it reached while it worked, ten times at least; else 0."""
        return self.best_clocks[0] if len(self.best_clocks) >= BEST_CLOCKS else 0.0

    @property
    def minute(self) -> list[Reading]:
        """Its readings of the last minute, the latest first; none before a minute is covered."""
        if not self.readings or self.first_at is None:
            return []
        latest = self.readings[-1].time
        if latest - self.first_at < MINUTE:
            return []
        return list(
            takewhile(lambda reading: reading.time >= latest - MINUTE, reversed(self.readings))
        )

    def take(self, at: float, gpu: Mapping[str, Any]) -> None:
        """Account for its part of a sample."""
        clock, util = _number(gpu.get("sm_clock_mhz")), _number(gpu.get("util"))
        mask = gpu.get("throttle_reasons")
        reading = Reading(
            at, util, clock, _number(gpu.get("temperature_c")),
            int(mask) if isinstance(mask, int | float) else None,
        )  # fmt: skip
        self.readings.append(reading)
        self.first_at = at if self.first_at is None else self.first_at
        if answers(gpu):
            self.answered_at = at
        if clock is not None and (util or 0.0) > _WORKING_PERCENT:
            insort(self.best_clocks, clock)
            del self.best_clocks[:-BEST_CLOCKS]


@dataclass(slots=True)
class _Machine:
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=SILENT_SAMPLES))
    heard_at: float = 0.0  # on the clock of who looks
    devices: dict[tuple[int, int], Device] = field(default_factory=dict[tuple[int, int], Device])


class Devices:
    """All GPUs. Feed it each machine's samples."""

    def __init__(self) -> None:
        self._machines: dict[int, _Machine] = {}

    def take(self, node: int, line: SystemLine, at: float) -> bool:
        """Account for a sample of a machine; whether it is a new one.

        `at`: when it came, on a clock that does not jump.
        """
        machine = self._machines.setdefault(node, _Machine())
        time = line["time"]
        if machine.times and time == machine.times[-1]:
            return False
        machine.times.append(time)
        machine.heard_at = at
        for index, part, gpu in with_parts(line.get("gpus") or ()):
            device = machine.devices.setdefault((index, part), Device(node, index, part))
            device.take(time, gpu)
        return True

    def fresh(self, now: float) -> Iterator[Device]:
        """The GPUs of the machines that are heard of, in order; `now`: on the clock of `take`."""
        for _, machine in sorted(self._machines.items()):
            if now - machine.heard_at <= STALE_SECONDS:
                yield from (device for _, device in sorted(machine.devices.items()))

    def lost(self, now: float) -> tuple[list[Device], list[int]]:
        """GPUs that answered before and do not any more, and machines of which none does."""
        gone: list[Device] = []
        silent: list[int] = []
        for node, machine in sorted(self._machines.items()):
            if now - machine.heard_at > STALE_SECONDS or len(machine.times) < LOST_SAMPLES:
                continue
            since = machine.times[-LOST_SAMPLES]
            seen = [device for _, device in sorted(machine.devices.items()) if device.answered_at]
            lost = [device for device in seen if (device.answered_at or 0.0) < since]
            if len(seen) > 1 and len(lost) == len(seen):  # the driver may be busy for a moment
                full = len(machine.times) == SILENT_SAMPLES
                if full and all((device.answered_at or 0.0) < machine.times[0] for device in seen):
                    silent.append(node)
            else:
                gone += lost
        return gone, silent


def answers(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU's sample holds any reading."""
    return any(gpu.get(name) is not None for name in ("util", "memory_bytes", "temperature_c"))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
