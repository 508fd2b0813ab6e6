"""The metric of a trial at a step, from what its run has recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from workbench.observe.curves import read_curve
from workbench.observe.events import iterate_metrics
from workbench.observe.rank_count import rank_count
from workbench.observe.series import read_series
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

TRAINING_LOSS = "loss"
_TAIL = 16  # the last steps, of which not each may have a loss
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
    end: float | None = None
    """The metric exactly where the run ended, however many steps a point stands for; NaN where it
    was no number there. None = the last point is it."""
    logged: tuple[str, ...] = ()
    """Names that the run logged, where this one is not among them."""

    @property
    def last_step(self) -> int:
        """0 where nothing was measured."""
        return int(self.steps[-1]) if self.steps else 0

    def at(self, step: int | None = None) -> float | None:
        """The metric at the first point from `step` on, or at the end (None); None where none is.

        >>> metric = MeasuredMetric(steps=(10, 20, 30), values=(3.0, 2.0, 1.0))
        >>> metric.at(15), metric.at(), metric.at(31)
        (2.0, 1.0, None)
        """
        if step is None and self.end is not None:
            return self.end
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


def metric_text(metric: str, run: RunPaths | None) -> str:
    """What a trial's value is, where its metric is not simply the last value that was logged.

    Args:
        metric: A sweep's.
        run: Of one of its trials; None = there is none yet.

    >>> metric_text("loss", None), metric_text("accuracy", None)
    ('loss, mean of last tenth', 'accuracy')
    """
    if metric != TRAINING_LOSS or (
        run is not None and any(entry.name == metric for entry in read_series(run))
    ):
        return metric
    return f"{metric}, mean of last tenth"


def measured(paths: RunPaths, metric: str) -> MeasuredMetric:
    """What a run has recorded of the metric so far."""
    series = read_series(paths)
    own = next((entry for entry in series if entry.name == metric), None)
    if own is not None:
        end = float("nan") if own.nonfinite_end else own.last
        return _points(own.step, own.mean, smooth=False, end=end)
    if metric == TRAINING_LOSS:
        curve = read_curve(paths)
        if _ends_broken(paths):
            return _points(curve.step, curve.loss, smooth=True, end=float("nan"))
        has_loss = [loss is not None for loss in curve.loss]  # steps without a loss are no NaN here
        steps, losses = compress(curve.step, has_loss), compress(curve.loss, has_loss)
        return _points(tuple(steps), tuple(losses), smooth=True)
    return MeasuredMetric(logged=tuple(entry.name for entry in series))


def _ends_broken(paths: RunPaths) -> bool:
    """Whether the latest loss of a run was NaN or infinite: points leave it out."""
    ranks = rank_count(paths, (read_run(paths) or RunRecord()).processes)
    rows = iterate_metrics(paths, ranks, tail=_TAIL)
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    return bool(losses) and not math.isfinite(losses[-1])


def _points(
    steps: Sequence[float | None],
    values: Sequence[float | None],
    *,
    smooth: bool,
    end: float | None = None,
) -> MeasuredMetric:
    points = [(at, value) for at, value in zip(steps, values, strict=True) if at is not None]
    return MeasuredMetric(
        steps=[at for at, _ in points],
        values=[float("nan") if value is None else value for _, value in points],
        smooth=smooth,
        end=end if points else None,
    )
