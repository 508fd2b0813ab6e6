"""From one or two records of a traced step to `Measured`: lines over the batch.

The same script at two batch sizes runs the same operators in the same order, so that the bytes
alive at each operator are a line through two points. Where it does not (a loop over the batch's
items, a library that chooses another kernel), the steps are laid beside each other by phase, in
windows of equal shares of it, and the highest of each window is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.describe.measured import Moment, PerBatch, StepWork

_WINDOWS = 64
"""Windows per phase where operators do not correspond."""
_BATCHES = tuple(2**power for power in range(21))
_GRADIENT_WEIGHTS = (0.0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)
"""Layouts keep a share of the gradients, or two copies: what wins for one of them is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operator, or one window, of one traced step."""

    phase: str
    gradients: int
    other: int
    scratch: int


def moments(
    records: Sequence[Mapping[str, Any]], batches: Sequence[int], micro_batches: Sequence[int]
) -> tuple[Moment, ...]:
    """The moments that can be the peak for some batch and some layout.

    Args:
        records: Of the probes, one or two.
        batches: Samples per micro-batch of each.
        micro_batches: Of the traced step of each.
    """
    all_points = [list(_points(record)) for record in records]
    if len(set(micro_batches)) > 1:  # the script holds its global batch
        all_points = [
            _folded(points, count, min(micro_batches))
            for points, count in zip(all_points, micro_batches, strict=True)
        ]
    if len(all_points) > 1 and [point.phase for point in all_points[0]] != [
        point.phase for point in all_points[1]
    ]:
        all_points = [list(_windows(points)) for points in all_points]
    gradient_bytes = max(1, max((point.gradients for point in all_points[0]), default=1))
    lines = [
        Moment(
            phase=at[0].phase,
            gradients=max(probe.gradients for probe in at) / gradient_bytes,
            other=line([probe.other for probe in at], batches),
            scratch_bytes=float(max(probe.scratch for probe in at)),
        )
        for at in zip(*all_points, strict=True)
    ]
    return tuple(lines[index] for index in sorted(_winners(lines, gradient_bytes)))


def line(values: Sequence[float], batches: Sequence[int]) -> PerBatch:
    """The line through one point (and 0) or two.

    >>> line([30, 20], [4, 2])
    PerBatch(constant=10.0, per_sample=5.0)
    """
    if len(values) < 2 or batches[0] == batches[1]:
        return PerBatch(per_sample=values[0] / batches[0])
    slope = (values[0] - values[1]) / (batches[0] - batches[1])
    if slope <= 0:  # noise, or a buffer that does not follow the batch
        return PerBatch(constant=float(max(values)))
    return PerBatch(constant=values[0] - slope * batches[0], per_sample=slope)


def work(
    records: Sequence[Mapping[str, Any]],
    batches: Sequence[int],
    phase: str,
    micro_batches: Sequence[int],
) -> StepWork:
    """What a phase of one micro-batch computes, moves and starts."""
    parts = [record["work"][phase] for record in records]

    def each(values: Sequence[float]) -> PerBatch:
        return line(
            [value / count for value, count in zip(values, micro_batches, strict=True)], batches
        )

    return StepWork(
        flops=each([sum(part["flops"].values()) for part in parts]),
        moved_bytes=each([part["moved_bytes"] for part in parts]),
        operators=each([part["operators"] for part in parts]),
    )


def _points(record: Mapping[str, Any]) -> Iterator[Point]:
    """Every operator, with what the optimizer holds beyond what lasts through its step."""
    gradients, other = record["gradient_bytes"], record["other_bytes"]
    at = 0
    for phase, count in record["phases"]:
        lasting = min(other[max(0, at - 1) : at + count])
        for index in range(at, at + count):
            scratch = other[index] - lasting if phase == "step" else 0
            yield Point(
                phase=phase,
                gradients=gradients[index],
                other=other[index] - scratch,
                scratch=scratch,
            )
        at += count


def _folded(points: Sequence[Point], count: int, fewest: int) -> list[Point]:
    """One micro-batch for the step's `count`: the highest of each operator, then the optimizer's.

    Of the first one alone where the other probe's step has no second, which begins with gradients.
    As they are where the micro-batches do not run the same operators.
    """
    parts, before = list[list[Point]](), "step"
    for point in points:
        if point.phase == "forward" and before != "forward":
            parts.append([])
        if parts and point.phase != "step":
            parts[-1].append(point)
        before = point.phase
    phases = [[point.phase for point in part] for part in parts]
    if len(parts) != count or any(part_phases != phases[0] for part_phases in phases):
        return list(points)
    highest = [
        Point(
            phase=at[0].phase,
            gradients=max(point.gradients for point in at),
            other=max(point.other for point in at),
            scratch=max(point.scratch for point in at),
        )
        for at in zip(*(parts if fewest > 1 else parts[:1]), strict=True)
    ]
    return [*highest, *(point for point in points if point.phase == "step")]


def _windows(points: Sequence[Point]) -> Iterator[Point]:
    """The highest point of each window, phase by phase."""
    for phase in ("forward", "backward", "step"):
        own = [point for point in points if point.phase == phase]
        for window in range(_WINDOWS if own else 0):
            first = window * len(own) // _WINDOWS
            last = max(first + 1, (window + 1) * len(own) // _WINDOWS)
            yield max(
                own[first:last], key=lambda point: point.other + point.scratch + point.gradients
            )


def _winners(lines: Sequence[Moment], gradient_bytes: int) -> set[int]:
    """Indices of the lines that are the highest for some batch and share of the gradients."""
    winners: set[int] = set()
    for phase in ("forward", "backward", "step"):
        own = [at for at, moment in enumerate(lines) if moment.phase == phase]
        for batch in _BATCHES if own else ():
            heights = {at: lines[at].other.at(batch) + lines[at].scratch_bytes for at in own}
            for weight in _GRADIENT_WEIGHTS:
                added = weight * gradient_bytes
                totals = {at: heights[at] + added * lines[at].gradients for at in own}
                winners.add(max(totals, key=totals.__getitem__))
    return winners
