"""In which order each pipeline rank runs its forward and backward passes, per schedule.

gpipe: arXiv 1811.06965 (with chunks: breadth first, as torch's ScheduleLoopedBFS); 1f1b and
interleaved: arXiv 2104.04473 and Megatron-LM core/pipeline_parallel/schedules.py; zero-bubble:
ZB-H1 of arXiv 2401.10241 (with chunks: torch's); naive: one micro-batch at a time (device_map).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from workbench.describe.checks import require_choice, require_positive
from workbench.describe.library_options import SCHEDULES
from workbench.errors import UsageError

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
_MOST_OPERATIONS = 2_000_000  # of all ranks together; beyond it a count is a typing mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One pass of one micro-batch through one chunk of a rank."""

    kind: str
    """F; B: the backward pass (with W: of the inputs alone); W: the weights' gradients."""
    micro_batch: int
    """From 0."""
    chunk: int = 0
    """Which of the rank's chunks: chunk c of rank r is part c x ranks + r of the model."""

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What each rank does, in order; ``schedule()`` makes the usual ones."""

    name: str
    """One of the strategy's schedules, or a name of your own."""
    orders: tuple[tuple[Operation, ...], ...]
    """For each rank its operations in order."""
    micro_batches: int
    """Micro-batches per optimizer step."""
    virtual_stages: int = 1
    """Chunks per rank."""

    @property
    def stages(self) -> int:
        """Ranks."""
        return len(self.orders)

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are passes of their own (zero-bubble)."""
        return any(operation.kind == WEIGHT for order in self.orders for operation in order)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(operation) for operation in order) for order in self.orders)


@functools.lru_cache(maxsize=64)
def schedule(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Schedule:
    """The orders of one of the strategy's schedules.

    Args:
        name: 1f1b, gpipe, interleaved, zero-bubble or naive; 1f1b with chunks is interleaved.
        stages: pipeline ranks.
        micro_batches: per optimizer step.
        virtual_stages: chunks per rank.

    Raises:
        UsageError: an unknown schedule, a size below 1 or absurd, micro-batches that a schedule
            with chunks cannot deal out.

    >>> print(schedule("1f1b", 3, 4))
    F0 F1 F2 B0 F3 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3
    """
    name = check_schedule(name, stages, micro_batches, virtual_stages)
    check_passes(stages, micro_batches, virtual_stages)
    makers = {
        "gpipe": _gpipe,
        "1f1b": _one_forward_one_backward,
        "interleaved": _interleaved,
        "zero-bubble": _zero_bubble,
        "naive": _naive,
    }
    orders = tuple(
        makers[name](rank, stages, micro_batches, virtual_stages) for rank in range(stages)
    )
    return Schedule(
        name=name, orders=orders, micro_batches=micro_batches, virtual_stages=virtual_stages
    )


def check_schedule(name: str, stages: int, micro_batches: int, virtual_stages: int) -> str:
    """The schedule that really runs: 1f1b with chunks is the interleaved one.

    Raises:
        UsageError: as `schedule`, but for the number of passes: see `check_passes`.
    """
    require_choice("schedule", name, SCHEDULES)
    require_positive("stages", stages)
    require_positive("micro_batches", micro_batches)
    require_positive("virtual_stages", virtual_stages)
    if name == "1f1b" and virtual_stages > 1:
        name = "interleaved"
    grouped = name == "interleaved" or (name == "zero-bubble" and virtual_stages > 1)
    if grouped and micro_batches % stages:
        raise UsageError(
            f"The {name} schedule needs a multiple of {stages} micro-batches, not {micro_batches}."
        )
    return name


def check_passes(stages: int, micro_batches: int, virtual_stages: int) -> None:
    """Refuse a step whose passes are too many to be placed one by one; closed forms take any.

    Raises:
        UsageError: with their number and the largest.
    """
    if stages * micro_batches * virtual_stages * 2 > _MOST_OPERATIONS:
        raise UsageError(
            f"{stages} stages x {micro_batches:,} micro-batches x {virtual_stages} chunks are "
            f"more than {_MOST_OPERATIONS:,} passes; use fewer micro-batches (accumulate), or "
            "larger ones."
        )


def _forward(index: int, chunk: int = 0) -> Operation:
    return Operation(kind=FORWARD, micro_batch=index, chunk=chunk)


def _backward(index: int, chunk: int = 0) -> Operation:
    return Operation(kind=BACKWARD, micro_batch=index, chunk=chunk)


def _gpipe(_rank: int, _stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """All forward passes, then all backward passes; chunk by chunk."""
    forwards = [_forward(index, chunk) for chunk in range(chunks) for index in range(count)]
    backwards = [
        _backward(index, chunk) for chunk in reversed(range(chunks)) for index in range(count)
    ]
    return (*forwards, *backwards)


def _naive(_rank: int, _stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """One micro-batch through the whole model and back before the next one."""
    return tuple(
        operation
        for index in range(count)
        for operation in (
            *(_forward(index, chunk) for chunk in range(chunks)),
            *(_backward(index, chunk) for chunk in reversed(range(chunks))),
        )
    )


def _one_forward_one_backward(
    rank: int, stages: int, count: int, chunks: int
) -> tuple[Operation, ...]:
    """As many forward passes ahead as there are later stages, then one of each in turn."""
    return _alternating(stages - rank - 1, stages, count, chunks)


def _interleaved(rank: int, stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """Megatron's order: groups of as many micro-batches as ranks go through one chunk at a time."""
    ahead = 2 * (stages - rank - 1) + (chunks - 1) * stages
    return _alternating(ahead, stages, count, chunks)


def _zero_bubble(rank: int, stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """Weight gradients come `rank` passes late: they fill the bubble at the end.

    With one chunk this is ZB-H1; with more, torch's ScheduleInterleavedZeroBubble.
    """
    ahead = stages - rank - 1 + (chunks - 1) * stages
    return _alternating(ahead, stages, count, chunks, late=rank)


def _alternating(
    ahead: int, stages: int, count: int, chunks: int, late: int | None = None
) -> tuple[Operation, ...]:
    """`ahead` forward passes, then backward and forward in turn, with chunks in their groups.

    Weight gradients follow `late` backward passes behind; None = they are part of those.
    """
    total = count * chunks
    group = stages if chunks > 1 else total  # with one chunk nothing is grouped
    forward, backward = list[Operation](), list[Operation]()
    for index in range(total):
        round_, within = divmod(index, group * chunks)
        chunk, offset = divmod(within, group)
        micro_batch = round_ * group + offset
        forward.append(_forward(micro_batch, chunk))
        backward.append(_backward(micro_batch, chunks - 1 - chunk))
    ahead = min(ahead, total)
    order = forward[:ahead]
    for index in range(total):
        order += forward[ahead + index : ahead + index + 1]
        order.append(backward[index])
        if late is not None and index >= late:
            order.append(_weight(backward[index - late]))
    missing = 0 if late is None else min(late, total)
    return (*order, *(_weight(operation) for operation in backward[total - missing :]))


def _weight(operation: Operation) -> Operation:
    return Operation(kind=WEIGHT, micro_batch=operation.micro_batch, chunk=operation.chunk)
