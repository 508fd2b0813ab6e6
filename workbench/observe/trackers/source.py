"""Reads the run directory on from where a tracker was left: points and notes not yet fed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from workbench.describe.hardware import with_parts
from workbench.observe.events import MetricStream, StepRow
from workbench.observe.rank_count import rank_count
from workbench.observe.rewinds import read_rewinds
from workbench.observe.text_samples import named_values
from workbench.observe.trackers.points import Note, Point, TrackerNames, numbers
from workbench.observe.trackers.progress import Progress
from workbench.store.files import LineReader
from workbench.store.findings import Finding, read_findings
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

_SYSTEM = (
    *("cpu_percent", "memory_used_bytes", "run_rss_bytes", "run_cpu_percent"),
    *("disk_free_bytes", "net_bytes_per_second"),
)
_GPU = ("util", "memory_bytes", "temperature_c", "power_w", "sm_clock_mhz")


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one reading found, in the order of each axis."""

    points: list[Point] = field(default_factory=list[Point])
    """Steps and samples."""
    notes: list[Note] = field(default_factory=list[Note])
    """Findings."""
    at_end: bool = False
    """Whether that is all that was written so far."""


class Source:
    """Follows the files of one run for one tracker, and moves its `Progress` on as it reads."""

    def __init__(self, paths: RunPaths, run: RunRecord, progress: Progress) -> None:
        self._paths = paths
        self._progress = progress
        self._run = run
        self._attempts = LineReader(paths.attempts)
        self._starts: list[tuple[int, int, float]] = []  # attempt, steps kept, Unix seconds
        self._system, self._samples = LineReader(paths.system), 0
        ranks = range(rank_count(paths, run.processes))
        self._may_grow = run.processes == 1
        self._stream = MetricStream(paths, len(ranks))
        self._memory = [_Memory(LineReader(paths.rank_metrics(rank))) for rank in ranks]
        self._user_metrics = [_UserMetrics(paths, rank) for rank in ranks]
        self._passed_over = False

    def new_attempt(self) -> bool:
        """Whether the run has gone on from a checkpoint: what was just read may be torn."""
        for line in self._attempts.read():
            if line.get("event") == "start" and type(line.get("attempt")) is int:
                first_step, begun = line.get("first_step"), line.get("time")
                self._starts.append(
                    (
                        line["attempt"],
                        first_step if type(first_step) is int else 0,
                        float(begun) if isinstance(begun, int | float) else time.time(),
                    )
                )
        return any(attempt > self._progress.attempt for attempt, _, _ in self._starts)

    def went_back(self) -> bool:
        """Whether it did so within an attempt: what was fed of some steps is done again."""
        return len(self._stream.rewinds) > self._progress.rewinds

    def taken_back(self) -> int | None:
        """The step to which new attempts, or the script itself, took the run back; None without.

        It is settled in the progress; a new Source continues from there.
        """
        if not (self.new_attempt() or self.went_back()):
            return None
        new = [start for start in self._starts if start[0] > self._progress.attempt]
        rewinds = self._stream.rewinds[self._progress.rewinds :]
        returns = [(step, begun) for _, step, begun in new]
        returns += [(rewind.first - 1, rewind.time) for rewind in rewinds]
        self._progress.attempt = max([self._progress.attempt, *(attempt for attempt, *_ in new)])
        self._progress.rewinds = len(read_rewinds(self._paths) if new else self._stream.rewinds)
        back_to = min([self._progress.step, *(step for step, _ in returns)])
        begun = min(begun for _, begun in returns)
        for rank, fed in self._progress.said.items():
            left = _UserMetrics(self._paths, int(rank)).count_before(begun)
            self._progress.said[rank] = min(fed, left)
        self._progress.step = back_to
        self._progress.ended_at = None
        return back_to

    def _add_spawned_ranks(self) -> None:
        """Those that the script has started since, and that have written a step."""
        ranks = len(self._memory)
        while self._paths.rank_metrics(ranks).exists():
            self._memory.append(_Memory(LineReader(self._paths.rank_metrics(ranks))))
            self._user_metrics.append(_UserMetrics(self._paths, ranks))
            ranks += 1
        self._stream.add_ranks(self._paths, ranks)

    def read(self, *, final: bool = False) -> Batch:
        """The next part, bounded. `final`: the run has ended, incomplete steps are complete."""
        if self._may_grow:
            self._add_spawned_ranks()
        rows = self._stream.read()
        at_end = self._stream.at_end
        if final and at_end:
            rows += self._stream.read(final=True)
        batch = Batch(points=[point for row in rows if (point := self._step_point(row))])
        newest = max((rank.step for rank in self._stream.ranks.values()), default=0)
        for metrics in self._user_metrics:
            batch.points += metrics.read(self._progress, newest, everything=final and at_end)
        batch.points += self._system_points()
        batch.at_end = (
            at_end
            and self._system.at_end
            and all(metrics.reader.at_end for metrics in self._user_metrics)
        )
        batch.notes = list(self._findings())
        return batch

    def _step_point(self, row: StepRow) -> Point | None:
        """A step's numbers; None for one that was fed."""
        if row.step <= self._progress.step:
            return None
        if not self._passed_over:
            self._passed_over = True
            for memory in self._memory:
                memory.changed_by(self._progress.step)
        seconds, tokens = row.step_seconds, row.tokens or self._run.tokens_at(row.time)
        waited = list(row.data_seconds.values())
        values: dict[str, Any] = {
            "loss": row.loss,
            "lr": row.lr,
            "grad_norm": row.grad_norm,
            "step_seconds": seconds,
            "tokens_per_second": tokens / seconds if tokens and seconds else None,
            "samples_per_second": row.samples / seconds if row.samples and seconds else None,
            "data_share": sum(waited) / len(waited) / seconds if waited and seconds else None,
        }
        for rank, memory in enumerate(self._memory):
            values[f"memory_bytes/rank-{rank}"] = memory.changed_by(row.step)
        self._progress.step = row.step
        return Point(
            axis="steps", at=row.step, time=row.time, key=f"step-{row.step}", values=numbers(values)
        )

    def _system_points(self) -> Iterator[Point]:
        for line in self._system.read():
            self._samples += 1
            if self._samples <= self._progress.samples:
                continue
            self._progress.samples = self._samples
            values = {f"system/{name}": line.get(name) for name in _SYSTEM}
            gpus = line.get("gpus")
            documents = cast("list[Any]", gpus) if isinstance(gpus, list) else []
            cards = [cast("dict[str, Any]", gpu) for gpu in documents if _has_index(gpu)]
            for index, part, card in with_parts(cards):
                # A second slice of a card is another device; a name with ":" is no tracker's.
                prefix = f"system/gpu{index}" + (f"_slice{part}" if part else "")
                values |= {f"{prefix}/{name}": card.get(name) for name in _GPU}
            at, metrics = line.get("time"), numbers(values)
            if metrics and isinstance(at, int | float):
                key = f"system-{self._samples}"
                yield Point(axis="system", at=self._samples, time=at, key=key, values=metrics)

    def _findings(self) -> Iterator[Note]:
        """Findings not yet fed, and those that have gone since."""
        for finding in read_findings(self._paths) or []:
            note = finding_note(finding)
            if note.key not in self._progress.notes:
                self._progress.notes.append(note.key)
                yield note


