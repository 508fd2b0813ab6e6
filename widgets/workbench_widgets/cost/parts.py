"""What both faces of money show: the bill by term, the step by part, a price with its date."""

from __future__ import annotations

from typing import Any

from workbench.describe.price import Offer
from workbench.estimate.cost import RunCost
from workbench.estimate.cost.terms import NOTHING
from workbench.estimate.timing import StepTime
from workbench.planning.plans import OWN
from workbench.units import UNKNOWN, format_between, format_seconds, format_usd


def bill(cost: RunCost) -> dict[str, Any]:
    """Every term that is used with its arithmetic, source and date; `share` of what is known."""
    known_usd = cost.usd_known or 0.0
    terms = [
        {
            "name": term.name,
            "usd": term.usd,
            "says": format_usd(term.usd),
            "share": term.usd / known_usd if term.usd and known_usd else None,
            "how": term.how,
            "source": term.source,
            "date": term.date,
        }
        for term in cost.terms
        if term.how != NOTHING
    ]
    return {
        "terms": terms,
        "total": cost.total_text,
        "nothing": [term.name for term in cost.terms if term.how == NOTHING],
    }


def step_parts(step: StepTime) -> dict[str, Any]:
    """One optimizer step by named part, longest first."""
    seconds = step.step_seconds
    ends = format_between(seconds * step.low, seconds * step.high)
    rows = sorted(step.parts.items(), key=lambda part: -part[1])
    return {
        "says": f"{format_seconds(seconds)} ({ends})",
        "parts": [
            {
                "name": name,
                "share": part / seconds,
                "says": f"{format_seconds(part)}, {part / seconds:.0%}",
            }
            for name, part in rows
        ],
    }


def priced_at(offer: Offer, nodes: int, *, spot: bool) -> str:
    """Where the machines stand and what one hour of one costs."""
    price = offer.spot_usd_per_hour if spot else offer.usd_per_hour
    kind = "spot" if spot else "on demand"
    each = f"{format_usd(price)} an hour each"
    machines = f"{nodes} x {offer.name or offer.gpu}" if nodes > 1 else offer.name or offer.gpu
    if offer.provider == UNKNOWN:
        return f"{machines}: not in the price table"
    if offer.provider == OWN:
        return f"{offer.name}: {'price not known' if price is None else each}"
    place = f", {offer.region}" if offer.region else ""
    return f"{machines} at {offer.provider}{place}, {kind}, {each}"


def hours_between(low: float | None, high: float | None) -> str:
    """A range of durations; "" where its ends are the same."""
    if low == high:
        return ""
    return format_between(*(None if hours is None else 3600 * hours for hours in (low, high)))
