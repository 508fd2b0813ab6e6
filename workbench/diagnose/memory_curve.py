"""The memory of one rank over the steps of an attempt, in bounded space, and its steady growth."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

_POINTS_MAX = 192
_PARTS = 6
_LEAST_POINTS = 12
_LEAST_STEPS = 30
_LEAST_BYTES = 64 << 20
_STEADY = 3.0  # the largest rise of a part to the smallest
_LASTING = 0.85  # the rise of the later half to that of the earlier one; a logarithm's has 0.7


class Growth(NamedTuple):
    """Memory that grows with the steps."""

    bytes_per_step: float
    seconds_per_step: float
    first_step: int
    steps: int
    total: int
    """Bytes over these steps."""


@dataclass(slots=True)
class MemoryCurve:
    """Feed it one value at a time; thinned evenly as the attempt grows long."""

    points: list[tuple[int, float, int]] = field(default_factory=list[tuple[int, float, int]])
    """Step, seconds of a clock that does not jump, bytes."""
    _every: float = 0.5  # seconds

    def add(self, step: int, at: float, value: int) -> None:
        """Account for the memory at `step`; steps that are done again begin a new curve."""
        if self.points and step < self.points[-1][0]:
            self.points.clear()
        if self.points and at - self.points[-1][1] < self._every:
            return
        self.points.append((step, at, value))
        if len(self.points) >= _POINTS_MAX:
            self.points = self.points[::2]
            self._every *= 2

    def growth(self) -> Growth | None:
        """A growth that is as steady at the end as at the beginning; None where there is none.

        Caches, the first batches and a longer sequence rise, too, but less and less; an evaluation
        rises in one go. The first half of a long curve is left out: what grew then has ended.
        """
        points, half = self.points, self.points[len(self.points) // 2 :]
        if len(half) >= 2 * _LEAST_POINTS and half[-1][0] - half[0][0] >= _LEAST_STEPS:
            points = half
        if len(points) < _LEAST_POINTS or points[-1][0] - points[0][0] < _LEAST_STEPS:
            return None
        size = len(points) // _PARTS
        parts = [points[len(points) - (_PARTS - n) * size :][:size] for n in range(_PARTS)]
        middles = [
            (median(p[0] for p in part), median(p[1] for p in part), median(p[2] for p in part))
            for part in parts
        ]
        rises = [
            (after[2] - before[2]) / max(1.0, after[0] - before[0])
            for before, after in itertools.pairwise(middles)
        ]
        total = middles[-1][2] - middles[0][2]
        if min(rises) <= 0 or max(rises) > _STEADY * min(rises) or total < _LEAST_BYTES:
            return None
        if rises[-1] + rises[-2] < _LASTING * (rises[0] + rises[1]):
            return None
        steps = middles[-1][0] - middles[0][0]
        return Growth(
            bytes_per_step=total / steps,
            seconds_per_step=(middles[-1][1] - middles[0][1]) / steps,
            first_step=int(middles[0][0]),
            steps=int(steps),
            total=int(total),
        )
