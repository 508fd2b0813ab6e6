"""Spot against on-demand: both bills of one run, and how rare interruptions must be to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.errors import UsageError
from workbench.estimate.cost.hours import Job, RunHours
from workbench.estimate.cost.terms import amounts, priced_total
from workbench.units import format_seconds, format_usd

UNKNOWN_HOURS = (math.inf, 24.0, 1.0)
"""Spot machines whose provider publishes no rate: never, once a day, once an hour. Chosen wide:
Google ended preemptible machines after 24 h at the latest (arXiv 1911.05160)."""
_LEAST_HOURS, _MOST_HOURS = 1e-3, 1e7


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotAnswer:
    """One run rented both ways."""

    offered: bool
    """Whether there is a spot price."""
    usd: float | None
    """Interruptible machines; None when their price is unknown or the run would never end."""
    usd_on_demand: float | None
    """Machines that are not interrupted; None when their price is unknown."""
    wall_hours: float | None
    """With interruptions."""
    wall_hours_on_demand: float | None
    """Without, failures of machines included."""
    interruption_hours: float | None
    """Mean hours until one machine is taken, as given; None = unknown."""
    break_even_hours: float | None
    """Spot is cheaper while a machine lives longer than this on average; None = never, or one of
    the two prices is unknown."""

    @property
    def saving_share(self) -> float | None:
        """Share of the on-demand bill that spot saves; negative = dearer."""
        if self.usd is None or not self.usd_on_demand:
            return None
        return 1 - self.usd / self.usd_on_demand

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.usd_on_demand is None:
            return "No on-demand price to compare with."
        if not self.offered:
            return "No spot price known here."
        if self.break_even_hours is None:
            return "Spot is never cheaper here."
        limit = format_seconds(self.break_even_hours * 3600)
        text = (
            f"Spot {format_usd(self.usd)} against on-demand {format_usd(self.usd_on_demand)}; "
            f"it pays while a machine lives longer than {limit} on average"
        )
        if self.interruption_hours is None:
            return text + " (the mean time is not published; 24 h assumed)."
        return text + f" (yours: {format_seconds(self.interruption_hours * 3600)})."

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        own = ("usd", "usd_on_demand", "wall_hours", "wall_hours_on_demand")
        names = (*own, "interruption_hours", "break_even_hours", "saving_share", "verdict")
        return {name: getattr(self, name) for name in names}


def against_on_demand(job: Job) -> SpotAnswer:
    """Both bills; where storage or egress has no price, both without it."""
    hours = job.interruption_hours
    on_demand = _bill(job, math.inf, spot=False)
    on_spot = _bill(job, hours or UNKNOWN_HOURS[1], spot=True)
    return SpotAnswer(
        offered=job.offer.spot_usd_per_hour is not None,
        usd=on_spot and on_spot[1],
        usd_on_demand=on_demand and on_demand[1],
        wall_hours=on_spot and on_spot[0].wall,
        wall_hours_on_demand=on_demand and on_demand[0].wall,
        interruption_hours=hours,
        break_even_hours=_break_even(job, on_demand and on_demand[1]),
    )


def _bill(job: Job, machine_hours: float, *, spot: bool) -> tuple[RunHours, float | None] | None:
    try:
        hours = job.hours(machine_hours)
    except UsageError:  # interrupted so often that it never ends
        return None
    return hours, priced_total(amounts(job, hours, spot=spot))


def _break_even(job: Job, most_usd: float | None) -> float | None:
    """Bisection: the bill falls as machines live longer."""

    def pays(machine_hours: float) -> bool:
        bill = _bill(job, machine_hours, spot=True)
        return bill is not None and bill[1] is not None and bill[1] <= (most_usd or 0.0)

    if most_usd is None or not pays(_MOST_HOURS):
        return None
    low, high = _LEAST_HOURS, _MOST_HOURS
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
