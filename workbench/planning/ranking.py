"""The Pareto front over dollars and hours, and what would make another plan win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.errors import UsageError
from workbench.estimate.cost.spot import UNKNOWN_HOURS
from workbench.estimate.timing import StepTime
from workbench.planning.market import Limits
from workbench.planning.offer_search import PricedCandidate
from workbench.planning.plans import UP_TO, Sensitivity
from workbench.units import format_seconds, format_usd

Bill = tuple[float, float]
"""Dollars and hours of the finished run."""
SLOWER, DEARER, OFTENER = 1 / 0.8, 1.25, 2.0


def pareto(points: Sequence[Bill]) -> tuple[int, ...]:
    """Positions of the points that no other beats in one without losing in the other.

    Equal points are all kept; dollars are equal where only the sum of a bill's parts was rounded.

    >>> pareto([(10.0, 5.0), (12.0, 3.0), (12.0, 5.0), (10.0, 5.0)])
    (0, 1, 3)
    >>> pareto([(0.3, 2.0), (0.1 + 0.2, 1.0)])
    (1,)
    """
    bills = [(round(usd, 9), hours) for usd, hours in points]
    order = sorted(range(len(bills)), key=lambda index: bills[index])
    front: list[int] = []
    fastest: Bill = (math.inf, math.inf)
    for index in order:
        usd, hours = bills[index]
        if hours < fastest[1] or (usd, hours) == fastest:
            front.append(index)
            fastest = (usd, hours)
    return tuple(sorted(front))


def sensitivities(ranked: Sequence[PricedCandidate], limits: Limits) -> tuple[Sensitivity, ...]:
    """Whether the first plan stays the first when a number turns out worse."""
    first = ranked[0]
    changes = [
        _sensitivity(ranked, limits, "speed of the winner", SLOWER, _slower(first), _speed),
        _sensitivity(ranked, limits, "speed of every plan", SLOWER, _slower(None), _speed),
        _sensitivity(ranked, limits, "price of the winner", DEARER, _dearer(first), _price),
    ]
    if any(plan.candidate.spot for plan in ranked):
        rate = "interruptions of spot machines"
        changes.append(_sensitivity(ranked, limits, rate, OFTENER, _interrupted, _rate))
    return tuple(changes)


Worse = Callable[[PricedCandidate, float], Bill]


def _sensitivity(
    ranked: Sequence[PricedCandidate],
    limits: Limits,
    name: str,
    factor: float,
    worse: Worse,
    words: Callable[[float], str],
) -> Sensitivity:
    winner = _winner(ranked, limits, factor, worse)
    at = _changes_at(ranked, limits, worse)
    first = ranked[0]
    text = f"{name[0].upper()}{name[1:]} {words(factor)}: "
    if winner is first:
        usd, hours = worse(first, factor)
        text += (
            f"still {first.candidate.where}, {format_usd(usd)} in {format_seconds(3600 * hours)}"
        )
    elif winner is None:
        text += "no plan meets the limits"
    else:
        text += f"{winner.candidate.where} wins then, {_bill_text(*worse(winner, factor))}"
    limit = f"; nothing changes up to {words(UP_TO)}"
    if at:
        verb = "they are" if worse is _interrupted else "it is"
        limit = f"; the first plan loses its place once {verb} {words(at)}"
    return Sensitivity(
        name=name,
        change=words(factor),
        winner=winner.candidate.where if winner else "",
        changes=winner is not first,
        at=at,
        sentence=f"{text}{limit}.",
    )


def _winner(
    ranked: Sequence[PricedCandidate], limits: Limits, factor: float, worse: Worse
) -> PricedCandidate | None:
    """The first plan with the worse number."""
    best: tuple[tuple[float, float, int], PricedCandidate] | None = None
    for plan in ranked:
        usd, hours = worse(plan, factor)
        if limits.over_budget(usd) or limits.too_late(hours):
            continue
        rank = (round(usd, 6), hours, plan.candidate.gpus)
        if best is None or rank < best[0]:
            best = rank, plan
    return best and best[1]


def _changes_at(ranked: Sequence[PricedCandidate], limits: Limits, worse: Worse) -> float | None:
    """Smallest factor at which the first plan is not the first any more; None = not up to UP_TO."""
    first = ranked[0]
    if _winner(ranked, limits, UP_TO, worse) is first:
        return None
    low, high = 1.0, UP_TO
    while high / low > 1 + 1e-3:
        middle = math.sqrt(low * high)
        stays = _winner(ranked, limits, middle, worse) is first
        low, high = (middle, high) if stays else (low, middle)
    return high


def _slower(only: PricedCandidate | None) -> Worse:
    def bill(plan: PricedCandidate, factor: float) -> Bill:
        if only is not None and plan is not only:
            return plan.usd, plan.hours
        return _bill(plan, step=_scaled(plan.fit.step, factor))

    return bill


def _dearer(only: PricedCandidate) -> Worse:
    def bill(plan: PricedCandidate, factor: float) -> Bill:
        return _bill(plan, price=factor) if plan is only else (plan.usd, plan.hours)

    return bill


def _interrupted(plan: PricedCandidate, factor: float) -> Bill:
    if not plan.candidate.spot:
        return plan.usd, plan.hours
    usual = plan.cost.job.interruption_hours or UNKNOWN_HOURS[1]
    return _bill(plan, interruption_hours=usual / factor)


def _bill(
    plan: PricedCandidate,
    *,
    step: StepTime | None = None,
    price: float = 1.0,
    interruption_hours: float | None = None,
) -> Bill:
    run = plan.candidate.run
    if interruption_hours is not None:
        run = replace(run, interruption_hours=interruption_hours)
    try:
        cost = plan.candidate.cost(step or plan.fit.step, run, price)
    except UsageError:  # never ends
        return math.inf, math.inf
    assert cost.usd is not None
    return cost.usd, cost.wall_hours


def _scaled(step: StepTime, factor: float) -> StepTime:
    return replace(step, parts={name: factor * part for name, part in step.parts.items()})


def _speed(factor: float) -> str:
    return f"{_share(1 - 1 / factor)} lower"


def _price(factor: float) -> str:
    return f"{_share(factor - 1)} higher"


def _bill_text(usd: float, hours: float) -> str:
    return f"{format_usd(usd)} in {format_seconds(3600 * hours)}"


def _rate(factor: float) -> str:
    return f"{factor:.3g} times as often" if factor > 1.01 else "a little more often"


def _share(change: float) -> str:
    """A change in words; below 0.2% it is less than the search for it tells apart."""
    if change < 0.002:
        return "a little"
    return f"{change:.1%}" if change < 0.095 else f"{change:.0%}"
