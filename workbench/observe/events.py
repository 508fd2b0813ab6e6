"""Metric lines of all ranks, joined into one row per optimizer step (mean over ranks)."""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from workbench.observe.data_ranks import DataRanks
from workbench.observe.rewinds import last_steps, read_rewinds, rewind_of
from workbench.store.files import LineReader, parse_line, read_tail
from workbench.store.layout import RunPaths

_NUMBER = (int, float)
_BLOCK_BYTES = 1 << 16
_VALUES = ("time", "loss", "lr", "grad_norm", "step_seconds")  # of a row that `metrics` prints
_PASS = 1 << 48  # more than any step: steps of a later pass come after all before it
_PATIENCE_SECONDS = 3.0  # then a step is taken with the ranks that reported it


@dataclass(slots=True)
class StepRow:
    """One optimizer step over all ranks that reported it."""

    step: int
    time: float
    ranks: int = 0
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    """The highest of the ranks'; NaN if one's is."""
    step_seconds: float | None = None
    tokens: int | None = None
    samples: int | None = None
    finite: bool = True
    losses: dict[int, float] = field(default_factory=dict[int, float])
    """By rank, as are the next ones; seconds on this host's clock, and waited for data."""
    rates: dict[int, float] = field(default_factory=dict[int, float])
    backward_at: dict[int, float] = field(default_factory=dict[int, float])
    ended_at: dict[int, float] = field(default_factory=dict[int, float])
    data_seconds: dict[int, float] = field(default_factory=dict[int, float])
    optimizer_at: dict[int, float] = field(default_factory=dict[int, float])
    paused_seconds: dict[int, float] = field(default_factory=dict[int, float])
    """Between the steps, on checkpoints."""
    waited_seconds: dict[int, float] = field(default_factory=dict[int, float])
    """For messages of a pipeline's or ring's peers; of that, before the backward pass began:"""
    forward_waited_seconds: dict[int, float] = field(default_factory=dict[int, float])
    rank_tokens: dict[int, int] = field(default_factory=dict[int, int])
    rank_samples: dict[int, int] = field(default_factory=dict[int, int])
    memory_bytes: dict[int, int] = field(default_factory=dict[int, int])  # peak so far
    fingerprints: dict[int, int] = field(default_factory=dict[int, int])  # of the step's data
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
    rewinds: int = 0
    """How often its script went back to an earlier step."""

    @property
    def place(self) -> int:
        """Orders the steps of all passes."""
        return self.rewinds * _PASS + self.step


