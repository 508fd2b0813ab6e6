"""Plays a schedule into a run directory, as fast as it computes or at a speed to watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import final

from workbench.observe.events import StepRow
from workbench.observe.report import write_report
from workbench.observe.rows import keep_row
from workbench.rehearsing.bill import Bill
from workbench.rehearsing.cards import Cards
from workbench.rehearsing.interruptions import ECC, LOST
from workbench.rehearsing.journal import Journal
from workbench.rehearsing.metric_files import MetricFiles
from workbench.rehearsing.schedule import THROTTLED_CLOCK, Attempt, Schedule, Segment
from workbench.rehearsing.watching import Watcher
from workbench.store.files import append_line, write_json_atomic
from workbench.store.schema import ExitDoc
from workbench.units import format_seconds

_LOOKS = 600  # of a run that is played as fast as it computes; the rules take every tenth
_RULES = 10
_LEAST_SECONDS = 2.0  # between two looks, on the run's clock
_LOOK_SECONDS = 0.5  # on the host's clock, for people
_WRITE_SECONDS = 1.0
_FAST_WRITE_SECONDS = 5.0
_CLOSE = (180.0, 4.0)  # after a fault: for so long, and so far apart
_MOST_STEPS = 3  # recorded at a look; of more the last

Wait = Callable[[float], None]


@final
@dataclass(slots=True, kw_only=True)
class Player:
    """One rehearsal; `play` it once."""

    plan: Schedule
    bill: Bill
    cards: Cards
    journal: Journal
    metrics: MetricFiles
    watcher: Watcher
    speed: float | None
    """Seconds of the run per second of the host; None = as fast as it computes."""
    clock: Callable[[], float] = time.monotonic
    wait: Wait = time.sleep
    _looked: int = 0
    _begun: float = 0.0
    _written: float = float("-inf")
    _told: float = -1.0
    _renting: int = 0
    _changes: list[tuple[float, str, dict[str, object]]] = field(init=False)
    _saved: int = 0
    _step: int = 0
    _now: float = 0.0
    _stopped: bool = False

    def __post_init__(self) -> None:
        """Put in order when machines come and go: of one moment, first those that go."""
        changes = [change for lease in self.plan.leases for change in lease.changes()]
        self._changes = sorted(changes, key=lambda change: (change[0], change[1] == "rented"))

    def play(self) -> ExitDoc:
        """Play to the end, or until someone asks for a stop; returns how it ended."""
        self._begun = self.clock()
        attempt = self.plan.attempts[0]
        for attempt in self.plan.attempts:
            self._begin(attempt)
            for at, segment, close in self._looks(attempt):
                if self._stop_asked(at):
                    break
                self._looked += 1
                self._look(attempt, segment, at, close=close)
            message = "The rehearsal was stopped." if self._stopped else attempt.message
            self.journal.end(attempt, self._now, self._step, message)
            if self._stopped:
                break
            if attempt.event is not None:
                event, step = attempt.event, attempt.last_step
                more = {"why": event.cause, "gpu": event.gpu, "step": step}
                self.journal.event(event.at, "interrupted", **more)
        return self._finish(attempt)

    def _begin(self, attempt: Attempt) -> None:
        if attempt.number > 1:
            self.metrics.go_back(attempt.first_step, attempt.number - 1)
            self.watcher.begin_attempt(attempt.begin)
        self.journal.begin(attempt)
        self._step = attempt.first_step
        why = f": {attempt.why}" if attempt.why else ""
        text = f"[rehearsal] attempt {attempt.number} from step {attempt.first_step}{why}"
        append_line(self.journal.paths.rank_log(0), text.encode())

    def _looks(self, attempt: Attempt) -> Iterator[tuple[float, Segment, bool]]:
        """When to look at an attempt, at which stretch of it, and whether closely."""
        spacing = self.plan.end / _LOOKS if self.speed is None else _LOOK_SECONDS * self.speed
        spacing = max(_LEAST_SECONDS, spacing)
        times = {attempt.end}
        first = int(attempt.begin // spacing) + 1
        times |= {number * spacing for number in range(first, int(attempt.end // spacing) + 1)}
        close = {
            begin + number * _CLOSE[1]
            for begin in self._close_looks(attempt)
            for number in range(int(_CLOSE[0] / _CLOSE[1]))
        }
        times |= close
        segments = iter(attempt.segments)
        segment = next(segments)
        for at in sorted(moment for moment in times if attempt.begin < moment <= attempt.end):
            while at > segment.end:
                segment = next(segments)
            yield at, segment, at in close or (self.speed is not None and not self._lasts(at))

    def _close_looks(self, attempt: Attempt) -> Iterator[float]:
        """Moments after which the hardware is worth a closer look."""
        for slowdown in self.plan.slow:
            yield from (slowdown.begin - _CLOSE[0] + 1, slowdown.begin, slowdown.end)
        event = attempt.event
        if event is not None and event.cause in {LOST, ECC}:
            yield from (event.at - 60.0, event.at + 0.1)

    def _lasts(self, at: float) -> bool:
        """Whether a fault goes on between two closer looks.

        The rules, which count a minute's readings, are not asked then: too few are taken.
        """
        return any(slow.begin + _CLOSE[0] <= at < slow.end for slow in self.plan.slow)

    def _stop_asked(self, at: float) -> bool:
        """Wait until the moment has come; whether someone asked for a stop meanwhile."""
        control = self.journal.paths.control
        stop_files = [control / name for name in ("stop", "stop-now", "preempt")]
        while not (self._stopped or any(path.exists() for path in stop_files)):
            left = 0.0
            if self.speed is not None:
                left = self._begun + at / self.speed - self.clock()
            if left <= 0:
                return False
            self.wait(min(left, _LOOK_SECONDS))
            self._write_sometimes()
        self._stopped = True
        return True

    def _look(self, attempt: Attempt, segment: Segment, at: float, *, close: bool) -> None:
        self._now = at
        states = self.cards.state(attempt, segment, at)
        self._events(at)
        self.watcher.sample(at, states)
        self._record_steps(attempt, segment, at)
        if close or (self._looked % _RULES == 0 and not self._lasts(at)):
            self.watcher.look(at, attempt.number, states)
        self._write_sometimes(attempt.number)

    def _events(self, at: float) -> None:
        """Machines and checkpoints since the look before."""
        while self._renting < len(self._changes) and self._changes[self._renting][0] <= at:
            when, event, more = self._changes[self._renting]
            self.journal.event(when, event, **more)
            self._renting += 1
        for slow in self.plan.slow:
            if self._told < slow.begin <= at:
                self.journal.event(slow.begin, "throttled", gpu=slow.gpu)
        self._told = at
        seconds = self.plan.work.saving_seconds
        while self._saved < len(self.plan.saved) and self.plan.saved[self._saved][0] <= at:
            when, step = self.plan.saved[self._saved]
            self.journal.event(when, "saved", step=step, seconds=seconds)
            self.watcher.saved(when, step)
            self._saved += 1

    def _record_steps(self, attempt: Attempt, segment: Segment, at: float) -> None:
        """Steps since the look before: some of them all, of many the last."""
        done = self.plan.step_at(segment, at)
        if done <= self._step:
            return
        first = self._step + 1 if done - self._step <= _MOST_STEPS else done
        rows = [
            self._row(step, own_segment)
            for step in range(first, done + 1)
            if (own_segment := _segment_of(attempt, step)) is not None
        ]
        self._step = done
        self.watcher.rows(rows)

    def _row(self, step: int, segment: Segment) -> StepRow:
        end, usual = self.plan.step_end(segment, step), self.plan.work.step_seconds
        hot = frozenset(
            slowdown.gpu for slowdown in self.plan.slow if slowdown.begin <= end < slowdown.end
        )
        took = usual / THROTTLED_CLOCK if hot else usual
        return self.metrics.add(step, end, took, usual, hot)

    def _write_sometimes(self, attempt: int | None = None) -> None:
        now = self.clock()
        if now - self._written < (_FAST_WRITE_SECONDS if self.speed is None else _WRITE_SECONDS):
            return
        self._written = now
        attempts = self.journal.attempts
        number = attempt or (attempts[-1]["attempt"] if attempts else 1)
        self.journal.state("running", number)
        if self.speed is not None:
            self.metrics.flush()
        self.watcher.usd = self.bill.usd(self.plan, self._now)
        self.watcher.write(self._now, "running", number)

    def _finish(self, attempt: Attempt) -> ExitDoc:
        """View, report and row of the whole run, exit.json last."""
        plan, at, paths = self.plan, self._now, self.journal.paths
        outcome, text = self._outcome()
        self.metrics.flush()
        if self._stopped:
            self.watcher.usd = self.bill.usd(plan, at)
            for lease in plan.leases:
                if lease.begin <= at < lease.end:
                    self.journal.event(at, "released", node=lease.node, why="returned")
        else:
            self.journal.event(plan.end, "finished", step=attempt.last_step)
            self.watcher.usd = self.bill.usd(plan)
        self.watcher.end(outcome)
        end = self.journal.ending(outcome, text, at)
        self.journal.message = end["message"]
        self.journal.state("ended", attempt.number)
        self.watcher.write(at, "ended", attempt.number, end)
        write_report(paths, end)
        write_json_atomic(paths.exit, end)
        keep_row(paths)
        return end

    def _outcome(self) -> tuple[str, str]:
        if self._stopped:
            return "stopped", f"It was stopped after {format_seconds(self._now)} of the run."
        if not self.plan.finished:
            took = format_seconds(self.plan.end)
            return "failed", f"Interruptions came too often: it had not ended after {took}."
        again = len(self.plan.attempts) - 1
        return "succeeded", (
            f"The planned run ended after {format_seconds(self.plan.end)} and {again} "
            f"interruption{'' if again == 1 else 's'}."
        )


def _segment_of(attempt: Attempt, step: int) -> Segment | None:
    """The stretch of work that a step ended in."""
    work = takewhile(lambda segment: segment.first_step < step, attempt.segments)
    return next((segment for segment in reversed(list(work)) if segment.last_step >= step), None)
