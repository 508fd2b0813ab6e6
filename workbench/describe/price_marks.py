"""Reasons to doubt a price, decided in one place: stale, undated, odd. Pure; the day is given."""

from __future__ import annotations

import calendar
import datetime as dt
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from workbench.describe.price import MARKS, STALE_DAYS, Offer

ODD_BELOW, ODD_ABOVE = 0.3, 3.0  # times the table's median per accelerator


def medians(offers: Iterable[Offer]) -> dict[str, float]:
    """Usual on-demand price per accelerator and hour: the median of the verified offers."""
    prices: dict[str, list[float]] = defaultdict(list)
    for one in offers:
        price = one.usd_per_gpu_hour
        if price is not None and "unverified" not in one.marks:
            prices[one.gpu].append(price)
    return {gpu: statistics.median(known) for gpu, known in prices.items()}


def marked(offer: Offer, usual: Mapping[str, float], today: dt.date) -> Offer:
    """The offer with every mark it deserves on `today`, added to those it already has."""
    marks = set(offer.marks)
    last = last_day(offer.date)
    if last is None or len(offer.date) < len("2026-01-01"):
        marks.add("undated")
    if last is not None and (today - last).days > STALE_DAYS:
        marks.add("stale")
    if _is_odd(offer, usual.get(offer.gpu)):
        marks.add("odd")
    ordered = tuple(mark for mark in MARKS if mark in marks)
    return offer if ordered == offer.marks else replace(offer, marks=ordered)


def last_day(date: str) -> dt.date | None:
    """The latest day that an ISO date, month or year can mean; None where it says nothing.

    >>> last_day("2026-02"), last_day("2025"), last_day("")
    (datetime.date(2026, 2, 28), datetime.date(2025, 12, 31), None)
    """
    if re.fullmatch(r"\d{4}(-\d\d){0,2}", date) is None:
        return None
    year, month, day = [*map(int, date.split("-")), 0, 0][:3]
    month = month or 12
    try:
        return dt.date(year, month, day or calendar.monthrange(year, month)[1])
    except ValueError:
        return None


def _is_odd(offer: Offer, usual: float | None) -> bool:
    """Spot above on demand, or a price per accelerator far from the usual one.

    A low spot price is not odd: discounts of 90 % are real.
    """
    on_demand, spot = offer.usd_per_hour, offer.spot_usd_per_hour
    if on_demand is not None and spot is not None and spot > on_demand:
        return True
    if usual is None:
        return False
    if spot is not None and spot / offer.gpus > ODD_ABOVE * usual:
        return True
    price = offer.usd_per_gpu_hour
    return price is not None and not ODD_BELOW * usual <= price <= ODD_ABOVE * usual