def finding_note(finding: Finding) -> Note:
    """A finding as text. One that has gone is another note than the same one standing."""
    rank, kind, cleared = finding.rank, finding.kind, finding.cleared_at
    title = kind if rank is None else f"{kind} on rank {rank}"
    over = "gone" if finding.replaced_by is None else f"replaced by {finding.replaced_by}"
    when = finding.seen_at if cleared is None else cleared
    return Note(
        key=f"{kind}/{rank}/{finding.seen_at}" + ("" if cleared is None else "/gone"),
        title=title if cleared is None else f"{title}: {over}",
        text=" ".join(filter(None, (finding.evidence, finding.cause, finding.next))),
        level=finding.severity if cleared is None else "note",
        step=finding.step or 0,
        time=time.time() if when is None else when,
    )


def _has_index(gpu: object) -> bool:
    return isinstance(gpu, dict) and type(cast("dict[str, Any]", gpu).get("index")) is int


class _Memory:
    """A rank's peak memory so far, told only where it changes."""

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._step = 0
        self._bytes: int | None = None
        self._changes: deque[tuple[int, int]] = deque()

    def changed_by(self, step: int) -> int | None:
        """The peak if it has changed up to `step` since the last call."""
        while self._step < step:
            lines = self._reader.read()
            for line in lines:
                self._take(line)
            if not lines and self._reader.at_end:
                break
        peak = None
        while self._changes and self._changes[0][0] <= step:
            peak = self._changes.popleft()[1]
        return peak

    def _take(self, line: dict[str, Any]) -> None:
        step, peak = line.get("step"), line.get("memory_bytes")
        if type(step) is int:
            self._step = max(self._step, step)
            if type(peak) is int and peak != self._bytes:
                self._bytes = peak
                self._changes.append((step, peak))


class _UserMetrics:
    """What one rank told by ``workbench.log``; a line waits until its step has been fed."""

    def __init__(self, paths: RunPaths, rank: int) -> None:
        self.reader = LineReader(paths.rank_said(rank))
        self._rewinds = read_rewinds(paths, rank)
        self._rank, self._names = rank, TrackerNames("said/", rank)
        self._count = 0
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()

    def count_before(self, at: float) -> int:
        """Lines told before that Unix second."""
        count = 0
        while lines := self.reader.read():
            for line in lines:
                told_at = line.get("time")
                if isinstance(told_at, int | float) and told_at >= at:
                    return count
                count += 1
        return count

    def read(self, progress: Progress, newest: int, *, everything: bool) -> Iterator[Point]:
        """Points due now. `newest`: the furthest step that any rank has reported."""
        for line in self.reader.read():
            self._count += 1
            for name in numbers(named_values(line), clean=str):
                self._names.of(name)
            new = self._count > progress.said.get(str(self._rank), 0)
            if new and not self._is_done_again(line):
                self._waiting.append((self._count, line))
        while self._waiting:
            number, line = self._waiting[0]
            step, at = line.get("step"), line.get("time")
            step = step if type(step) is int and step >= 0 else progress.step
            if progress.step < step <= newest and not everything:
                return
            self._waiting.popleft()
            progress.said[str(self._rank)] = number
            yield self._point(number, step, at, line)

    def _is_done_again(self, line: dict[str, Any]) -> bool:
        """Whether it was told at a step that the script has made again since."""
        step, at = line.get("step"), line.get("time")
        if type(step) is not int or not isinstance(at, int | float):
            return False
        return any(
            rewind.first <= step <= rewind.last and at < rewind.time for rewind in self._rewinds
        )

    def _point(self, number: int, step: int, at: Any, line: dict[str, Any]) -> Point:
        return Point(
            axis="steps",
            at=step,
            time=float(at) if isinstance(at, int | float) else time.time(),
            key=f"said-{self._rank}-{number}",
            values=numbers(named_values(line), clean=self._names.of),
        )
