"""Metric lines of all ranks, joined into one row per optimizer step (mean over ranks)."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

_MAX_PENDING = 4096  # steps that may wait for a slower rank
_NUMBER = (int, float)
_PATIENCE_SECONDS = 3.0  # after that a step is taken with the ranks that reported it


@dataclass(slots=True)
class StepRow:
    """One optimizer step over all ranks that reported it."""

    step: int
    time: float
    ranks: int = 0
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    tokens: int | None = None
    finite: bool = True
    losses: list[float] = field(default_factory=list[float])
    backward_at: dict[int, float] = field(default_factory=dict[int, float])
    seen_at: float = 0.0


@dataclass(slots=True)
class RankNow:
    """The latest of one rank."""

    step: int = 0
    loss: float | None = None
    memory_bytes: int | None = None
    late_seconds: float | None = None
    """Exponential mean of how long after the first rank this one enters backward: a straggler is
    late here while all ranks show the same step time."""


class MetricStream:
    """Follows the metric files of a run. Call `read` as often as wanted; it never blocks."""

    def __init__(self, paths: RunPaths, ranks: int) -> None:
        self.ranks = {rank: RankNow() for rank in range(ranks)}
        self._readers = {rank: LineReader(paths.rank_metrics(rank)) for rank in range(ranks)}
        self._pending: dict[int, StepRow] = {}
        self._done_to = 0

    @property
    def lines_skipped(self) -> int:
        """Malformed lines so far."""
        return sum(reader.skipped for reader in self._readers.values())

    def read(self, *, final: bool = False) -> list[StepRow]:
        """Rows that became complete, in step order. `final` also returns what is incomplete."""
        rows: list[StepRow] = []
        more = True
        while more:
            more = False
            for rank, reader in self._readers.items():
                lines = reader.read()
                more = more or (final and bool(lines))
                for line in lines:
                    self._take(rank, line)
            rows += self._complete(final=final and not more)
        return rows

    def _take(self, rank: int, line: dict[str, Any]) -> None:
        """Account for one line. The supervisor's hot path: hundreds of calls a second."""
        get = line.get
        step, ended = get("step"), get("time")
        if type(step) is not int or not isinstance(ended, _NUMBER):
            self._readers[rank].skipped += 1
            return
        now = self.ranks[rank]
        now.step = step
        loss = get("loss")
        if isinstance(loss, _NUMBER):
            now.loss = loss
        now.memory_bytes = get("memory_bytes", now.memory_bytes)
        if step <= self._done_to:
            return
        row = self._pending.get(step)
        if row is None:
            row = self._pending[step] = StepRow(step, ended, seen_at=time.monotonic())
        row.ranks += 1
        row.time = max(row.time, ended)
        if isinstance(loss, _NUMBER):
            row.losses.append(loss)
        row.lr = get("lr", row.lr)
        row.grad_norm = get("grad_norm", row.grad_norm)
        seconds = get("step_seconds")
        if seconds is not None and (row.step_seconds is None or seconds > row.step_seconds):
            row.step_seconds = seconds
        if "tokens" in line:
            row.tokens = (row.tokens or 0) + line["tokens"]
        if "backward_at" in line:
            row.backward_at[rank] = line["backward_at"]

    def _complete(self, *, final: bool) -> Iterator[StepRow]:
        now = time.monotonic()
        for step in sorted(self._pending):
            row = self._pending[step]
            whole = row.ranks >= len(self._readers)
            late = now - row.seen_at > _PATIENCE_SECONDS or len(self._pending) > _MAX_PENDING
            if not (whole or late or final):
                return
            del self._pending[step]
            self._done_to = step
            self._finish(row)
            yield row

    def _finish(self, row: StepRow) -> None:
        if row.losses:
            row.loss = sum(row.losses) / len(row.losses)
            row.finite = math.isfinite(row.loss)
        if len(row.backward_at) > 1:
            first = min(row.backward_at.values())
            for rank, entered in row.backward_at.items():
                now, late = self.ranks[rank], entered - first
                before = now.late_seconds
                now.late_seconds = late if before is None else 0.9 * before + 0.1 * late


def read_metrics(paths: RunPaths, ranks: int, rank: int | None = None) -> list[dict[str, Any]]:
    """All metric lines of `rank`, or of every step with values averaged over ranks.

    Rows have the keys step, rank (None for the mean), time, loss, lr, grad_norm, step_seconds.
    Non-finite values come as floats; callers that write JSON turn them into null.
    """
    keys = ("time", "loss", "lr", "grad_norm", "step_seconds")
    if rank is None:
        rows = MetricStream(paths, ranks).read(final=True)
        return [
            {"step": row.step, "rank": None, **{key: getattr(row, key) for key in keys}}
            for row in rows
        ]
    reader, found = LineReader(paths.rank_metrics(rank)), list[dict[str, Any]]()
    while lines := reader.read():
        found += [
            {"step": line["step"], "rank": rank, **{key: line.get(key) for key in keys}}
            for line in lines
            if isinstance(line.get("step"), int)
        ]
    return found


class RecentSteps:
    """Durations of the latest steps, for the median and the rate."""

    def __init__(self, size: int = 256) -> None:
        self._seconds: deque[float] = deque(maxlen=size)

    def add(self, row: StepRow) -> None:
        """Take a finished step into account."""
        if row.step_seconds is not None and row.step_seconds > 0:
            self._seconds.append(row.step_seconds)

    @property
    def median(self) -> float | None:
        """Median step time in seconds; None before the second step."""
        ordered = sorted(self._seconds)
        return ordered[len(ordered) // 2] if ordered else None
