"""Seconds that a run was at work, and what its view tells of its attempts."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from workbench.store.layout import RunPaths
from workbench.store.schema import AttemptLine, AttemptsBefore
from workbench.store.starts import read_attempts

_LINES_MAX = 40  # lines of attempts in the view
_PAUSES = 30  # between attempts that the view has no room for
_LEFT_OUT = ("given_up", "rollback", "unset")
_OF_ARGUMENTS = ("attempt", "event", "time", "arguments")
Interval = tuple[float, float | None]


@final
class Clock:
    """Seconds that a run was at work, of a time of day: pauses between attempts left out."""

    def __init__(self, attempts: Sequence[Interval]) -> None:
        """`attempts`: Unix seconds of start and end, in order; the last one's may be None."""
        self._starts = [start for start, _ in attempts]
        self._ends = [end for _, end in attempts]
        self._before = [0.0]
        for start, end in attempts[:-1]:
            self._before.append(self._before[-1] + (start if end is None else end) - start)

    @classmethod
    def read(cls, paths: RunPaths, started_at: float) -> Clock:
        """From the run's attempts; one attempt from `started_at` on where none were written."""
        return cls(intervals(read_attempts(paths)) or [(started_at, None)])

    def attempt(self, at: float) -> int:
        """Number of the attempt, from 0, that had begun last at the Unix time `at`; -1 = none."""
        return bisect_right(self._starts, at) - 1

    def active(self, at: float) -> float:
        """Seconds at work until the Unix time `at`."""
        index = self.attempt(at)
        if index < 0:
            return 0.0
        end = self._ends[index]
        now = at if end is None else min(at, end)
        return round(self._before[index] + now - self._starts[index], 3)


@final
class StepClock:
    """Seconds at work at each step of a run, asked in order, also where its clock was set.

    A clock that went back, or on by more than the whole run, stood still for all but the steps.
    """

    def __init__(self, clock: Clock, elapsed: float | None) -> None:
        """`elapsed`: seconds at work of the whole run; None = it has not ended."""
        self._clock = clock
        self._elapsed = elapsed
        self._set_by = 0.0
        self._last: float | None = None

    @classmethod
    def read(cls, paths: RunPaths, view: Mapping[str, Any], created_at: float) -> StepClock:
        """Of a run and its view; `created_at`: when it began, where nothing else tells."""
        clock = Clock.read(paths, view.get("started_at") or created_at)
        return cls(clock, view.get("elapsed_seconds") if view.get("ended_at") else None)

    def at(self, time: float, seconds: float | None = None) -> float:
        """At the Unix time of a step's end; `seconds`: what the steps since the last one took."""
        now = time + self._set_by
        if self._last is not None and self._is_jump(self._last, now):
            self._set_by += self._last + (seconds or 0.0) - now
            now = time + self._set_by
        self._last = now
        return self.at_time(time)

    def at_time(self, time: float) -> float:
        """At another Unix time near that of the latest step."""
        active = self._clock.active(time + self._set_by)
        return active if self._elapsed is None else min(active, self._elapsed)

    def _is_jump(self, last: float, now: float) -> bool:
        same_attempt = self._clock.attempt(last) == self._clock.attempt(now)
        far = self._elapsed is not None and now - last > self._elapsed
        return now < last or (far and same_attempt)


def intervals(lines: Sequence[Mapping[str, Any]]) -> list[Interval]:
    """Start and end of each attempt, in Unix seconds, from lines of attempts.jsonl.

    An attempt whose end is not known lasted until the next start; the last one lasts.
    """
    starts, ends = _times(lines, "start"), _times(lines, "end")
    spans: list[Interval] = []
    for at, following in itertools.zip_longest(starts, starts[1:]):
        last = len(ends) if following is None else bisect_right(ends, following)
        end = ends[last - 1] if last and ends[last - 1] >= at else following
        spans.append((at, end))
    return spans


def recent_attempts(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The view's ``attempts``, the latest lines from a start on, and ``attempts_before``."""
    first = max(0, len(lines) - _LINES_MAX)
    while first and first < len(lines) - 1 and lines[first].get("event") != "start":
        first += 1
    attempts = [
        {name: value for name, value in line.items() if name not in _LEFT_OUT}
        for line in lines[first:]
    ]
    return {"attempts": attempts, "attempts_before": _before(lines, first) if first else None}


def _before(lines: Sequence[Mapping[str, Any]], first: int) -> AttemptsBefore:
    """What the lines before `first` come to."""
    starts = [line for line in lines[:first] if line.get("event") == "start"]
    until = float(lines[first]["time"])
    knees = _knees([interval for interval in intervals(lines) if interval[0] < until], until)
    with_arguments = [line for line in starts if line.get("arguments") is not None]
    same = itertools.takewhile(
        lambda line: line["arguments"] == with_arguments[-1]["arguments"], with_arguments[::-1]
    )
    own = [{name: line.get(name) for name in _OF_ARGUMENTS} for line in same]
    return {
        "count": len(starts),
        "arguments": cast("AttemptLine | None", own[-1] if own else None),
        "clock": knees,
    }


def _knees(attempts: Sequence[Interval], until: float) -> list[list[float]]:
    """Unix time and seconds at work where a pause begins or ends, from the first start to `until`.

    Of very many pauses the shortest are left out: the line between the others holds their sum.
    """
    if not attempts:
        return []
    pauses, total = list[tuple[float, float, float]](), 0.0
    nexts = [*(start for start, _ in attempts[1:]), until]
    for (start, end), following in zip(attempts, nexts, strict=True):
        ended = following if end is None else min(end, following)
        total += ended - start
        pauses.append((ended, following, total))
    longest = sorted(pauses, key=lambda pause: pause[0] - pause[1])[:_PAUSES]
    points = [(attempts[0][0], 0.0), (until, total)]
    points += [(at, seconds) for *ends, seconds in longest for at in ends]
    return [[round(at, 3), round(seconds, 3)] for at, seconds in sorted(set(points))]


def _times(lines: Sequence[Mapping[str, Any]], event: str) -> list[float]:
    """When lines of that event were written, in order."""
    times = (line.get("time") for line in lines if line.get("event") == event)
    return sorted(float(at) for at in times if isinstance(at, int | float))
