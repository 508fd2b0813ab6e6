"""Comparison of runs: losses at the same step, token count, time or bill, and what one cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from workbench.errors import UnknownNameError
from workbench.observe.curves import Curve
from workbench.observe.thinning import Number

AXES = {"step": "step", "tokens": "tokens", "time": "seconds", "usd": "usd"}
"""What runs are aligned by, and the column of a `Curve` that holds it."""
SMOOTHING = 0.6
"""As the charts: the weight of the row before in the exponential mean."""
_HOLD_SHARE = 0.05  # of a curve's rows that a reached loss has to hold for
_HOLD_ROWS = 3


def column(curve: Curve, by: str) -> tuple[Number, ...]:
    """Abscissae of a curve.

    Raises:
        UnknownNameError: `by` is none of step, tokens, time, usd.
    """
    if by not in AXES:
        raise UnknownNameError.near("alignment", by, AXES)
    return cast("tuple[Number, ...]", getattr(curve, AXES[by]))


def smooth(values: Sequence[Number], weight: float = SMOOTHING) -> list[float | None]:
    """Exponential moving average without the start's bias; gaps stay gaps (0 = raw).

    >>> smooth([4, None, 2], 0.5)
    [4.0, None, 2.6666666666666665]
    """
    mean = mass = 0.0
    smoothed: list[float | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            smoothed.append(None)
            continue
        mean = weight * mean + (1 - weight) * value
        mass = weight * mass + (1 - weight)
        smoothed.append(mean / mass)
    return smoothed


def points(curve: Curve, by: str, weight: float = SMOOTHING) -> list[tuple[float, float]]:
    """(abscissa, smoothed loss) of the rows where both are known, in order."""
    pairs = zip(column(curve, by), smooth(curve.loss, weight), strict=True)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def aligned(
    curves: Mapping[str, Curve], by: str, *, count: int = 8, weight: float = SMOOTHING
) -> dict[str, Any]:
    """Smoothed losses of all runs at the same places of the stretch that all of them have.

    Returns:
        ``{"by", "at": [...], "loss": {run: [...]}}``; no places where runs share no stretch, and
        None throughout for a run without that scale.
    """
    lines = {run: points(curve, by, weight) for run, curve in curves.items()}
    usable = [line for line in lines.values() if len(line) > 1]
    low = max((line[0][0] for line in usable), default=0.0)
    high = min((line[-1][0] for line in usable), default=0.0)
    places: list[float] = []
    if high > low:
        places = [low + (high - low) * index / (count - 1) for index in range(count)]
        counted = by in {"step", "tokens"}
        places = sorted({float(round(at)) for at in places}) if counted else places
    losses = {run: [interpolate(value, at) for at in places] for run, value in lines.items()}
    return {"by": by, "at": places, "loss": losses}


def interpolate(line: Sequence[tuple[float, float]], at: float) -> float | None:
    """Value of a polyline at `at`; None outside it.

    >>> interpolate([(0, 4), (10, 2)], 5), interpolate([(0, 4), (10, 2)], 11)
    (3.0, None)
    """
    place = bisect_left(line, (at, -math.inf))
    if place == len(line) or (place == 0 and line[0][0] != at):
        return None
    right = line[place]
    if right[0] == at:
        return float(right[1])
    left = line[place - 1]
    return left[1] + (right[1] - left[1]) * (at - left[0]) / (right[0] - left[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReached:
    """When a run's loss came down to a value, and what that had taken."""

    step: float
    """Optimizer steps done."""
    tokens: float | None
    """Consumed until then."""
    seconds: float | None
    """At work until then."""
    usd: float | None
    """Spent until then."""
    resolution_steps: int
    """Steps between two rows of the curve: how exact the step is."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)


def cost_to_reach(curve: Curve, loss: float, weight: float = SMOOTHING) -> LossReached | None:
    """The first row from which the smoothed loss stays at or below `loss`; None if never.

    "Stays" means for the next 5 % of the curve (at least 3 rows), or to its end: a lucky batch is
    not counted, and a run that broke much later is still credited with what it reached.
    """
    values = smooth(curve.loss, weight)
    rows = [index for index, value in enumerate(values) if value is not None]
    hold = max(_HOLD_ROWS, math.ceil(_HOLD_SHARE * len(rows)))
    below = [cast("float", values[index]) <= loss for index in rows]
    for place, index in enumerate(rows):
        step = curve.step[index]
        if step is not None and all(below[place : place + hold]):
            return LossReached(
                step=step,
                tokens=curve.tokens[index],
                seconds=curve.seconds[index],
                usd=curve.usd[index],
                resolution_steps=curve.stride,
            )
    return None


def common_loss(curves: Mapping[str, Curve], weight: float = SMOOTHING) -> float | None:
    """The highest of the runs' last smoothed losses, which every one that learned has reached.

    Rounded up to three digits, as people would name it; None without a curve.
    """
    last = [
        line[-1][1] for line in (points(curve, "step", weight) for curve in curves.values()) if line
    ]
    if not last:
        return None
    highest = max(last)
    if highest <= 0:
        return highest
    unit = 10.0 ** (math.floor(math.log10(highest)) - 2)
    return float(f"{math.ceil(highest / unit) * unit:.6g}")