class MetricStream:
    """Follows the metric files of a run. Call `read` as often as wanted; it never blocks.

    Of a step that was done again only the last pass is given, where the rewind was known when the
    stream began; a rewind that happens later gives rows of steps that were given before.
    """

    def __init__(self, paths: RunPaths, ranks: int) -> None:
        self.rewinds = read_rewinds(paths)
        """Of rank 0, or of the first rank that reports a later one."""
        steps_by_rank = [last_steps(read_rewinds(paths, rank)) for rank in range(ranks)]
        self._last_steps = [min(steps) for steps in zip_longest(*steps_by_rank, fillvalue=_PASS)]
        self.ranks = {rank: RankNow() for rank in range(ranks)}
        self._readers = {rank: LineReader(paths.rank_metrics(rank)) for rank in range(ranks)}
        self._pending: dict[int, StepRow] = {}
        self._done_to = 0
        self.data = DataRanks()
        self.at_end = False  # whether the last read saw all that was written

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read each rank's file from there on; to be called before the first `read`."""
        for rank, offset in offsets.items():
            self._readers[rank] = LineReader(self._readers[rank].path, offset)

    def add_ranks(self, paths: RunPaths, ranks: int) -> None:
        """Follow more ranks, up to `ranks` in all: a script may start them itself."""
        for rank in range(len(self._readers), ranks):
            self.ranks[rank] = RankNow()
            self._readers[rank] = LineReader(paths.rank_metrics(rank))

    @property
    def begun(self) -> list[StepRow]:
        """Steps that some rank has ended and others have not, in order."""
        return [self._pending[place] for place in sorted(self._pending)]

    @property
    def lines_skipped(self) -> int:
        """Malformed lines so far."""
        return sum(reader.skipped for reader in self._readers.values())

    def read(self, *, final: bool = False, recorded: bool = False) -> list[StepRow]:
        """Rows that became complete, in step order. `final` also returns what is incomplete.

        `recorded`: no one is waited for; a row is complete when all ranks have gone beyond it.
        Always reads on from the rank that is furthest behind, so that ranks whose lines differ in
        length stay together; not `final`, it stops after so many chunks.
        """
        rows, chunks = list[StepRow](), 0
        unread = [(self.ranks[rank].place, rank) for rank in self._readers]
        heapq.heapify(unread)  # the one furthest behind first: there may be thousands
        while unread and (final or chunks < 2 * len(self._readers)):
            rank = heapq.heappop(unread)[1]
            for line in self._readers[rank].read():
                self.take(rank, line)
            chunks += 1
            if not self._readers[rank].at_end:
                heapq.heappush(unread, (self.ranks[rank].place, rank))
            passed = unread[0][0] if recorded and unread else 0
            rows += self._ready(at_end=not unread, passed=passed)
        self.at_end = not unread
        return [*rows, *self.remaining()] if final else rows

    def take(self, rank: int, line: dict[str, Any]) -> None:  # noqa: C901  (one branch a field)
        """Account for one line. The supervisor's hot path: hundreds of calls a second."""
        get = line.get
        step, ended, loss = get("step"), get("time"), get("loss")
        if type(step) is not int or not isinstance(ended, _NUMBER):
            self._readers[rank].skipped += 1
            return
        now = self.ranks[rank]
        if "rewound_from" in line:
            self._rewound(now, line)
        now.step = step
        loss = loss if isinstance(loss, _NUMBER) else None
        if loss is not None:
            now.loss = loss
        memory, norm, lr = get("memory_bytes"), get("grad_norm"), get("lr")
        if type(memory) is int:
            now.memory_bytes = memory
        place = now.rewinds * _PASS + step
        if place <= self._done_to or (self._last_steps and self._done_again(now)):
            return
        row = self._pending.get(place)
        if row is None:
            row = self._pending[place] = StepRow(step, ended, seen_at=time.monotonic())
        row.ranks += 1
        row.time = max(row.time, ended)
        row.ended_at[rank] = ended
        if loss is not None:
            row.losses[rank] = loss
        if isinstance(lr, _NUMBER):
            row.lr = row.rates[rank] = lr
        if isinstance(norm, _NUMBER):
            row.grad_norm = _higher(row.grad_norm, norm)
        seconds, entered, waited = get("step_seconds"), get("backward_at"), get("data_seconds")
        if isinstance(seconds, _NUMBER) and (
            row.step_seconds is None or seconds > row.step_seconds
        ):
            row.step_seconds = seconds
        _take_data(row, rank, line)
        _take_phases(row, rank, line)
        if isinstance(entered, _NUMBER):
            row.backward_at[rank] = entered
        if isinstance(waited, _NUMBER):
            row.data_seconds[rank] = waited

    def remaining(self) -> Iterator[StepRow]:
        """Rows of all that was taken and not given yet, complete or not."""
        return self._ready(at_end=True, final=True)

    def _rewound(self, now: RankNow, line: dict[str, Any]) -> None:
        rewind = rewind_of(line)
        if rewind is not None:
            now.rewinds += 1
            if now.rewinds > len(self.rewinds):
                self.rewinds.append(rewind)

    def _done_again(self, now: RankNow) -> bool:
        """Whether the rank's present step is known to be done again further on, by any rank."""
        steps = self._last_steps
        return now.rewinds < len(steps) and now.step > steps[now.rewinds]

    def _ready(self, *, at_end: bool, final: bool = False, passed: int = 0) -> Iterator[StepRow]:
        """Rows all ranks have reported; at the files' end also those that waited long enough."""
        now = time.monotonic()
        for place in sorted(self._pending):
            row = self._pending[place]
            patience = max(_PATIENCE_SECONDS, 3 * (row.step_seconds or 0.0))
            late = at_end and now - row.seen_at > patience
            if not (row.ranks >= len(self._readers) or late or final or place < passed):
                return
            del self._pending[place]
            self._done_to = place
            self._finish(row)
            yield row

    def _finish(self, row: StepRow) -> None:
        if row.losses:
            row.loss = sum(row.losses.values()) / len(row.losses)
            row.finite = math.isfinite(row.loss)
        self.data.add(row.fingerprints)
        row.tokens = self.data.total(row.rank_tokens)
        row.samples = self.data.total(row.rank_samples)
        if len(row.backward_at) > 1:
            first = min(row.backward_at.values())
            for rank, entered in row.backward_at.items():
                now, late = self.ranks[rank], entered - first
                before = now.late_seconds
                now.late_seconds = late if before is None else 0.9 * before + 0.1 * late


def _higher(norm: float | None, other: float) -> float:
    """Of two ranks' gradient norms; one that is no number counts as highest.

    They are equal where the ranks agree on one. Stages of a pipeline, and scripts that clip by
    their own shard, each have another.
    """
    return other if norm is None or other > norm or math.isnan(other) else norm


