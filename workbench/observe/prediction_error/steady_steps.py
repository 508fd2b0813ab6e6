"""What a run's steps took, by cause: an even sample of them, however many they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workbench.observe.events import StepRow
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

WARMUP = 3
"""Steps of each attempt that are left out: first kernels, first allocations, first batches."""
_ROWS = 512  # a median of more would be no better


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Medians over the steady steps: without warm-up, and without those that held a checkpoint."""

    steps: int = 0
    """How many steady steps the run has made; the medians are of an even sample of them."""
    step_seconds: float | None = None
    """Of the slowest rank."""
    tokens: float | None = None
    """Per step, all ranks, as the hook counted them."""
    input_seconds: float | None = None
    """Waited for data by the rank with the longest way to backward: what held the step up."""
    slowest_seconds: float | None = None
    """How much longer than a usual rank's the slowest one's way to backward was, data left out."""
    forward_seconds: float | None = None
    """From the end of a step to entering the last backward, on a usual rank, without data."""
    backward_seconds: float | None = None
    """From the last rank's entering backward to the step's end: backward, exchange, optimizer."""


@dataclass(slots=True)
class _Step:
    number: int
    seconds: float
    tokens: int | None
    causes: tuple[float, float, float] | None  # input, slowest rank, way to backward
    data_known: bool


class StepSample:
    """Takes every step and keeps an even sample of at most 512; `steady` is computed when asked."""

    def __init__(self, paths: RunPaths | None = None, since: float = 0.0) -> None:
        """`since`: Unix time; earlier steps did other work."""
        self._since = since
        self._rows: list[_Step] = []
        self._stride = 1
        self._steady = 0
        self._before: StepRow | None = None
        self._since_start = 0  # steps of this attempt
        self._saved = None if paths is None else LineReader(paths.saved)
        self._after_save: set[int] = set()

    def add(self, row: StepRow) -> None:
        """Take a finished step into account; on the supervisor's hot path."""
        if row.time < self._since:
            return
        before, self._before = self._before, row
        if row.step_seconds is None or (before is not None and row.step <= before.step):
            self._since_start = 1  # the first step of an attempt has no duration
            return
        self._since_start += 1
        if self._since_start <= WARMUP or row.step_seconds <= 0:
            return
        self._steady += 1
        if self._steady % self._stride:
            return
        follows = before is not None and before.step == row.step - 1
        self._rows.append(
            _Step(
                number=row.step,
                seconds=row.step_seconds,
                tokens=row.tokens,
                causes=_causes(before, row) if follows and before is not None else None,
                data_known=bool(row.data_seconds),
            )
        )
        if len(self._rows) >= _ROWS:
            del self._rows[::2]
            self._stride *= 2

    def steady(self) -> Steady:
        """The medians of the steps so far."""
        if self._saved is not None:
            for line in self._saved.read():
                if isinstance(step := line.get("step"), int):
                    self._after_save.add(step + 1)
        rows = self._usual()
        with_causes = [step for step in rows if step.causes is not None]
        return Steady(
            steps=self._steady,
            step_seconds=_median(step.seconds for step in rows),
            tokens=_median(step.tokens for step in rows if step.tokens is not None),
            input_seconds=_median_of(with_causes, lambda causes: causes[0]),
            slowest_seconds=_median_of(with_causes, lambda causes: causes[1]),
            forward_seconds=_median_of(with_causes, lambda causes: causes[2]),
            backward_seconds=_median(
                max(0.0, with_cause.seconds - sum(with_cause.causes))
                for with_cause in with_causes
                if with_cause.causes is not None
            ),
        )

    def _usual(self) -> list[_Step]:
        """Without the steps after a checkpoint, and after an evaluation: its data wait is unknown.

        Where that would leave too few (a checkpoint each step), all are usual.
        """
        usual = [step for step in self._rows if step.number not in self._after_save]
        with_data = [step for step in usual if step.data_known]
        for fewer in (with_data, usual):
            if 2 * len(fewer) >= len(self._rows):
                return fewer
        return self._rows


def _causes(before: StepRow, row: StepRow) -> tuple[float, float, float] | None:
    """Data, slowest rank and way to backward of the rank with the longest way.

    They and the rest, which is backward, exchange and optimizer, add up to the step.
    """
    ranks = row.backward_at.keys() & before.ended_at.keys()
    if not ranks or len(ranks) < row.ranks:
        return None
    ways = {rank: row.backward_at[rank] - before.ended_at[rank] for rank in ranks}
    if min(ways.values()) < 0:
        return None  # the clock was set, or an engine's step ended elsewhere
    last = max(ways, key=lambda rank: ways[rank])  # each by its own clock: hosts' clocks differ
    waits = {rank: min(ways[rank], row.data_seconds.get(rank, 0.0)) for rank in ranks}
    own = sorted(ways[rank] - waits[rank] for rank in ranks)
    usual = own[(len(own) - 1) // 2]
    slowest = max(0.0, ways[last] - waits[last] - usual)
    return waits[last], slowest, ways[last] - waits[last] - slowest


def _median_of(
    rows: list[_Step], pick: Callable[[tuple[float, float, float]], float]
) -> float | None:
    return _median(pick(step.causes) for step in rows if step.causes is not None)


def _median(values: Iterable[float]) -> float | None:
    ordered = sorted(filter(math.isfinite, values))
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
