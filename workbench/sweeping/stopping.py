"""What stopping trials early saves: a range, before anything has been measured.

Successive halving (ASHA, arXiv:1810.05934) compares trials at their looks, 3 times as many steps
apart: of those that reached a look so far, the best third goes on. It does not wait for others, so
what it saves depends on the order in which good trials come.
"""

from __future__ import annotations

import random
from bisect import insort
from dataclasses import dataclass

from workbench.sweeping.plan import ETA, SweepPlan

_DRAWN = 3000  # trials in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Part of all trials' steps that is trained."""

    low: float
    """Where each trial is worse than all before it: one is trained to its end."""
    expected: float
    """Where they come in any order."""
    high: float
    """Where each trial is better than all before it: nothing is stopped."""


def trained_share(plan: SweepPlan) -> Share:
    """The part of the steps that a sweep trains; 1 where no trial is stopped or no one knows.

    >>> plan = SweepPlan(name="a", id="", parameters=(), trials=27, metric="loss", seed=0,
    ...     direction="lower", stop="asha", first_look=10, steps_total=90, sampler="tpe",
    ...     parallel=None, created_at=0.0)
    >>> share = trained_share(plan)
    >>> round(share.low, 2), round(share.expected, 2), share.high
    (0.14, 0.3, 1.0)
    """
    total = plan.steps_total
    if plan.first_look is None or total is None:
        return Share(low=1.0, expected=1.0, high=1.0)
    looks = plan.looks(total)
    low = (total + (plan.trials - 1) * looks[0]) / (plan.trials * total)
    return Share(low=low, expected=_expected(looks, plan.trials, total), high=1.0)


def _expected(looks: list[int], trials: int, total: int) -> float:
    """Trials in any order: the mean of some sweeps whose trials' values are drawn."""
    draw, sweeps, steps = random.Random(0), max(3, _DRAWN // trials), 0  # noqa: S311
    for _ in range(sweeps):
        reached: list[list[float]] = [[] for _ in looks]
        steps += sum(_trained(draw.random(), looks, reached, total) for _ in range(trials))
    return steps / (sweeps * trials * total)


def _trained(value: float, looks: list[int], reached: list[list[float]], total: int) -> int:
    """Steps of a trial whose metric is `value` at each look; `reached`: those of others there."""
    for look, values in zip(looks, reached, strict=True):
        insort(values, value)
        if value > values[max(0, len(values) // ETA - 1)]:
            return look
    return total
