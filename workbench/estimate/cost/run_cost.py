"""Dollars and hours of a finished run: every term of the bill on its own line, with a range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.describe.price import Offer, Terms
from workbench.errors import UsageError
from workbench.estimate.cost.hours import COARSEST_SECONDS, Job, RunHours
from workbench.estimate.cost.plan import RunPlan
from workbench.estimate.cost.spot import UNKNOWN_HOURS, SpotAnswer, against_on_demand
from workbench.estimate.cost.terms import CostTerm, amounts, lines, priced_total, total
from workbench.estimate.timing import StepTime
from workbench.units import UNKNOWN, format_seconds, format_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of the range."""

    usd: float | None
    """Dollars; None when a price is unknown or the run would never end."""
    wall_hours: float | None
    """Hours; None when it would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What one finished run costs; ``run_cost()`` makes it."""

    step: StepTime
    """Time of a step, with its own range and assumptions."""
    job: Job
    """Machines, prices and plan."""
    tokens: float
    """Tokens of the run."""
    hours: RunHours
    """Expected hours, by what they are spent on."""
    amounts: Mapping[str, float | None]
    """Term -> dollars; None where a price is unknown."""
    low: Bound
    """Step time, price and interruptions at their lower ends; none where their rate is unknown."""
    high: Bound
    """At their upper ends; a machine taken every hour where the rate is unknown."""

    @property
    def spot(self) -> bool:
        """Rented as interruptible machines."""
        return self.job.plan.spot

    @property
    def usd(self) -> float | None:
        """The finished run; None as soon as one term has no price."""
        return total(self.amounts)

    @property
    def usd_known(self) -> float | None:
        """What is known of it; None when not even the machines have a price."""
        return priced_total(self.amounts)

    @property
    def wall_hours(self) -> float:
        """From renting the machines to the finished run, idle hours left out."""
        return self.hours.wall

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of useful work."""
        return self.hours.work * self.step.gpus

    @property
    def usd_per_step(self) -> float | None:
        """The whole bill per optimizer step."""
        return None if self.usd is None else self.usd / self.job.steps

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The whole bill per million tokens trained on."""
        return None if self.usd is None else self.usd / self.tokens * 1e6

    @property
    def idle_usd_per_hour(self) -> float | None:
        """What an hour costs in which the machines do nothing."""
        return self.job.usd_per_hour(spot=self.spot)

    @property
    def usd_per_month(self) -> float | None:
        """All machines for a month of `plan.hours_per_month` hours, without storage."""
        hourly = self.idle_usd_per_hour
        return None if hourly is None else hourly * self.job.plan.hours_per_month

    @property
    def terms(self) -> tuple[CostTerm, ...]:
        """Every term on its own line."""
        return lines(self.job, self.hours, self.amounts, spot=self.spot)

    def lost_range(self) -> tuple[float | None, float | None]:
        """Hours lost to interruptions between which four of five runs lie; None: it never ends.

        At the planned step time: only chance and an unknown rate are in it.
        """
        best, _, worst = _machine_hours(self.job)
        return _lost(self.job, best, 1), _lost(self.job, worst, -1)

    def spot_answer(self) -> SpotAnswer:
        """Spot against on-demand for this run, whichever was chosen."""
        return against_on_demand(self.job)

    @property
    def total_text(self) -> str:
        """The total, or what is known of it: "n/a (terms priced 9 of 11; known: $12.30)"."""
        if self.usd is not None:
            return format_usd(self.usd)
        priced = sum(usd is not None for usd in self.amounts.values())
        part = f"; known: {format_usd(self.usd_known)}" if self.usd_known is not None else ""
        return f"{UNKNOWN} (terms priced {priced} of {len(self.amounts)}{part})"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed about the run; the step's own assumptions stand in `step`."""
        return _assumptions(self)

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as printed by ``workbench cost --json``."""
        job, step, offer = self.job, self.step, self.job.offer
        names = ("name", "usd", "how", "source", "date")
        lost_low, lost_high = self.lost_range()
        return {
            "terms": [{name: getattr(term, name) for name in names} for term in self.terms],
            "usd": self.usd,
            "usd_known": self.usd_known,
            "usd_low": self.low.usd,
            "usd_high": self.high.usd,
            "hours": self.hours.work,
            "wall_hours": self.wall_hours,
            "wall_hours_low": self.low.wall_hours,
            "wall_hours_high": self.high.wall_hours,
            "lost_hours": self.hours.lost,
            "lost_hours_low": lost_low,
            "lost_hours_high": lost_high,
            "gpu_hours": self.gpu_hours,
            "steps": job.steps,
            "tokens": self.tokens,
            "usd_per_step": self.usd_per_step,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "usd_per_month": self.usd_per_month,
            "hours_per_month": job.plan.hours_per_month,
            "idle_usd_per_hour": self.idle_usd_per_hour,
            "tokens_per_second": step.tokens_per_second,
            "mfu": step.mfu,
            "checkpoint_interval_seconds": self.hours.interval_seconds,
            "interruptions": self.hours.interruptions,
            "step": step.document(),
            "spot": {"chosen": self.spot} | self.spot_answer().document(),
            "offer": offer_document(offer) | {"nodes": job.nodes},
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        rows = [f"{term.name:<26}{format_usd(term.usd):>12}  {term.how}" for term in self.terms]
        return "\n".join([*rows, f"{'finished run':<26}{self.total_text:>12}"])

    __repr__ = __str__


def run_cost(
    step: StepTime,
    offer: Offer,
    nodes: int,
    terms: Terms,
    plan: RunPlan,
    *,
    price_range: tuple[float, float] = (1.0, 1.0),
) -> RunCost:
    """Hours and dollars of a finished run on `nodes` machines of an offer.

    Args:
        step: Time of one optimizer step on these machines.
        offer: The machines and their price.
        nodes: How many; all their GPUs are paid for.
        terms: The provider's billing unit, storage and egress.
        plan: How long the run is, how it is saved, what else is paid for.
        price_range: Lower and upper price over the offer's, for the range.

    Raises:
        UsageError: more GPUs than the machines have, or interruptions so frequent that the run
            never ends.
    """
    if nodes < 1 or step.gpus > offer.gpus * nodes:
        raise UsageError(
            f"The step runs on {step.gpus} GPUs; {nodes} x {offer.name or offer.gpu} have "
            f"{offer.gpus * nodes}. Rent {math.ceil(step.gpus / offer.gpus)} of them."
        )
    steps, tokens = plan.length(step.tokens)
    job = Job(
        step_seconds=step.step_seconds,
        steps=steps,
        gpus=step.gpus,
        offer=offer,
        nodes=nodes,
        terms=terms,
        plan=plan,
    )
    best, usual, worst = _machine_hours(job)
    hours = job.hours(usual)
    return RunCost(
        step=step,
        job=job,
        tokens=tokens,
        hours=hours,
        amounts=amounts(job, hours, spot=plan.spot),
        low=_bound(job, best, step.low, price_range[0], billing_seconds=1.0, luck=1),
        high=_bound(job, worst, step.high, price_range[1], luck=-1),
    )


def _machine_hours(job: Job) -> tuple[float, float, float]:
    """How long a machine lives: at best, as planned, at worst."""
    if not job.plan.spot:
        return math.inf, math.inf, math.inf
    hours = job.interruption_hours
    return UNKNOWN_HOURS if hours is None else (hours, hours, hours)


def _bound(
    job: Job,
    machine_hours: float,
    factor: float,
    price: float,
    *,
    billing_seconds: float = COARSEST_SECONDS,
    luck: int,
) -> Bound:
    try:
        hours = job.hours(machine_hours, factor=factor, billing_seconds=billing_seconds, luck=luck)
    except UsageError:
        return Bound(usd=None, wall_hours=None)
    bill = amounts(job, hours, spot=job.plan.spot, price_factor=price)
    return Bound(usd=total(bill), wall_hours=hours.wall)


def _lost(job: Job, machine_hours: float, luck: int) -> float | None:
    try:
        return job.hours(machine_hours, luck=luck).lost
    except UsageError:
        return None


def offer_document(offer: Offer) -> dict[str, Any]:
    """Plain JSON form of an offer."""
    plain: dict[str, Any] = {name: getattr(offer, name) for name in Offer.__slots__}
    network = offer.network and offer.network.name
    per_gpu = {"usd_per_gpu_hour": offer.usd_per_gpu_hour}
    return plain | per_gpu | {"network": network, "marks": list(offer.marks)}


def _assumptions(cost: RunCost) -> tuple[str, ...]:
    job, hours, plan = cost.job, cost.hours, cost.job.plan
    start, restart = format_seconds(plan.start_seconds), format_seconds(plan.restart_seconds)
    sentences = [
        f"Start-up takes {start} and a restart {restart}: chosen, not measured.",
        _saving_sentence(cost),
    ]
    if plan.failure_gpu_hours:
        sentences.append(
            f"Machines fail once in {plan.failure_gpu_hours:,.0f} GPU-hours (Llama 3 405B: 419 "
            f"times in 54 days on 16,384 H100, arXiv 2407.21783)."
        )
    if cost.spot and job.interruption_hours is None:
        sentences.append(
            "Nobody publishes how long spot machines live: taken as 24 h, the range is from never "
            "taken to taken every hour. Machines are taken independently of each other."
        )
    idle = job.offer.gpus * job.nodes - job.gpus
    if idle:
        sentences.append(f"{idle} of {job.offer.gpus * job.nodes} GPUs are paid for and not used.")
    if job.terms.billing_seconds is None:
        sentences.append("The billing unit is unknown: counted in full hours.")
    if not plan.storage_gb and not plan.egress_gb:
        sentences.append("No storage and no egress were asked for, so none is priced.")
    if job.offer.marks:
        sentences.append(f"The price is {', '.join(job.offer.marks)}: check it before you rent.")
    if hours.mean_hours * 3600 < hours.interval_seconds + plan.restart_seconds:
        sentences.append("Interruptions come faster than checkpoints: most of the time is lost.")
    return tuple(sentences)


def _saving_sentence(cost: RunCost) -> str:
    plan, hours = cost.job.plan, cost.hours
    chosen = "Daly's optimum" if plan.checkpoint_interval_seconds is None else "as given"
    rate = ""
    if plan.checkpoint_seconds is None:
        rate = f", written at {plan.storage_bytes_per_second / 1e9:.3g} GB/s per node"
    interval = format_seconds(hours.interval_seconds)
    if math.isinf(hours.mean_hours):
        return f"A checkpoint every {interval} ({chosen}){rate}; nothing interrupts the job."
    mean = format_seconds(hours.mean_hours * 3600)
    return f"A checkpoint every {interval} ({chosen} for an interruption every {mean}){rate}."
