"""Hours of a run on rented machines: work, start-up, checkpoints, what interruptions cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.describe.price import Offer, Terms
from workbench.estimate.cost.plan import HOUR, RunPlan
from workbench.estimate.interruptions import (
    daly_interval,
    expected_wall_seconds,
    wall_range_seconds,
)

COARSEST_SECONDS = 3600.0
"""Billing unit where a provider's is unknown: full hours, the coarsest in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHours:
    """Expected hours of one run, by what they are spent on."""

    work: float
    """Training steps that end up in the result."""
    start: float
    """Before the first step."""
    evaluation: float
    """Evaluation."""
    failed: float
    """Attempts that are thrown away."""
    checkpoints: float
    """Writing checkpoints."""
    lost: float
    """Work done twice and restarts, after interruptions and failures."""
    idle: float
    """Machines on, nothing running."""
    round_up: float
    """Billed beyond what was used."""
    interval_seconds: float
    """Work between two checkpoints."""
    mean_hours: float
    """Mean time between interruptions of the whole job, failures included; inf = none."""
    interruptions: float
    """How many are to be expected."""

    @property
    def wall(self) -> float:
        """From renting the machines to the finished run; without idle hours."""
        return self.start + self.work + self.evaluation + self.failed + self.checkpoints + self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run on an offer's machines: everything that hours and dollars depend on."""

    step_seconds: float
    """One optimizer step."""
    steps: int
    """Optimizer steps."""
    gpus: int
    """GPUs that work."""
    offer: Offer
    """Machines and price."""
    nodes: int
    """Machines."""
    terms: Terms
    """The provider's other terms."""
    plan: RunPlan
    """The run."""

    @property
    def interruption_hours(self) -> float | None:
        """Spot: mean time until one machine is taken; None when unknown."""
        return self.plan.interruption_hours or self.terms.interruption_hours

    def usd_per_hour(self, *, spot: bool) -> float | None:
        """All machines for one hour; None = unknown or not offered."""
        price = self.offer.spot_usd_per_hour if spot else self.offer.usd_per_hour
        return None if price is None else price * self.nodes

    def hours(
        self,
        machine_hours: float = math.inf,
        *,
        factor: float = 1.0,
        billing_seconds: float = COARSEST_SECONDS,
        luck: int = 0,
    ) -> RunHours:
        """Hours when a machine is taken away every `machine_hours` on average.

        Machines are taken independently of each other, and one is enough to stop the job.

        Args:
            machine_hours: inf = never.
            factor: step time over the estimate's.
            billing_seconds: billing unit where the provider's is unknown.
            luck: 0 = as expected; 1 and -1 = the ends between which four of five runs lie, for
                interruptions come at random.

        Raises:
            UsageError: interruptions so frequent that the run never ends.
        """
        plan = self.plan
        preempted = self.nodes / machine_hours
        failing = self.gpus / plan.failure_gpu_hours if plan.failure_gpu_hours else 0.0
        rate = preempted + failing
        work = self.steps * self.step_seconds * factor
        total = work * (1 + plan.evaluation_share + plan.failed_share)
        saving = plan.saving_seconds(self.nodes)
        interval = self._interval(total, saving, rate, factor)
        saved = total / interval * saving
        run = total + saved
        if rate:
            terms = (total, saving, interval, HOUR / rate, plan.restart_seconds)
            run = expected_wall_seconds(*terms)
            run = run if not luck else wall_range_seconds(*terms)[0 if luck > 0 else 1]
        used = plan.start_seconds + run + plan.idle_hours * HOUR
        billed = self._billed(used, run, machine_hours * HOUR, billing_seconds)
        return RunHours(
            work=work / HOUR,
            start=plan.start_seconds / HOUR,
            evaluation=work * plan.evaluation_share / HOUR,
            failed=work * plan.failed_share / HOUR,
            checkpoints=saved / HOUR,
            lost=max(0.0, run - total - saved) / HOUR,
            idle=plan.idle_hours,
            round_up=max(0.0, billed - used) / HOUR,
            interval_seconds=interval,
            mean_hours=1 / rate if rate else math.inf,
            interruptions=run / HOUR * rate,
        )

    def _interval(self, total: float, saving: float, rate: float, factor: float) -> float:
        """Seconds of work between checkpoints; never within a step, never beyond the run."""
        interval = self.plan.checkpoint_interval_seconds
        if interval is None:
            interval = daly_interval(saving, 1 / rate) if rate else total
        return min(total, max(interval, self.step_seconds * factor))

    def _billed(self, used: float, run: float, life: float, coarsest: float) -> float:
        """Seconds billed per machine: rounded up at the end and whenever it is taken away."""
        unit = self.terms.billing_seconds or coarsest
        least = self.terms.minimum_seconds or 0.0
        billed = max(least, math.ceil(used / unit - 1e-9) * unit)
        if math.isinf(life):
            return billed
        # Taken at random, it wastes half a unit, or what its life lacks of the least on average.
        short = least + life * math.expm1(-least / life)
        return billed + run / life * max(unit / 2, short)
