"""The planner's figure: every plan as a point, and which of them meet the current limits."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.planning import Limits, Plan, Plans, explain, ranking
from workbench.planning.market import where_text
from workbench.planning.offer_search import OfferSearch
from workbench.planning.planner import OfferAnswers
from workbench.units import UNKNOWN, format_count, format_hours, format_usd
from workbench_widgets.planner.choice import PlannerChoice

WHY_MAX = 12  # rows of the table that carry their reason
_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansWithinLimits:
    """The plans of a search that meet the current limits."""

    positions: tuple[int, ...]
    """In the search's ranking: cheapest first."""
    front: tuple[int, ...]
    """Those that no other kept one beats in both dollars and hours."""
    lost: Counter[str]
    """Reason -> number of known plans that it takes away."""

    @property
    def best(self) -> int | None:
        """The first."""
        return self.positions[0] if self.positions else None


def keep(plans: Plans, choice: PlannerChoice) -> PlansWithinLimits:
    """Filter the plans of a search; microseconds, so that sliders are not waited for."""
    against = [choice.reason_against(plan) for plan in plans]
    positions = tuple(at for at, reason in enumerate(against) if not reason)
    front = ranking.pareto([_bill(plans.plans[at]) for at in positions])
    lost = Counter(reason for reason in against if reason)
    return PlansWithinLimits(
        positions=positions, front=tuple(positions[at] for at in front), lost=lost
    )


def _bill(plan: Plan) -> tuple[float, float]:
    return (math.inf if plan.usd is None else plan.usd, plan.hours)


def searched(plans: Plans, positions: Sequence[int]) -> OfferSearch | None:
    """The search as if it had found these plans alone, for the engine's own words about them."""
    if not isinstance(plans.answers, OfferAnswers):
        return None
    search = copy.copy(plans.answers.search)
    search.priced = [search.priced[at] for at in positions]
    return search


def points(plans: Plans) -> list[dict[str, Any]]:
    """Every plan, once per search: where it lies and what its hover says."""
    return [_point(plan) for plan in plans]


def _point(plan: Plan) -> dict[str, Any]:
    mfu = UNKNOWN if plan.step.mfu is None else f"{plan.step.mfu:.0%}"
    low, high = plan.cost.low, plan.cost.high
    return {
        "where": plan.where,
        "offer": where_text(plan.offer, plan.nodes, spot=plan.spot),
        "region": plan.offer.region,
        "layout": plan.layout,
        "usd": plan.usd,
        "hours": plan.hours,
        "gpus": plan.gpus,
        "spot": plan.spot,
        "cost": format_usd(plan.usd),
        "range": f"{format_usd(low.usd)} to {format_usd(high.usd)}",
        "time": format_hours(plan.hours),
        "speed": f"{format_count(plan.step.tokens_per_second)} tokens/s, MFU {mfu}",
        "rate": format_count(plan.step.tokens_per_second),
        "date": plan.offer.date or "undated",
        "marks": list(plan.offer.marks),
    }


def marks(plans: Plans) -> dict[str, list[float]]:
    """Positions of the sliders: each lets one more plan in."""
    return {
        "budget_usd": _rounded_up([plan.usd for plan in plans if plan.usd is not None]),
        "deadline_hours": _rounded_up([plan.hours for plan in plans]),
    }


def _rounded_up(values: list[float]) -> list[float]:
    """To three significant digits, so that the plan itself is let in."""
    rounded = set[float]()
    for value in values:
        unit = 10.0 ** (math.floor(math.log10(value)) - 2)
        rounded.add(float(f"{math.ceil(value / unit) * unit:.6g}"))
    return sorted(rounded)


def view(plans: Plans, choice: PlannerChoice, matches: PlansWithinLimits) -> dict[str, Any]:
    """What a move of a limit changes: a few kilobytes. Raises UsageError: it cannot be."""
    limits = choice.limits()
    return {
        "kept": list(matches.positions),
        "front": [] if choice.is_own else list(matches.front),
        "fits": matches.best is not None,
        "own": choice.is_own,
        "headline": _headline(plans, matches, limits),
        "why": _why(plans, matches, limits),
        "lost": dict(matches.lost),
        "assumptions": _assumptions(plans, choice),
        "sources": [],
    }


