"""The terms of a run's cost: an amount each, how it comes about, where its price was read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.describe.price import Terms
from workbench.estimate.cost.hours import Job, RunHours
from workbench.units import format_bytes, format_count, format_seconds, format_usd

_TIMED: Mapping[str, Callable[[RunHours], float]] = {
    "useful work": lambda hours: hours.work,
    "start-up": lambda hours: hours.start,
    "evaluation": lambda hours: hours.evaluation,
    "failed attempts": lambda hours: hours.failed,
    "checkpoints written": lambda hours: hours.checkpoints,
    "lost work and restarts": lambda hours: hours.lost,
    "idle": lambda hours: hours.idle,
    "billing round-up": lambda hours: hours.round_up,
}
RUNNING, STOPPED, EGRESS = "storage while running", "storage while stopped", "egress"
_FIGURES = {
    RUNNING: "storage_usd_per_gb_month",
    STOPPED: "stopped_storage_usd_per_gb_month",
    EGRESS: "egress_usd_per_gb",
}
NOTHING = "none"
DAY = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerm:
    """One line of the bill."""

    name: str
    """What is paid for."""
    usd: float | None
    """Dollars; None where a price is unknown, 0 only where nothing is used."""
    how: str
    """The arithmetic in words."""
    source: str
    """Where the price was read; empty where none is needed or known."""
    date: str
    """When; empty when the source does not say."""


def amounts(
    job: Job, hours: RunHours, *, spot: bool, price_factor: float = 1.0
) -> dict[str, float | None]:
    """Dollars of every term, in the order of the bill; None where a price is unknown."""
    hourly = job.usd_per_hour(spot=spot)
    hourly = None if hourly is None else hourly * price_factor
    plan, terms = job.plan, job.terms
    month = plan.hours_per_month
    used = (hours.wall + hours.idle) / month
    by_term = {name: _priced(hourly, count(hours)) for name, count in _TIMED.items()}
    by_term[RUNNING] = _priced(terms.storage_usd_per_gb_month, paid_gb(job, spot=spot), used)
    by_term[STOPPED] = _priced(
        terms.stopped_storage_usd_per_gb_month, plan.storage_gb, plan.stopped_days, DAY / month
    )
    by_term[EGRESS] = _priced(terms.egress_usd_per_gb, plan.egress_gb)
    return by_term


def paid_gb(job: Job, *, spot: bool) -> float:
    """Disk that is billed while the machines run: what exceeds the disk in the price.

    Spot machines take their own disk with them, so all of it stands elsewhere.
    """
    included = 0.0 if spot else (job.offer.disk_gb or 0.0) * job.nodes
    return max(0.0, job.plan.storage_gb - included)


def total(by_term: Mapping[str, float | None]) -> float | None:
    """The sum; None as soon as one term is unknown."""
    priced = [usd for usd in by_term.values() if usd is not None]
    return sum(priced) if len(priced) == len(by_term) else None


def priced_total(by_term: Mapping[str, float | None]) -> float | None:
    """The sum of what is known; None when no hour has a price."""
    if by_term["useful work"] is None:
        return None
    return sum(usd for usd in by_term.values() if usd is not None)


def lines(
    job: Job, hours: RunHours, by_term: Mapping[str, float | None], *, spot: bool
) -> tuple[CostTerm, ...]:
    """Every term with its arithmetic, source and date."""
    explained = _timed_words(job, hours, spot=spot) | _other_words(job, hours, spot=spot)
    offer, terms = job.offer, job.terms
    result: list[CostTerm] = []
    for name, usd in by_term.items():
        source, date = (offer.source, offer.date) if name in _TIMED else _cited(terms, name)
        priced = usd is not None and explained[name] != NOTHING
        result.append(
            CostTerm(
                name=name,
                usd=usd,
                how=explained[name],
                source=source if priced else "",
                date=date if priced else "",
            )
        )
    return tuple(result)


def _cited(terms: Terms, name: str) -> tuple[str, str]:
    """Source and date of one figure, where the terms name them as "figure: source (date); …"."""
    figure = _FIGURES[name]
    pattern = rf"(?:^|; ){figure}: (.*?) \(([\d-]+)\)(?=; [a-z_]+: |$)"
    match = re.search(pattern, terms.source)
    return (match[1], match[2]) if match else (terms.source, terms.date)


def _priced(price: float | None, *factors: float) -> float | None:
    """Nothing costs nothing, whatever its price; something of unknown price is unknown.

    Nothing is a factor of 0. A product of tiny factors can be 0 too, and is not nothing.
    """
    if not all(factors):
        return 0.0
    return None if price is None else math.prod(factors) * price


def _timed_words(job: Job, hours: RunHours, *, spot: bool) -> dict[str, str]:
    plan, price = job.plan, job.offer.spot_usd_per_hour if spot else job.offer.usd_per_hour
    machines = f"{job.nodes} x " if job.nodes > 1 else ""
    rate = f"x {machines}{format_usd(price)}/h" if price else "(price unknown)"
    interval = format_seconds(hours.interval_seconds)
    saving = format_seconds(plan.saving_seconds(job.nodes))
    size = f" of {format_bytes(plan.checkpoint_bytes)}" if plan.checkpoint_bytes else ""
    words = {
        "useful work": f"{format_count(job.steps)} steps of {format_seconds(job.step_seconds)}",
        "start-up": "machines, image, data, weights",
        "evaluation": f"{plan.evaluation_share:.3g} of the work",
        "failed attempts": f"{plan.failed_share:.3g} of the work",
        "checkpoints written": f"one{size} every {interval}, {saving} each",
        "lost work and restarts": (
            f"{hours.interruptions:.3g} interruptions, half an interval and "
            f"{format_seconds(plan.restart_seconds)} each"
        ),
        "idle": "machines on, nothing running",
        "billing round-up": _unit(job),
    }
    return {
        name: f"{text}: {_hours(_TIMED[name](hours))} {rate}" if _TIMED[name](hours) else NOTHING
        for name, text in words.items()
    }


def _other_words(job: Job, hours: RunHours, *, spot: bool) -> dict[str, str]:
    plan, terms = job.plan, job.terms
    included = plan.storage_gb - paid_gb(job, spot=spot)
    gb = f"{plan.storage_gb:,.4g} GB"
    run = f"{gb} for {_hours(hours.wall + hours.idle)}"
    run += f", {included:,.4g} GB of it on the machines' own disks" if included else ""
    running = _rate(terms.storage_usd_per_gb_month, "GB-month", plan.hours_per_month)
    stopped = _rate(terms.stopped_storage_usd_per_gb_month, "GB-month", plan.hours_per_month)
    egress = f"{plan.egress_gb:,.4g} GB {_rate(terms.egress_usd_per_gb, 'GB')}"
    is_stored = plan.storage_gb and plan.stopped_days
    return {
        RUNNING: f"{run} {running}" if plan.storage_gb else NOTHING,
        STOPPED: f"{gb} for {plan.stopped_days:.3g} days {stopped}" if is_stored else NOTHING,
        EGRESS: egress if plan.egress_gb else NOTHING,
    }


def _rate(price: float | None, per: str, month: int | None = None) -> str:
    if price is None:
        return "(price unknown)"
    return f"x {format_usd(price)}/{per}" + (f" of {month} h" if month else "")


def _unit(job: Job) -> str:
    unit, least = job.terms.billing_seconds, job.terms.minimum_seconds
    text = "unit unknown, counted as full hours" if unit is None else f"per {format_seconds(unit)}"
    return text + (f", at least {format_seconds(least)}" if least else "")


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 1000 else f"{hours:.3g} h"
