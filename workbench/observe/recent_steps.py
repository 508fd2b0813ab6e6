"""The latest steps of a run: how long a usual one takes, and what is processed in a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from workbench.observe.events import StepRow


class RecentSteps:
    """Durations and sizes of the latest steps, for the median and the rates."""

    def __init__(self, size: int = 256) -> None:
        self._seconds: deque[float] = deque(maxlen=size)
        self._sizes: deque[tuple[int | None, int | None]] = deque(maxlen=size)

    def add(self, row: StepRow, tokens: int | None = None) -> None:
        """Take a finished step into account; `tokens` of all ranks, None = unknown."""
        if row.step_seconds is not None and row.step_seconds > 0:
            self._seconds.append(row.step_seconds)
            self._sizes.append((tokens, row.samples))

    @property
    def median(self) -> float | None:
        """Median step time in seconds; None before the second step."""
        return _median(self._seconds) if self._seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """See `rate`; None while no step's tokens are known."""
        return rate(zip((tokens for tokens, _ in self._sizes), self._seconds, strict=True))

    @property
    def samples_per_second(self) -> float | None:
        """See `rate`; None while no step's samples are known."""
        return rate(zip((samples for _, samples in self._sizes), self._seconds, strict=True))


def rate(steps: Iterable[tuple[int | None, float]]) -> float | None:
    """What steps of (count, seconds) process in a second; None where no count is known.

    Count and time are of the same steps, for both may vary from step to step. Steps of like size,
    by powers of two, take their median time, so that a checkpoint or a compilation in between does
    not count. A size that a single step has is left out: the last batch of an epoch.

    >>> rate([(32, 1.0), (32, 1.0), (32, 9.0), (4, 1.0)])
    32.0
    >>> rate([(10, 1.0), (10, 1.0), (40, 2.0), (40, 2.0)])
    16.666666666666668
    """
    sizes: dict[int, list[tuple[int, float]]] = {}
    for count, seconds in steps:
        if count:
            sizes.setdefault(count.bit_length(), []).append((count, seconds))
    usual = [steps for steps in sizes.values() if len(steps) > 1] or list(sizes.values())
    total = sum(count for steps in usual for count, _ in steps)
    total_seconds = sum(len(steps) * _median(seconds for _, seconds in steps) for steps in usual)
    return total / total_seconds if total_seconds else None


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
