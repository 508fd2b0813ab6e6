"""In which order each pipeline rank runs its forward and backward passes, per schedule.

gpipe: arXiv 1811.06965 (with chunks: breadth first, as torch's ScheduleLoopedBFS); 1f1b and
interleaved: arXiv 2104.04473 and Megatron-LM core/pipeline_parallel/schedules.py; zero-bubble:
ZB-H1 of arXiv 2401.10241; naive: one micro-batch at a time, as device_map does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from workbench.describe.checks import require_choice, require_positive
from workbench.describe.strategy import SCHEDULES
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
        return any(one.kind == WEIGHT for order in self.orders for one in order)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(one) for one in order) for order in self.orders)


@functools.lru_cache(maxsize=64)
def schedule(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Schedule:
    """The orders of one of the strategy's schedules.

    Args:
        name: 1f1b, gpipe, interleaved, zero-bubble or naive; 1f1b with chunks is interleaved.
        stages: pipeline ranks.
        micro_batches: per optimizer step.
        virtual_stages: chunks per rank.

    Raises:
        UsageError: an unknown schedule, a size below 1 or absurd, chunks with zero-bubble,
            micro-batches that the interleaved schedule cannot deal out.

    >>> print(schedule("1f1b", 3, 4))
    F0 F1 F2 B0 F3 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3
    """
    name = check_schedule(name, stages, micro_batches, virtual_stages)
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
        UsageError: as `schedule`.
    """
    require_choice("schedule", name, SCHEDULES)
    require_positive("stages", stages)
    require_positive("micro_batches", micro_batches)
    require_positive("virtual_stages", virtual_stages)
    if stages * micro_batches * virtual_stages * 2 > _MOST_OPERATIONS:
        raise UsageError(
            f"{stages} stages x {micro_batches} micro-batches x {virtual_stages} chunks are "
            f"more than {_MOST_OPERATIONS:,} passes; use fewer micro-batches."
        )
    if name == "zero-bubble" and virtual_stages > 1:
        raise UsageError(
            f"The zero-bubble schedule (ZB-H1) has one chunk per rank, not {virtual_stages}. "
            "Use schedule interleaved, or virtual_stages 1."
        )
    if name == "1f1b" and virtual_stages > 1:
        name = "interleaved"
    if name == "interleaved" and micro_batches % stages:
        raise UsageError(
            f"The interleaved schedule needs a multiple of {stages} micro-batches, "
            f"not {micro_batches}."
        )
    return name


def _forward(index: int, chunk: int = 0) -> Operation:
    return Operation(kind=FORWARD, micro_batch=index, chunk=chunk)


def _backward(index: int, chunk: int = 0) -> Operation:
    return Operation(kind=BACKWARD, micro_batch=index, chunk=chunk)


def _weight(index: int) -> Operation:
    return Operation(kind=WEIGHT, micro_batch=index)


def _gpipe(_rank: int, _stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """All forward passes, then all backward passes; chunk by chunk."""
    there = [_forward(index, chunk) for chunk in range(chunks) for index in range(count)]
    back = [_backward(index, chunk) for chunk in reversed(range(chunks)) for index in range(count)]
    return (*there, *back)


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
    rank: int, stages: int, count: int, _chunks: int
) -> tuple[Operation, ...]:
    """As many forward passes ahead as there are later stages, then one of each in turn."""
    ahead = min(stages - rank - 1, count)
    order = [_forward(index) for index in range(ahead)]
    for index in range(count - ahead):
        order += [_forward(ahead + index), _backward(index)]
    return (*order, *(_backward(index) for index in range(count - ahead, count)))


def _interleaved(rank: int, stages: int, count: int, chunks: int) -> tuple[Operation, ...]:
    """Megatron's order: groups of as many micro-batches as ranks go through one chunk at a time."""
    total = count * chunks

    def at(index: int, *, back: bool) -> Operation:
        group, within = divmod(index, stages * chunks)
        chunk, offset = divmod(within, stages)
        micro_batch = group * stages + offset
        return _backward(micro_batch, chunks - 1 - chunk) if back else _forward(micro_batch, chunk)

    ahead = min(2 * (stages - rank - 1) + (chunks - 1) * stages, total)
    order = [at(index, back=False) for index in range(ahead)]
    for index in range(total - ahead):
        order += [at(ahead + index, back=False), at(index, back=True)]
    return (*order, *(at(index, back=True) for index in range(total - ahead, total)))


def _zero_bubble(rank: int, stages: int, count: int, _chunks: int) -> tuple[Operation, ...]:
    """1F1B whose weight gradients come `rank` micro-batches late: they fill the end's bubble."""
    ahead = min(stages - rank - 1, count)
    order = [_forward(index) for index in range(ahead)]
    for index in range(count):
        if ahead + index < count:
            order.append(_forward(ahead + index))
        order.append(_backward(index))
        if index >= rank:
            order.append(_weight(index - rank))
    return (*order, *(_weight(index) for index in range(max(0, count - rank), count)))
