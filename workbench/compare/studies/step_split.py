"""Where the time of each step of a run went, and the parts of it that have a law of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from workbench.observe.events import MetricStream, StepRow
from workbench.store.layout import RunPaths

MOST = 400
"""Steps that are kept: medians of more change nothing."""
WARM_STEPS = 3
"""The first steps allocate, build buckets and load kernels: never part of a measurement."""
_WARM_SHARE = 0.2
PARTS = ("compute", "communication", "waiting", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """One optimizer step, mean over the ranks; the parts add up to `step`. Seconds."""

    step: float
    """From the end of the step before to the end of this one."""
    data: float
    """Waiting for data, where a loader was seen."""
    forward: float
    """To the entry of the last backward pass (with earlier micro-steps, where there are any)."""
    waiting: float
    """From entering backward to when the last rank enters it: waiting for the slowest."""
    rest: float
    """Backward pass, exchange of gradients and optimizer."""

    def document(self) -> list[float]:
        """The five numbers, in the order of the fields."""
        return [round(value, 7) for value in asdict(self).values()]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> StepSplit:
        """The step that `document` wrote; raises ValueError or TypeError for anything else."""
        return cls(**dict(zip(cls.__slots__, map(float, numbers), strict=True)))


def steady_steps(paths: RunPaths, ranks: int) -> tuple[StepSplit, ...]:
    """The steps of a finished run without its first ones; empty where it recorded none."""
    return _split(MetricStream(paths, ranks).read(final=True))


def last_loss(paths: RunPaths, ranks: int) -> float | None:
    """Mean over the last fifth of the steps."""
    rows = MetricStream(paths, ranks).read(final=True)
    losses = [row.loss for row in rows[-max(1, len(rows) // 5) :] if row.loss is not None]
    return fmean(losses) if losses else None


def _split(rows: Sequence[StepRow]) -> tuple[StepSplit, ...]:
    warm = max(WARM_STEPS, int(_WARM_SHARE * len(rows)))
    pairs = list(itertools.pairwise(rows))[max(0, min(warm, len(rows) - 2) - 1) :]
    splits = [split for before, now in pairs if (split := _split_step(before, now)) is not None]
    return tuple(splits[-MOST:])


def _split_step(before: StepRow, now: StepRow) -> StepSplit | None:
    """The ranks that are known in both rows; None where there is none, or a step is missing."""
    ranks = [rank for rank in now.ended_at if rank in before.ended_at]
    if not ranks or now.step != before.step + 1:
        return None
    seconds = {rank: now.ended_at[rank] - before.ended_at[rank] for rank in ranks}
    if min(seconds.values()) <= 0:
        return None
    step = fmean(seconds.values())
    entered = {rank: now.backward_at.get(rank) for rank in ranks}
    backward_at = {rank: at for rank, at in entered.items() if at is not None}
    if len(backward_at) < len(ranks):  # a script whose backward pass is not seen
        return StepSplit(step=step, data=0.0, forward=0.0, waiting=0.0, rest=step)
    last = max(backward_at.values())
    data = fmean(min(now.data_seconds.get(rank, 0.0), seconds[rank]) for rank in ranks)
    entry = fmean(backward_at[rank] - before.ended_at[rank] for rank in ranks)
    waiting = fmean(last - at for at in backward_at.values())
    data, entry = min(data, max(0.0, entry)), min(max(0.0, entry), step)
    waiting = min(waiting, step - entry)
    rest = step - entry - waiting
    return StepSplit(step=step, data=data, forward=entry - data, waiting=waiting, rest=rest)


def medians(splits: Sequence[StepSplit]) -> StepSplit:
    """The median step, its parts in the proportion of their own medians."""
    step = median(split.step for split in splits)
    names = [name for name in StepSplit.__slots__ if name != "step"]
    parts = {name: median(getattr(split, name) for split in splits) for name in names}
    scale = step / (sum(parts.values()) or step)
    scaled: dict[str, Any] = {name: scale * value for name, value in parts.items()}
    return StepSplit(step=step, **scaled)


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
class MeasuredSize:
    """One size that was run."""

    ranks: int
    """Processes."""
    splits: tuple[StepSplit, ...]
    """Its steady steps."""


def parts_of(points: Sequence[MeasuredSize], host: Host) -> list[dict[str, float]]:
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