def _take_data(row: StepRow, rank: int, line: dict[str, Any]) -> None:
    """What the rank's data of this step were, as far as its line tells."""
    tokens, samples, batch = line.get("tokens"), line.get("samples"), line.get("batch")
    if type(tokens) is int:
        row.rank_tokens[rank] = tokens
    if type(samples) is int:
        row.rank_samples[rank] = samples
    if type(batch) is int:
        row.fingerprints[rank] = batch


_PHASES = ("optimizer_at", "paused_seconds", "waited_seconds", "forward_waited_seconds")
_BY_RANK = (*_PHASES, "memory_bytes")


def _take_phases(row: StepRow, rank: int, line: dict[str, Any]) -> None:
    for name in _BY_RANK:
        value = line.get(name)
        if isinstance(value, _NUMBER):
            getattr(row, name)[rank] = value


def recorded_rows(paths: RunPaths, ranks: int) -> Iterator[StepRow]:
    """Every step so far over all ranks, in bounded memory however many there are."""
    stream = MetricStream(paths, ranks)
    while not stream.at_end:
        yield from stream.read(recorded=True)
    yield from stream.read(final=True)


def iterate_metrics(
    paths: RunPaths, ranks: int, rank: int | None = None, tail: int | None = None
) -> Iterator[dict[str, Any]]:
    """All metric lines of `rank`, or of every step: the ranks' mean, and the highest grad_norm.

    Rows have the keys step, rank (None for the mean), time, loss, lr, grad_norm, step_seconds.
    Non-finite values come as floats; callers that write JSON turn them into null. Memory is bounded
    however long the run. The last `tail` rows alone cost no more than they are.
    """
    if tail is not None and not read_rewinds(paths, rank or 0):
        yield from deque(_rows_of_tails(paths, ranks, rank, tail), maxlen=tail)
        return
    rows = _rows_of_rank(paths, rank) if rank is not None else _means(recorded_rows(paths, ranks))
    yield from rows if tail is None else deque(rows, maxlen=tail)


def _means(rows: Iterable[StepRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {"step": row.step, "rank": None, **{key: getattr(row, key) for key in _VALUES}}


def _rows_of_rank(paths: RunPaths, rank: int) -> Iterator[dict[str, Any]]:
    reader, last = LineReader(paths.rank_metrics(rank)), last_steps(read_rewinds(paths, rank))
    while not reader.at_end:
        for line in reader.read():
            if rewind_of(line) is not None:
                last = last[1:]
            if isinstance(line.get("step"), int) and not (last and line["step"] > last[0]):
                yield _values(line, rank)


def _values(line: dict[str, Any], rank: int) -> dict[str, Any]:
    values = ((key, line.get(key)) for key in _VALUES)
    numbers = {key: value if isinstance(value, _NUMBER) else None for key, value in values}
    return {"step": line["step"], "rank": rank, **numbers}


def _rows_of_tails(
    paths: RunPaths, ranks: int, rank: int | None, count: int
) -> Iterable[dict[str, Any]]:
    """At least the last `count` rows of a run that did no step again, from its files' ends."""
    if rank is not None:
        lines = _tail_lines(paths.rank_metrics(rank), count)
        return [_values(line, rank) for line in lines if isinstance(line.get("step"), int)]
    stream = MetricStream(paths, ranks)
    for number in range(ranks):
        for line in _tail_lines(paths.rank_metrics(number), count):
            stream.take(number, line)
    return _means(stream.remaining())


def _tail_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """At least the last `count` lines, where there are as many."""
    size, budget = os.lstat(path).st_size if path.exists() else 0, _BLOCK_BYTES
    while len(lines := last_rows(path, budget)) < count and budget < size:
        budget *= 2
    return lines


def read_metrics(paths: RunPaths, ranks: int, rank: int | None = None) -> list[dict[str, Any]]:
    """What `iterate_metrics` gives, as a list."""
    return list(iterate_metrics(paths, ranks, rank))


def metric_bytes(paths: RunPaths, ranks: int) -> int:
    """Size of all metric files: what reading the whole history would cost."""
    total = 0
    for rank in range(ranks):
        with contextlib.suppress(OSError):
            total += os.lstat(paths.rank_metrics(rank)).st_size
    return total


def last_rows(path: Path, max_bytes: int = _BLOCK_BYTES) -> list[dict[str, Any]]:
    """The whole lines at the end of a metric file, oldest first; reads no more than `max_bytes`."""
    lines = read_tail(path, max_bytes).splitlines()
    rows = (parse_line(line.encode(errors="replace"))[0] for line in lines)
    return [row for row in rows if row is not None]
