"""A pipeline's step placed in time: every pass with its start and end, by event simulation.

A pass starts when its rank is free and its input has arrived: a forward pass waits for the part of
the model before it, a backward pass for the part after it, `transfer_seconds` later when that is on
another rank (sends do not hold up the sender). Equal stages give the closed forms of
`pipeline_seconds`, which tests/estimate/test_pipeline.py checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.estimate.pipeline.engine import run, wiring
from workbench.estimate.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, Schedule

Seconds = float | Sequence[float]
"""One number for every rank, one per rank, or one per part of the model (ranks x chunks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPass:
    """One pass with its place in time."""

    rank: int
    """Pipeline rank, 0 = the one with the embedding."""
    kind: str
    """F, B or W, as in `Operation`."""
    chunk: int
    """Which of the rank's chunks."""
    micro_batch: int
    """From 0."""
    start_seconds: float
    """From the beginning of the step."""
    end_seconds: float
    """When its result leaves the rank."""

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """One step of a pipeline, placed in time."""

    schedule: Schedule
    """What was run."""
    ranks: tuple[tuple[ScheduledPass, ...], ...]
    """For each rank its passes in order."""
    transfer_seconds: float
    """From one rank to the next, per micro-batch."""

    @property
    def total_seconds(self) -> float:
        """From the first pass to the end of the last."""
        return max(passes[-1].end_seconds for passes in self.ranks)

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Each rank's work."""
        return tuple(math.fsum(placed.seconds for placed in passes) for passes in self.ranks)

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Each rank's waiting, the time before its first and after its last pass included."""
        total = self.total_seconds
        return tuple(total - busy for busy in self.busy_seconds)

    @property
    def bubble_seconds(self) -> float:
        """What the busiest rank waits: the step less the time that no schedule can go below."""
        return self.total_seconds - max(self.busy_seconds)

    @property
    def bubble_of_ideal(self) -> float:
        """The bubble over the busiest rank's work: (p - 1)/m for equal stages with 1F1B."""
        return _share(self.bubble_seconds, max(self.busy_seconds))

    @property
    def bubble_of_wall(self) -> float:
        """The bubble over the step's time: (p - 1)/(m + p - 1) for equal stages with 1F1B."""
        return _share(self.bubble_seconds, self.total_seconds)

    def in_flight(self, rank: int) -> tuple[tuple[float, float], ...]:
        """(time, micro-batches whose activations `rank` holds from then on), in whole stages.

        Held from the start of the forward pass to the end of the last pass that reads them: the
        backward pass, or the weights' where that is a pass of its own.
        """
        last = WEIGHT if self.schedule.splits_backward else BACKWARD
        chunks_in_flight, steps = 0, list[tuple[float, float]]()
        for placed in self.ranks[rank]:
            if placed.kind == FORWARD:
                chunks_in_flight += 1
                steps.append(
                    (placed.start_seconds, chunks_in_flight / self.schedule.virtual_stages)
                )
            elif placed.kind == last:
                chunks_in_flight -= 1
                steps.append((placed.end_seconds, chunks_in_flight / self.schedule.virtual_stages))
        return tuple(steps)

    @property
    def peak_in_flight(self) -> tuple[float, ...]:
        """For each rank the most micro-batches whose activations it holds, in whole stages."""
        return tuple(
            max(count for _, count in self.in_flight(rank)) for rank in range(len(self.ranks))
        )

    @property
    def critical_path(self) -> tuple[ScheduledPass, ...]:
        """The chain of passes, each waiting for the one before, that ends with the step."""
        by_pass = {
            (placed.kind, self._part(placed), placed.micro_batch): (placed, index)
            for passes in self.ranks
            for index, placed in enumerate(passes)
        }
        placed = max((passes[-1] for passes in self.ranks), key=lambda last: last.end_seconds)
        path = [placed]
        while True:
            _, index = by_pass[placed.kind, self._part(placed), placed.micro_batch]
            before = self.ranks[placed.rank][index - 1] if index else None
            if before is None or before.end_seconds != placed.start_seconds:
                need = self._need(placed)
                if need is None:
                    return tuple(reversed(path))
                before, _ = by_pass[need]
            path.append(before)
            placed = before

    def _part(self, placed: ScheduledPass) -> int:
        """Which part of the model a pass runs through."""
        return placed.chunk * len(self.ranks) + placed.rank

    def _need(self, placed: ScheduledPass) -> tuple[str, int, int] | None:
        """The pass whose result `placed` reads; None for the first part's forward pass."""
        part, last = self._part(placed), len(self.ranks) * self.schedule.virtual_stages - 1
        if placed.kind == FORWARD:
            return (FORWARD, part - 1, placed.micro_batch) if part else None
        if placed.kind == WEIGHT or part == last:
            return (BACKWARD if placed.kind == WEIGHT else FORWARD, part, placed.micro_batch)
        return BACKWARD, part + 1, placed.micro_batch


def simulate_pipeline(
    schedule: Schedule,
    forward_seconds: Seconds,
    backward_seconds: Seconds,
    weight_seconds: Seconds | None = None,
    transfer_seconds: float = 0.0,
) -> PipelineRun:
    """Place every pass of `schedule` in time.

    Args:
        schedule: which order each rank follows, see ``schedule()``.
        forward_seconds: one micro-batch through a rank's share of the model; a number, one per
            rank (its chunks share it equally), or one per part of the model in the model's order.
        backward_seconds: the whole backward pass, in the same forms.
        weight_seconds: the part of it that computes weight gradients, used where that is a pass
            of its own; None = half.
        transfer_seconds: activations or their gradients from one rank to the next.

    Raises:
        UsageError: times below 0 or of the wrong number, an order that misses or repeats a pass,
            or one in which ranks wait for each other without end.
    """
    wires = wiring(schedule)
    check_transfer(transfer_seconds)
    forward, backward, weight = durations(
        schedule.stages, schedule.virtual_stages, forward_seconds, backward_seconds, weight_seconds
    )
    if schedule.splits_backward:
        backward = [both - own for both, own in zip(backward, weight, strict=True)]
    seconds = (*forward, *backward, *weight)
    starts, _ = run(wires, seconds, float(transfer_seconds))
    placed = tuple(
        tuple(
            ScheduledPass(
                rank=rank,
                kind=operation.kind,
                chunk=operation.chunk,
                micro_batch=operation.micro_batch,
                start_seconds=start,
                end_seconds=start + seconds[wire[0]],
            )
            for operation, start, wire in zip(order, starts[rank], wires.ranks[rank], strict=True)
        )
        for rank, order in enumerate(schedule.orders)
    )
    return PipelineRun(schedule=schedule, ranks=placed, transfer_seconds=float(transfer_seconds))


def durations(
    stages: int, chunks: int, forward: Seconds, backward: Seconds, weight: Seconds | None
) -> tuple[list[float], list[float], list[float]]:
    """Forward, whole backward and weight seconds of each part of the model.

    Raises:
        UsageError: times below 0, not finite or of the wrong number, weights above backward.
    """
    forwards = _spread("forward_seconds", forward, stages, chunks)
    backwards = _spread("backward_seconds", backward, stages, chunks)
    if weight is None:
        return forwards, backwards, [seconds / 2 for seconds in backwards]
    own = _spread("weight_seconds", weight, stages, chunks)
    if any(part > both for part, both in zip(own, backwards, strict=True)):
        raise UsageError("weight_seconds are a part of backward_seconds and cannot exceed them.")
    return forwards, backwards, own


def _spread(name: str, seconds: Seconds, stages: int, chunks: int) -> list[float]:
    values = (
        [float(seconds)] * stages if isinstance(seconds, (int, float)) else [*map(float, seconds)]
    )
    if len(values) == stages:
        values = [value / chunks for value in values] * chunks
    if len(values) != stages * chunks:
        raise UsageError(
            f"{name} must be one number, {stages} (one per rank) or {stages * chunks} "
            f"(one per part of the model), not {len(values)}."
        )
    if not all(0 <= value < math.inf for value in values):
        raise UsageError(f"{name} must be 0 or above and finite, not {seconds}.")
    return values


def check_transfer(seconds: float) -> None:
    """Refuse a transfer time below 0 or not finite."""
    if not 0 <= seconds < math.inf:
        raise UsageError(f"transfer_seconds must be 0 or above and finite, not {seconds}.")


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0
