"""A run on a simulated clock: attempts, work, checkpoints, restarts, and the machines it rents.

Pure: the same plan and the same interruptions give the same schedule. Times are seconds after the
machines were rented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from workbench.estimate.cost.run_cost import RunCost
from workbench.rehearsing.interruptions import (
    ECC,
    HOST,
    LOST,
    SPOT,
    THROTTLE,
    TRACE,
    Event,
)

THROTTLE_SECONDS = 1800.0
"""How long an overheated GPU stays slow."""
THROTTLED_CLOCK = 0.55
"""Its clock over the usual one; all ranks wait for it."""
STALL_SECONDS = 60.0
"""So long a job with a failed GPU stands still before it is ended; part of the restart, and at most
half of it."""
_MOST_TIMES = 20.0  # the planned time: beyond that it never ends
_MOST_FRUITLESS = 2000  # attempts in a row that save nothing: it never ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done, in the terms of the plan."""

    steps: int
    """Optimizer steps."""
    step_seconds: float
    """One of them as a rank measures it."""
    seconds_per_step: float
    """The same with the plan's shares of evaluation and of attempts that are thrown away."""
    interval_steps: int
    """From one checkpoint to the next."""
    saving_seconds: float
    """What a checkpoint holds the training up."""
    start_seconds: float
    """From renting the machines to the first step."""
    restart_seconds: float
    """From an interruption to the next step, a new machine included."""
    nodes: int
    """Machines."""
    gpus: int
    """Of all machines."""
    limit_seconds: float
    """A run that takes longer has failed."""

    @classmethod
    def of(cls, cost: RunCost) -> Work:
        """The work of a bill."""
        job, plan, hours = cost.job, cost.job.plan, cost.hours
        each = job.step_seconds * (1 + plan.evaluation_share + plan.failed_share)
        planned = max(1.0, 3600 * hours.wall)
        return cls(
            steps=job.steps,
            step_seconds=job.step_seconds,
            seconds_per_step=each,
            interval_steps=min(job.steps, max(1, round(hours.interval_seconds / each))),
            saving_seconds=plan.saving_seconds(job.nodes),
            start_seconds=plan.start_seconds,
            restart_seconds=plan.restart_seconds,
            nodes=job.nodes,
            gpus=job.gpus,
            limit_seconds=_MOST_TIMES * planned,
        )

    def node(self, gpu: int) -> int:
        """The machine of a GPU."""
        return min(gpu // max(1, self.gpus // self.nodes), self.nodes - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowInterval:
    """A time in which one GPU is throttled."""

    begin: float
    end: float
    gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one attempt."""

    kind: str
    """setup, work, save or stalled."""
    begin: float
    """Seconds."""
    end: float
    """Seconds."""
    first_step: int
    """Steps done at its begin."""
    last_step: int
    """Steps done at its end."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """From a start of the ranks to their end."""

    number: int
    """Counted from 1."""
    begin: float
    """When its machines were asked for."""
    first_step: int
    """Of the checkpoint that it continues from."""
    why: str | None
    """What made it necessary; None = the first."""
    end: float = 0.0
    """When the last of it was over."""
    last_step: int = 0
    """The furthest step, saved or not."""
    message: str = ""
    """How it ended."""
    event: Event | None = None
    """What ended it; None = it was done."""
    segments: list[Segment] = field(default_factory=list[Segment])
    """In order, without gaps."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """A machine from its first paid second to its last."""

    node: int
    """Its place in the job."""
    begin: float
    """Seconds."""
    end: float
    """Seconds."""
    why: str = "returned"
    """returned, taken (by its provider) or failed."""

    def changes(self) -> tuple[tuple[float, str, dict[str, object]], ...]:
        """When it is rented and released, as a journal tells it."""
        more: dict[str, object] = {"node": self.node, "why": self.why}
        return (self.end, "released", more), (self.begin, "rented", {"node": self.node})


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All that happens in a rehearsed run."""

    work: Work
    """What was to be done."""
    attempts: Sequence[Attempt]
    """In order."""
    leases: Sequence[Lease]
    """In the order of their begin."""
    slow: Sequence[SlowInterval]
    """Throttled GPUs."""
    saved: Sequence[tuple[float, int]]
    """(seconds, step) of each checkpoint."""
    end: float
    """When the run ended; idle machines may be paid for longer."""
    finished: bool
    """Whether all steps were done."""

    def step_end(self, segment: Segment, step: int) -> float:
        """When a step of a stretch of work was done."""
        work = (step - segment.first_step) * self.work.seconds_per_step
        return Pace(self.slow).end(segment.begin, work)

    def step_at(self, segment: Segment, at: float) -> int:
        """Steps that are done at a moment of a stretch."""
        if segment.kind != "work":
            return segment.first_step if at < segment.end else segment.last_step
        done = Pace(self.slow).done(segment.begin, min(at, segment.end))
        steps = segment.first_step + int(done / self.work.seconds_per_step + 1e-6)
        return min(segment.last_step, steps)


class Pace:
    """Work at full speed as seconds on the clock, throttled GPUs counted in."""

    def __init__(self, slow: Sequence[SlowInterval]) -> None:
        edges = sorted({edge for slowdown in slow for edge in (slowdown.begin, slowdown.end)})
        self._edges = [*edges, float("inf")]
        self._slow = slow

    def rate(self, at: float) -> float:
        """Work per second at a moment."""
        return (
            THROTTLED_CLOCK
            if any(slowdown.begin <= at < slowdown.end for slowdown in self._slow)
            else 1.0
        )

    def end(self, begin: float, work: float) -> float:
        """When `work` seconds of full speed are done that began at `begin`."""
        at, left = begin, work
        for edge in self._edges:
            if edge <= at:
                continue
            rate = self.rate(at)
            if left <= (edge - at) * rate:
                return at + left / rate
            left -= (edge - at) * rate
            at = edge
        return at

    def done(self, begin: float, end: float) -> float:
        """Seconds of full speed between two moments."""
        at, total = begin, 0.0
        for edge in self._edges:
            upto = min(edge, end)
            if upto > at:
                total += (upto - at) * self.rate(at)
                at = upto
        return total


class _Clock:
    """Plays attempts one after the other."""

    def __init__(self, work: Work, events: Iterable[Event], faults: Sequence[Event]) -> None:
        self.work = work
        self.slow = tuple(
            SlowInterval(begin=fault.at, end=fault.at + THROTTLE_SECONDS, gpu=fault.gpu)
            for fault in faults
            if fault.cause == THROTTLE
        )
        self.pace = Pace(self.slow)
        stopping = sorted(
            (fault for fault in faults if fault.cause != THROTTLE), key=lambda event: event.at
        )
        self._events = _merged(iter(events), iter(stopping))
        self._next = next(self._events, None)
        self.leases = [Lease(node=node, begin=0.0, end=0.0) for node in range(work.nodes)]
        self._renting = list(self.leases)
        self.saved: list[tuple[float, int]] = []
        self.attempts: list[Attempt] = []

    def play(self) -> bool:
        """Attempts until all steps are done and saved; False where it takes too long."""
        at, step, why, fruitless = 0.0, 0, None, 0
        while True:
            saved = len(self.saved)
            number = len(self.attempts) + 1
            attempt = Attempt(number=number, begin=at, first_step=step, why=why)
            self.attempts.append(attempt)
            self._run_attempt(attempt)
            fruitless = fruitless + 1 if len(self.saved) == saved else 0
            hopeless = attempt.end > self.work.limit_seconds or fruitless >= _MOST_FRUITLESS
            if attempt.event is None or hopeless:
                break
            at, why = attempt.end, attempt.message
            step = self.saved[-1][1] if self.saved else 0
        for lease in self._renting:
            lease.end = attempt.end
        return attempt.event is None

    def _run_attempt(self, attempt: Attempt) -> None:
        """One attempt to its end: its steps done, or an event."""
        work, stop = self.work, self._next
        until = float("inf") if stop is None else max(stop.at, attempt.begin)
        at, step = attempt.begin, attempt.first_step
        for kind, seconds, gained in self._parts(attempt):
            end = self.pace.end(at, seconds) if kind == "work" else at + seconds
            cut = end > until
            if cut:
                end = until
                done = self.pace.done(at, end) if kind == "work" else 0.0
                gained = min(gained, int(done / work.seconds_per_step + 1e-9))  # noqa: PLW2901
            attempt.segments.append(
                Segment(kind=kind, begin=at, end=end, first_step=step, last_step=step + gained)
            )
            at, step = end, step + gained
            if cut:
                assert stop is not None
                at = self._interrupt(attempt, stop, at, step)
                break
            if kind == "save":
                self.saved.append((at, step))
        attempt.end, attempt.last_step = at, step
        attempt.message = attempt.message or "All steps were done."

    def _parts(self, attempt: Attempt) -> Iterator[tuple[str, float, int]]:
        """(kind, seconds of full speed, steps) of an attempt that nothing ends."""
        work, step = self.work, attempt.first_step
        setup = work.start_seconds
        if attempt.number > 1:
            stalled = self.attempts[-2].segments[-1]
            waited = stalled.end - stalled.begin if stalled.kind == "stalled" else 0.0
            setup = work.restart_seconds - waited
        yield "setup", setup, 0
        while step < work.steps:
            steps = min(work.interval_steps, work.steps - step)
            yield "work", steps * work.seconds_per_step, steps
            yield "save", work.saving_seconds, 0
            step += steps

    def _interrupt(self, attempt: Attempt, event: Event, at: float, step: int) -> float:
        """Note what ended an attempt; returns when its ranks are ended."""
        node = self.work.node(event.gpu)
        attempt.event, attempt.message = event, message_of(event, self.work)
        lease = self._renting[node]
        lease.end, lease.why = at, "taken" if event.cause in {SPOT, TRACE} else "failed"
        self._renting[node] = Lease(node=node, begin=at, end=at)
        self.leases.append(self._renting[node])
        self._next = next(self._events, None)
        if event.cause not in {LOST, ECC}:
            return at
        end = at + min(STALL_SECONDS, self.work.restart_seconds / 2)
        attempt.segments.append(
            Segment(kind="stalled", begin=at, end=end, first_step=step, last_step=step)
        )
        return end


def _merged(first: Iterator[Event], second: Iterator[Event]) -> Iterator[Event]:
    """Both, by time; the first may be endless."""
    event, two = next(first, None), next(second, None)
    while event is not None or two is not None:
        if two is None or (event is not None and event.at <= two.at):
            assert event is not None
            yield event
            event = next(first, None)
        else:
            yield two
            two = next(second, None)


def message_of(event: Event, work: Work) -> str:
    """What ended an attempt, as a sentence; a GPU has its number on its machine."""
    machine = f"machine {work.node(event.gpu)}" if work.nodes > 1 else "the machine"
    gpu = f"GPU {event.gpu % (work.gpus // work.nodes)} of {machine}"
    return {
        SPOT: f"Its provider took {machine} away (spot).",
        TRACE: f"The trace took {machine} away.",
        LOST: f"{gpu} fell off the bus (Xid 79).",
        ECC: f"{gpu} had an uncorrectable memory error (Xid 48).",
        HOST: f"Host, network or software of {machine} failed.",
    }[event.cause].replace("Its provider took the", "The provider took the")


def schedule(work: Work, events: Iterable[Event], faults: Sequence[Event] = ()) -> Schedule:
    """Play the work against interruptions.

    Args:
        work: What is to be done.
        events: Interruptions in the order of their times, with or without an end.
        faults: What was asked for besides them; a throttled GPU slows the job for half an hour.
    """
    clock = _Clock(work, events, faults)
    finished = clock.play()
    return Schedule(
        work=work,
        attempts=clock.attempts,
        leases=clock.leases,
        slow=clock.slow,
        saved=clock.saved,
        end=clock.attempts[-1].end,
        finished=finished,
    )
