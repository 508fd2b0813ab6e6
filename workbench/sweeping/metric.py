"""The metric of a trial at a step, from what its run has recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.observe.curves import read_curve
from workbench.observe.series import read_series
from workbench.store.layout import RunPaths

TRAINING_LOSS = "loss"
_SHARE = 0.1
"""Of the steps before: the training loss of one step is noise, the mean over a tenth is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMetric:
    """A metric over the steps of a run."""

    steps: Sequence[float] = ()
    """Of each point."""
    values: Sequence[float] = ()
    """The metric there; NaN where it was no number."""
    smooth: bool = False
    """Whether a point is noise, so that a tenth of the steps before is averaged."""
    logged: tuple[str, ...] = ()
    """Names that the run logged, where this one is not among them."""

    @property
    def last_step(self) -> int:
        """0 where nothing was measured."""
        return int(self.steps[-1]) if self.steps else 0

    def at(self, step: int | None = None) -> float | None:
        """The metric at the first point from `step` on; None = at the last; None where none is.

        >>> metric = MeasuredMetric(steps=(10, 20, 30), values=(3.0, 2.0, 1.0))
        >>> metric.at(15), metric.at(), metric.at(31)
        (2.0, 1.0, None)
        """
        places = [at for at, seen_at in enumerate(self.steps) if step is None or seen_at >= step]
        if not places:
            return None
        place = places[-1] if step is None else places[0]
        if not self.smooth:
            return self.values[place]
        begin = self.steps[place] * (1 - _SHARE)
        window = [
            value
            for at, value in zip(self.steps, self.values, strict=True)
            if begin < at <= self.steps[place]
        ]
        return sum(window) / len(window)


def measured(paths: RunPaths, metric: str) -> MeasuredMetric:
    """What a run has recorded of the metric so far."""
    series = read_series(paths)
    own = next((entry for entry in series if entry.name == metric), None)
    if own is not None:
        return _points(own.step, own.mean, smooth=False)
    if metric == TRAINING_LOSS:
        curve = read_curve(paths)
        return _points(curve.step, curve.loss, smooth=True)
    return MeasuredMetric(logged=tuple(entry.name for entry in series))


def _points(
    steps: Sequence[float | None], values: Sequence[float | None], *, smooth: bool
) -> MeasuredMetric:
    known = [(at, value) for at, value in zip(steps, values, strict=True) if at is not None]
    return MeasuredMetric(
        steps=[at for at, _ in known],
        values=[float("nan") if value is None else value for _, value in known],
        smooth=smooth,
    )
