"""The event simulation on plain numbers: which rank waits for which, and when each pass ends.

Passes are numbered (part of the model, micro-batch, kind) once per schedule, so that running a
schedule with other durations costs a fraction of a microsecond per pass.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.estimate.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, Schedule, schedule

_KINDS = (FORWARD, BACKWARD, WEIGHT)
_NOTHING = -1
_Wire = tuple[int, int, int, bool]  # duration's index, own number, needed number, other rank's


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A schedule in numbers."""

    ranks: tuple[tuple[_Wire, ...], ...]
    """For each rank its passes in order: (index of the duration, number of the pass, number of
    the pass it needs or -1, whether that runs on another rank)."""
    passes: int
    """Numbers in use."""
    name: str
    """The schedule's, for messages."""


@functools.lru_cache(maxsize=64)
def usual_wiring(name: str, stages: int, micro_batches: int, virtual_stages: int) -> Wiring:
    """The wiring of one of the strategy's schedules, remembered."""
    return wiring(schedule(name, stages, micro_batches, virtual_stages))


def wiring(orders: Schedule) -> Wiring:
    """Number the passes of a schedule and find what each one needs.

    Raises:
        UsageError: an order misses or repeats a pass.
    """
    _check_orders(orders)
    size, count = orders.stages, orders.micro_batches
    parts = size * orders.virtual_stages

    def number(kind: int, part: int, micro_batch: int) -> int:
        return (kind * parts + part) * count + micro_batch

    def needed(kind: str, part: int, micro_batch: int) -> tuple[int, bool]:
        """The pass whose result this one reads, and whether it comes from another rank."""
        if kind == FORWARD:
            return (number(0, part - 1, micro_batch), size > 1) if part else (_NOTHING, False)
        if kind == WEIGHT:
            return number(1, part, micro_batch), False
        if part < parts - 1:
            return number(1, part + 1, micro_batch), size > 1
        return number(0, part, micro_batch), False

    ranks: list[tuple[_Wire, ...]] = []
    for rank, order in enumerate(orders.orders):
        wires: list[_Wire] = []
        for operation in order:
            kind, part = _KINDS.index(operation.kind), operation.chunk * size + rank
            own = number(kind, part, operation.micro_batch)
            wires.append(
                (kind * parts + part, own, *needed(operation.kind, part, operation.micro_batch))
            )
        ranks.append(tuple(wires))
    return Wiring(ranks=tuple(ranks), passes=3 * parts * count, name=orders.name)


def run(
    wires: Wiring, seconds: Sequence[float], transfer: float
) -> tuple[list[list[float]], list[float]]:
    """Start of each rank's passes in order, and each rank's end.

    Each rank runs until it waits for a result; the rank that delivers it wakes it.

    Args:
        wires: the schedule in numbers.
        seconds: forward of every part of the model, then backward, then weight gradients.
        transfer: from one rank to another.

    Raises:
        UsageError: ranks wait for each other without end.
    """
    ends = [-1.0] * wires.passes
    sleeper = [_NOTHING] * wires.passes
    starts: list[list[float]] = [[] for _ in wires.ranks]
    clocks = [0.0] * len(wires.ranks)
    ready = list(range(len(wires.ranks)))
    while ready:
        rank = ready.pop()
        own_starts, now, order = starts[rank], clocks[rank], wires.ranks[rank]
        for index in range(len(own_starts), len(order)):
            cost, own, need, remote = order[index]
            if need >= 0:
                arrived = ends[need]
                if arrived < 0:
                    sleeper[need] = rank
                    break
                if remote:
                    arrived += transfer
                now = max(now, arrived)
            own_starts.append(now)
            now += seconds[cost]
            ends[own] = now
            if sleeper[own] >= 0:
                ready.append(sleeper[own])
        clocks[rank] = now
    _check_finished(wires, starts)
    return starts, clocks


def _check_orders(orders: Schedule) -> None:
    """Every rank runs each pass of each micro-batch and chunk exactly once."""
    kinds = _KINDS if orders.splits_backward else _KINDS[:2]
    required = {
        (kind, chunk, micro_batch)
        for kind in kinds
        for chunk in range(orders.virtual_stages)
        for micro_batch in range(orders.micro_batches)
    }
    for rank, order in enumerate(orders.orders):
        distinct = {(operation.kind, operation.chunk, operation.micro_batch) for operation in order}
        if distinct != required or len(order) != len(required):
            raise UsageError(
                f"Rank {rank} has {len(order)} passes, {len(distinct)} of them different; it needs "
                f"{', '.join(kinds)} of each of {orders.micro_batches} micro-batches and "
                f"{orders.virtual_stages} chunks exactly once: {len(required)}."
            )


def _check_finished(wires: Wiring, starts: list[list[float]]) -> None:
    stuck = [
        f"rank {rank} before its pass {len(done)}"
        for rank, (done, order) in enumerate(zip(starts, wires.ranks, strict=True))
        if len(done) < len(order)
    ]
    if stuck:
        raise UsageError(
            f"Deadlock in schedule {wires.name!r}: {', '.join(stuck)} wait for each other without "
            "end. A backward pass cannot come before the forward pass it needs."
        )
