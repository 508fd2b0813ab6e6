"""The sizes that were run, and the parts of their steps that have a law of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.compare.studies.step_split import StepSplit, medians

PARTS = ("compute", "communication", "waiting", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where the ranks were measured."""

    cores: int | None
    """That CPU ranks share; None = each rank has a GPU of its own."""

    def threads(self, ranks: int) -> int:
        """Of one rank, as the launcher sets them."""
        return 1 if self.cores is None else max(1, self.cores // ranks)

    def crowd(self, ranks: int) -> float:
        """Ranks per core where there are more ranks than cores, else 1."""
        return 1.0 if self.cores is None else max(1.0, ranks / self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One size that was run."""

    ranks: int
    """Processes."""
    splits: tuple[StepSplit, ...]
    """Its steady steps."""


def parts_of(points: Sequence[Measured], host: Host) -> list[dict[str, float]]:
    """Seconds by part at each measured size.

    What the backward pass of one rank takes beside its forward pass tells how much of it is compute
    at the other sizes; the rest is exchange. Where no single rank was run, that of the first size
    counts as compute. A GPU works on after Python has gone ahead, so there only whole steps count.
    """
    steps = [medians(point.splits) for point in points]
    base = steps[0]
    if host.cores is None or any(step.forward <= 0 for step in steps):
        return [_whole_step(step, base) for step in steps]
    per_forward = base.rest / base.forward
    return [_by_forward(step, per_forward) for step in steps]


def _by_forward(step: StepSplit, per_forward: float) -> dict[str, float]:
    rest = min(step.rest, per_forward * step.forward)
    return {
        "compute": step.forward + rest,
        "communication": step.rest - rest,
        "waiting": step.waiting,
        "data": step.data,
    }


def _whole_step(step: StepSplit, base: StepSplit) -> dict[str, float]:
    left = step.step - step.data
    compute = min(left, base.step - base.data)
    return {
        "compute": compute,
        "communication": left - compute,
        "waiting": 0.0,
        "data": step.data,
    }
