"""What kept each rank from computing: its wait for a core, its process stopped, its cgroup's quota.

Written by `launching.capture.core_time` beside the order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

TURNS_OF_A_STOP = 2
"""Turns on a core that a sleeping thread takes when its process is stopped and continued."""


@dataclass(frozen=True, slots=True)
class Look:
    """Counters at one moment, since the process began."""

    at: float  # Unix seconds on the rank's host
    stops: float
    throttled: float  # seconds


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Of one rank."""

    queued: Mapping[int, tuple[float, float, float]] = field(
        default_factory=dict[int, tuple[float, float, float]]
    )
    """Step -> seconds for which its training thread waited for a core: before the backward pass,
    in it, and in the optimizer."""
    looks: Sequence[Look] = ()

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """How often it was stopped between two moments, and seconds for which it was throttled."""
        if len(self.looks) < 2:
            return 0.0, 0.0
        times = [look.at for look in self.looks]
        first = self.looks[max(0, bisect_right(times, begin) - 1)]
        last = self.looks[min(len(times) - 1, bisect_left(times, end))]
        share = min(1.0, (end - begin) / max(1e-3, last.at - first.at))
        return share * (last.stops - first.stops), share * (last.throttled - first.throttled)


def read_core_time(document: Mapping[str, Any], since: int = 0) -> CoreTime:
    """What a rank's file of arrivals holds of it, from step `since` on; nothing where it has none.

    Raises:
        TypeError, ValueError, IndexError: it is damaged.
    """
    rows = cast("list[list[int]]", document.get("core_time", []))
    queued: dict[int, tuple[float, float, float]] = {}
    begin = max(0, bisect_left(list(accumulate(row[0] for row in rows)), since) - 1)
    before = [sum(column) for column in zip(*rows[:begin], strict=True)]
    for differences in rows[begin:]:
        row = [a + b for a, b in zip(before or [0] * len(differences), differences, strict=True)]
        if before and row[0] == before[0] + 1:
            end, entered, optimizing, now = before[6], row[2], row[4], row[6]
            spans = (entered - end, optimizing - entered, now - optimizing)
            first, second, third = (max(0.0, span / 1e6) for span in spans)
            queued[row[0]] = (first, second, third)
        before = row
    turns = [
        (float(at), int(count), int(micros)) for at, count, micros in document.get("turns", ())
    ]
    looks = [Look(at, count / TURNS_OF_A_STOP, micros / 1e6) for at, count, micros in turns]
    return CoreTime(queued, looks)
