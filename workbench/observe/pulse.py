"""Where a rank is right now, read from its pulse: 64 bytes it rewrites in place.

The rank writes it without any lock and even while the interpreter is otherwise stuck, so a reader
can meet a half-written beat; it reads again until two readings agree.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from workbench.store.files import open_file
from workbench.store.schema import PULSE_FORMAT, PULSE_MAGIC, PULSE_PHASES

_BYTES = struct.calcsize(PULSE_FORMAT)
_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The latest beat of one rank."""

    beats: int
    """How many beats there were; a rank that continues has more of them next time."""
    steps: int
    """Optimizer steps done."""
    phase: str
    """One of `schema.PULSE_PHASES`."""
    time: float
    """Unix seconds of the beat, by the rank's clock."""
    monotonic: float
    """The same on CLOCK_MONOTONIC, which all processes of a boot share: ages come from this one,
    because the other clock may jump."""

    def age_seconds(self, now: float) -> float:
        """Seconds since the beat; `now` is time.monotonic()."""
        return max(0.0, now - self.monotonic)


def read_pulse(path: Path) -> Pulse | None:
    """The latest whole beat; None where there is none (no hook, not begun, another format)."""
    before = b""
    try:
        handle = open_file(path)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            data = os.pread(handle, _BYTES, 0)
            if data == before:
                break
            before = data
    except OSError:
        return None
    finally:
        os.close(handle)
    return _parse(before)


def _parse(data: bytes) -> Pulse | None:
    if len(data) < _BYTES:
        return None
    magic, beats, steps, phase, wall, monotonic = struct.unpack(PULSE_FORMAT, data)
    if magic != PULSE_MAGIC or phase >= len(PULSE_PHASES):
        return None
    if not (math.isfinite(wall) and math.isfinite(monotonic)):
        return None
    return Pulse(
        beats=beats, steps=steps, phase=PULSE_PHASES[phase], time=wall, monotonic=monotonic
    )
