"""How long a pipeline's step takes, without placing every pass: closed forms and one recurrence.

Equal stages, f forward and b backward: (m + p - 1)(f + b) with GPipe and 1F1B; m (f + b) +
(p - 1)(f + b)/v with chunks (arXiv 2104.04473); m (f + b) + (p - 1)(f + b - 2w) with ZB-H1 (arXiv
2401.10241 table 1, whose b leaves out w), as long as w is neither above f nor above b - w. All
forms equal the simulation: tests/estimate/test_pipeline.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from workbench.estimate.pipeline.engine import run, usual_wiring
from workbench.estimate.pipeline.run import Seconds, check_transfer, durations
from workbench.estimate.pipeline.schedules import check_passes, check_schedule


def pipeline_seconds(
    name: str,
    stages: int,
    micro_batches: int,
    forward_seconds: Seconds,
    backward_seconds: Seconds,
    *,
    virtual_stages: int = 1,
    weight_seconds: Seconds | None = None,
    transfer_seconds: float = 0.0,
) -> float:
    """Seconds of one step: what `simulate_pipeline` gives as `total_seconds`.

    Microseconds for equal stages, and for uneven ones with gpipe, 1f1b and naive; uneven stages
    with chunks or zero-bubble are simulated, and remembered.

    Args:
        name: schedule, as in `schedule`.
        stages: pipeline ranks p.
        micro_batches: per optimizer step, m.
        forward_seconds: as in `simulate_pipeline`.
        backward_seconds: the whole backward pass.
        virtual_stages: chunks per rank v.
        weight_seconds: the weights' part of the backward pass (zero-bubble); None = half.
        transfer_seconds: from one rank to the next, per micro-batch.

    Raises:
        UsageError: as `schedule` and `simulate_pipeline`.

    >>> pipeline_seconds("1f1b", 4, 16, 1.0, 2.0)
    57.0
    >>> pipeline_seconds("interleaved", 4, 16, 1.0, 2.0, virtual_stages=2)
    52.5
    """
    name = check_schedule(name, stages, micro_batches, virtual_stages)
    check_transfer(transfer_seconds)
    seconds = durations(stages, virtual_stages, forward_seconds, backward_seconds, weight_seconds)
    transfer = float(transfer_seconds) if stages > 1 else 0.0
    return _step_seconds(name, micro_batches, virtual_stages, seconds, transfer)


def _step_seconds(
    name: str, count: int, chunks: int, seconds: tuple[list[float], ...], transfer: float
) -> float:
    """By the quickest way that is exact; `seconds`: forward, backward and weights of each chunk."""
    forwards, backwards, own = seconds
    stages = len(forwards) // chunks
    if name == "naive":
        return count * (
            math.fsum(forwards) + math.fsum(backwards) + 2 * (len(forwards) - 1) * transfer
        )
    if chunks == 1 and name == "gpipe":
        return _gpipe(forwards, backwards, count, transfer)
    if not transfer and all(min(values) == max(values) for values in seconds):
        even = _even(name, stages, count, chunks, (forwards[0], backwards[0], own[0]))
        if even is not None:
            return even
    if name == "1f1b" and not transfer and count > stages:
        return _bottleneck(forwards, backwards, count)
    check_passes(stages, count, chunks)
    if name != "1f1b":
        return _simulated(
            name, count, chunks, tuple(forwards), tuple(backwards), tuple(own), transfer
        )
    return _recurrence(forwards, backwards, count, transfer)


def _even(
    name: str, stages: int, count: int, chunks: int, seconds: tuple[float, float, float]
) -> float | None:
    """Equal stages without transfers; None where no closed form holds."""
    forward, backward, own = seconds  # of one chunk
    work = count * chunks * (forward + backward)
    if name == "zero-bubble":
        if count < stages:
            return None
        inputs = backward - own  # a weight pass longer than f or than this hides no more than that
        return work + (stages - 1) * max(forward + inputs - own, forward, inputs)
    if name == "gpipe" and count < stages:
        return None  # chunk by chunk, the first ranks wait for the last one's chunk before
    return work + (stages - 1) * (forward + backward)


def _gpipe(
    forwards: Sequence[float], backwards: Sequence[float], count: int, transfer: float
) -> float:
    """Two flow shops of equal jobs, one after the other: sum + (m - 1) x slowest, each way."""
    hops = 2 * (len(forwards) - 1) * transfer
    return (
        math.fsum(forwards)
        + math.fsum(backwards)
        + (count - 1) * (max(forwards) + max(backwards))
        + hops
    )


def _bottleneck(forwards: Sequence[float], backwards: Sequence[float], count: int) -> float:
    """1F1B with uneven stages, no transfers, more micro-batches than stages.

    The longest path keeps to one rank s between its first backward and its last forward pass:
    (m - 2 - w)(f + b) for w forward passes ahead. `_first_return` is the way there; by symmetry
    in time it is also the way from there to the end, f and b exchanged.
    """
    before, after = _first_return(forwards, backwards), _first_return(backwards, forwards)
    top, longest, below = len(forwards) - 1, 0.0, 0.0
    for rank, (forward, backward) in enumerate(zip(forwards, backwards, strict=True)):
        both = forward + backward
        steady = (count - 2 - (top - rank)) * both
        longest = max(longest, before[rank] + steady + after[rank], below + count * both)
        below += both
    return longest


def _first_return(forwards: Sequence[float], backwards: Sequence[float]) -> list[float]:
    """When each rank ends its first backward pass, its forward passes ahead done."""
    top, total, slowest = len(forwards) - 1, 0.0, 0.0
    ends: list[float] = []
    for rank, seconds in enumerate(forwards):
        total += seconds
        slowest = max(slowest, seconds)
        ends.append(total + (top - rank) * slowest)
    later = 0.0
    for rank in range(top, -1, -1):
        later = max(later, ends[rank]) + backwards[rank]
        ends[rank] = later
    return ends


def _recurrence(
    forwards: Sequence[float], backwards: Sequence[float], count: int, transfer: float
) -> float:
    """1F1B pass by pass, diagonal by diagonal, with two numbers per rank: exact and quick."""
    size = len(forwards)
    top = size - 1
    clock, returned = [0.0] * size, [0.0] * size
    for wave in range(count + size):
        arrived = -transfer
        for rank in range(size):
            now = clock[rank]
            index = wave - size + rank
            if 0 <= index < count:
                if rank < top and returned[rank + 1] + transfer > now:  # max() takes twice as long
                    now = returned[rank + 1] + transfer
                now += backwards[rank]
                returned[rank] = now
            if wave < count:
                arrived += transfer
                now = (arrived if arrived > now else now) + forwards[rank]  # noqa: FURB136
                arrived = now
            clock[rank] = now
    return max(clock)


@functools.lru_cache(maxsize=4096)
def _simulated(
    name: str,
    count: int,
    chunks: int,
    forwards: tuple[float, ...],
    backwards: tuple[float, ...],
    own: tuple[float, ...],
    transfer: float,
) -> float:
    wires = usual_wiring(name, len(forwards) // chunks, count, chunks)
    if name == "zero-bubble":
        backwards = tuple(both - weight for both, weight in zip(backwards, own, strict=True))
    return max(run(wires, (*forwards, *backwards, *own), transfer)[1])