def _headline(plans: Plans, matches: PlansWithinLimits, limits: Limits) -> str:
    if matches.best is None:
        everything = searched(plans, range(len(plans)))
        reasons = plans.misses
        if everything is not None and everything.priced:
            reasons = explain.misses(everything, limits) or reasons
        return " ".join(("No plan meets these limits.", *reasons))
    best = plans.plans[matches.best]
    cost = "" if best.usd is None else f"{format_usd(best.usd)} and "
    return f"{cost}{format_hours(best.hours)}: {best.where}, {best.layout}."


def sooner_text(plans: Plans, matches: PlansWithinLimits) -> str:
    """What is won for up to twice the price, with a space behind; "" where nothing is."""
    search = searched(plans, matches.positions)
    text = explain.sooner(search.priced) if search is not None and search.priced else ""
    return text and f"{text} "


def _why(plans: Plans, matches: PlansWithinLimits, limits: Limits) -> dict[str, str]:
    """Position -> its reason, for the rows that are seen at first and the front."""
    search = searched(plans, matches.positions)
    if search is None:
        return {str(at): plans.plans[at].why.rstrip(".") for at in matches.positions[:WHY_MAX]}
    front = [matches.positions.index(at) for at in matches.front]
    rows = sorted({*range(min(WHY_MAX, len(matches.positions))), *front})
    return {
        str(matches.positions[row]): explain.why(search.priced, row, front, limits) for row in rows
    }


def _assumptions(plans: Plans, choice: PlannerChoice) -> list[str]:
    sentences = [
        (
            f"Every plan trains with a global batch of {plans.global_batch:,} sequences, so all do "
            "the same optimisation."
        ),
        (
            "The fastest layouts on all of the machines and on one GPU of them, the fastest first."
            if choice.is_own
            else "One plan per offer, number of nodes and kind of price, each with its fastest "
            "layout. Offers that ten others beat in dollars and hours are hidden."
        ),
        (
            "Dollars cover the finished run: work, start-up, checkpoints, lost work and billing; "
            "no storage, egress or idle hours (the cost calculator adds them)."
        ),
    ]
    best = plans.best
    sentences += [*best.cost.assumptions, *best.step.assumptions] if best else []
    if choice["spot"] and choice["interruption_hours"] is None:
        sentences.append("Providers do not publish spot lifetimes: a mean of 24 h is assumed.")
    return list(dict.fromkeys(sentences))


def as_text(
    figure: dict[str, Any],
    points: dict[str, Any],
    story: dict[str, Any],
    rejected: dict[str, Any],
) -> str:
    """Table, sentences and counts for terminals, screen readers and pages without JavaScript."""
    lines = [figure["headline"], figure["setting"]]
    if figure["kept"]:
        lines += ["", f"{'':<5}{'where':<40}{'time':>12}{'cost':>12}  layout"]
    for row, at in enumerate(figure["kept"][:_ROWS]):
        plan = points["rows"][at]
        mark = f"{row + 1}{' *' if at in figure['front'] else ''}"
        marks = f"  ({', '.join(plan['marks'])})" if plan["marks"] else ""
        numbers = f"{plan['time']:>12}{plan['cost']:>12}"
        lines.append(f"{mark:<5}{plan['where']:<40}{numbers}  {plan['layout']}{marks}")
    if figure["kept"] and not figure["own"]:
        lines.append("* no other plan is both cheaper and faster")
    if story.get("explain"):
        lines += ["", *story["explain"]]
    if story.get("sensitivity"):
        lines += ["", *(sentence["says"] for sentence in story["sensitivity"])]
    groups = [*story.get("lost", []), *rejected.get("groups", [])]
    if groups:
        lines += ["", "Rejected layouts:"]
        lines += [f"  {group['count']:>9,}  {group['kind']}" for group in groups]
    return "\n".join(lines)
