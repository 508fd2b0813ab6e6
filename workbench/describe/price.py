"""What machines cost: an offer of a provider, and the provider's other terms.

Unknown is None and never 0; an offer whose price is doubtful carries marks that every face shows.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from workbench.describe.checks import require_positive
from workbench.describe.hardware import Cluster, Network
from workbench.describe.shown import changed_fields
from workbench.errors import UsageError

STALE_DAYS = 30
ODD_BELOW, ODD_ABOVE = 0.3, 3.0  # times the table's median per accelerator
MARKS = ("stale", "odd", "unverified", "undated", "form unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A provider's terms besides the hourly price; None where unknown."""

    provider: str
    """Short name, as in `Offer.provider`."""
    billing_seconds: float | None = None
    """Granularity of billing: 1 = per second, 60, 3600."""
    minimum_seconds: float | None = None
    """Least billed time per start."""
    storage_usd_per_gb_month: float | None = None
    """Disk while the machine runs."""
    stopped_storage_usd_per_gb_month: float | None = None
    """Disk while the machine is stopped."""
    egress_usd_per_gb: float | None = None
    """Data leaving the provider."""
    interruption_hours: float | None = None
    """Mean time between interruptions of spot machines; None: not published."""
    max_nodes: int | None = None
    """Most nodes of one kind that the provider joins by a fabric; 1 = single machines only."""
    source: str = ""
    """Where the terms were read."""
    date: str = ""
    """When."""
    notes: str = ""
    """What to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One kind of machine at one provider, with its price per node and hour."""

    __repr__ = changed_fields

    provider: str
    """Short name (runpod, aws, lambda …)."""
    name: str
    """The provider's own name of it."""
    gpu: str
    """Id in the accelerator catalog; the slower form where the offer does not say which."""
    gpus: int
    """Accelerators of one node."""
    usd_per_hour: float | None
    """On demand, one node; None = unknown."""
    spot_usd_per_hour: float | None = None
    """Interruptible, one node; None = unknown or not offered."""
    region: str = ""
    """Region or zone; empty when not said."""
    max_nodes: int | None = None
    """Nodes that can be joined by `network`; None = unknown (planned as 1)."""
    network: Network | None = None
    """Fabric between nodes; None = none or unknown."""
    cpu_cores: int | None = None
    """vCPUs of one node."""
    memory_bytes: int | None = None
    """Host memory of one node."""
    disk_gb: float | None = None
    """Local disk included in the price."""
    available: bool | None = None
    """True: rentable at `date`; None: a list price."""
    source: str = ""
    """Where the price was read."""
    date: str = ""
    """Day it was valid, ISO; empty when the source has none."""
    confidence: str = "medium"
    """high, medium, low, or own (entered by the user)."""
    marks: tuple[str, ...] = ()
    """Reasons to doubt it, of `MARKS`."""
    notes: str = ""
    """What to know."""

    def __post_init__(self) -> None:
        require_positive("offer.gpus", self.gpus)
        for field in ("usd_per_hour", "spot_usd_per_hour"):
            value = getattr(self, field)
            if value is not None and not 0 < value < 1e6:
                raise UsageError(
                    f"{self.provider} {self.name}: {field} must be above 0, not {value}. "
                    "Leave it out when the price is unknown."
                )

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """On demand, one accelerator; None = unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpus

    def cluster(self, nodes: int = 1, *, spot: bool = False) -> Cluster:
        """The machines of this offer as the estimates and the launcher take them.

        Raises:
            UsageError: an absurd number of nodes.
        """
        price = self.spot_usd_per_hour if spot else self.usd_per_hour
        return Cluster.rented(self.gpu, self.gpus, nodes, usd_per_hour=price, network=self.network)


def medians(offers: Iterable[Offer]) -> dict[str, float]:
    """Usual on-demand price per accelerator and hour: the median of the verified offers."""
    prices: dict[str, list[float]] = defaultdict(list)
    for offer in offers:
        price = offer.usd_per_gpu_hour
        if price is not None and "unverified" not in offer.marks:
            prices[offer.gpu].append(price)
    return {gpu: statistics.median(gpu_prices) for gpu, gpu_prices in prices.items()}


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
