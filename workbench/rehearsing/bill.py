"""Dollars of a rehearsed run up to a moment: the machines that were rented, and what is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.estimate.cost.hours import COARSEST_SECONDS
from workbench.estimate.cost.hours import Job as CostJob
from workbench.estimate.cost.run_cost import RunCost
from workbench.estimate.cost.terms import EGRESS, STOPPED, paid_gb
from workbench.rehearsing.schedule import Schedule

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Prices of a run, applied to what a schedule rented."""

    job: CostJob
    """Machines, prices and plan."""
    after_usd: float | None
    """What is paid once, at the end: stopped disks and egress; None = a price is unknown."""

    @classmethod
    def of(cls, cost: RunCost) -> Bill:
        """The prices of a plan's bill."""
        once = [cost.amounts[name] for name in (STOPPED, EGRESS)]
        amounts = [usd for usd in once if usd is not None]
        return cls(job=cost.job, after_usd=sum(amounts) if len(amounts) == len(once) else None)

    @property
    def usd_per_machine_hour(self) -> float | None:
        """One machine; None = unknown."""
        hourly = self.job.usd_per_hour(spot=self.job.plan.spot)
        return None if hourly is None else hourly / self.job.nodes

    def machine_seconds(self, schedule: Schedule, at: float) -> float:
        """Billed seconds of all machines up to `at`: rounded up as the provider does."""
        unit = self.job.terms.billing_seconds or COARSEST_SECONDS
        least = self.job.terms.minimum_seconds or 0.0
        idle = self.job.plan.idle_hours * HOUR
        total = 0.0
        for lease in schedule.leases:
            last = lease.end + (idle if lease.why == "returned" else 0.0)
            used = min(last, at) - lease.begin
            if used > 0 or lease.begin < at:
                total += max(least, math.ceil(used / unit - 1e-9) * unit)
        return total

    def usd(self, schedule: Schedule, at: float = math.inf) -> float | None:
        """Dollars up to `at` seconds; inf = the whole bill. None: a price is unknown."""
        price, plan, terms = self.usd_per_machine_hour, self.job.plan, self.job.terms
        if price is None:
            return None
        total = self.machine_seconds(schedule, at) / HOUR * price
        stored = paid_gb(self.job, spot=plan.spot)
        if stored:
            if terms.storage_usd_per_gb_month is None:
                return None
            hours = min(at, schedule.end + plan.idle_hours * HOUR) / HOUR
            total += stored * terms.storage_usd_per_gb_month * hours / plan.hours_per_month
        if math.isinf(at):
            return None if self.after_usd is None else total + self.after_usd
        return total
