"""A plan, and the ranked plans of one search: what `plan()` answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.job import Job
from workbench.describe.option import declared
from workbench.describe.price import Offer
from workbench.describe.trainers import Preset
from workbench.describe.trainers.preset import facts
from workbench.estimate.cost import RunCost
from workbench.estimate.parts import Estimate
from workbench.estimate.timing import StepTime
from workbench.planning.refusals import layout_text
from workbench.planning.rejected import LISTED, Rejected
from workbench.units import format_bytes, format_seconds, format_usd

MAX_LISTED = 10
"""Plans in a table."""
OWN = "own machines"
"""Provider of machines that are not rented through an offer."""
_BESIDE_LAYOUT = frozenset({"recompute", "recompute_parts", "offload"})
"""Options of a strategy that have keys of their own in a plan's document."""
_IMPLEMENTATION = declared(ImplementationAssumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to finish the run: `workload`, `strategy` and `cluster` are what a launcher takes."""

    provider: str
    """Who rents the machines out; "this host" and the like for own ones."""
    offer: Offer
    """The machines and their price."""
    gpu: str
    """Accelerator's id."""
    gpus: int
    """Of all nodes."""
    nodes: int
    """Machines."""
    strategy: Strategy
    """How the work is laid out."""
    workload: Workload
    """What is trained, with this plan's micro-batch and accumulation."""
    trained: Strategy
    """`strategy` and what the job's named trainer does there by itself: memory and time are of
    this one, which no library is told."""
    cluster: Cluster
    """Where, with its price and fabric."""
    memory: Estimate
    """Peak of the fullest rank."""
    step: StepTime
    """One optimizer step."""
    cost: RunCost
    """The bill of the finished run."""
    hours: float
    """From renting the machines to the finished run."""
    usd: float | None
    """The finished run; None when the machines have no price."""
    why: str
    """One sentence: what speaks for it, and why its layout is not simpler."""
    trainer: Preset | None = None
    """The job's named trainer, with what it does here; None = none is named."""

    @property
    def job(self) -> Job:
        """What `wb.launch` and the estimates take; its estimates are this plan's."""
        return Job(
            workload=self.workload,
            strategy=self.trained,
            cluster=self.cluster,
            trainer=self.trainer,
        )

    @property
    def spot(self) -> bool:
        """On interruptible machines."""
        return self.cost.spot

    @property
    def layout(self) -> str:
        """The layout in one line."""
        return layout_text(self.strategy, self.workload.micro_batch, self.workload.accumulate)

    def __str__(self) -> str:
        hours, usd = format_seconds(3600 * self.hours), format_usd(self.usd)
        return f"{self.where}, {self.layout}: {hours}, {usd}"

    __repr__ = __str__

    @property
    def notes(self) -> tuple[str, ...]:
        """What to switch off in the trainer: the recomputation that the plan does without."""
        if self.trainer is None or self.strategy.recompute != "none":
            return ()
        model, gpu = self.workload.model, self.cluster.accelerator
        options = {name: getattr(self.workload, name) for name in declared(Workload)}
        here = facts(self.strategy, model, options, gpu.arch if gpu else "")
        usual = self.trainer.assumed(here, model, self.strategy).get("recompute")
        if usual is None or usual.value == "none":
            return ()
        default = f"{self.trainer.label} recomputes by default ({usual.value})"
        return (f"{default}: switch that off there, the plan counts without it.",)

    @property
    def where(self) -> str:
        """The machines in one line."""
        machines = f"{self.nodes} x " if self.nodes > 1 else ""
        spot = " spot" if self.spot else ""
        return f"{self.provider} {machines}{self.offer.gpus} x {self.gpu}{spot}"

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        low, high, memory = self.cost.low, self.cost.high, self.memory.document()
        return {
            "provider": self.provider,
            "offer": self.offer.name,
            "region": self.offer.region,
            "gpu": self.gpu,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "spot": self.spot,
            "strategy": self.strategy.name,
            "layout": self.layout,
            "notes": list(self.notes),
            "micro_batch": self.workload.micro_batch,
            "accumulate": self.workload.accumulate,
            "seq_len": self.workload.seq_len,
            "precision": self.workload.precision,
            "recompute": self.strategy.recompute,
            "recompute_parts": list(self.strategy.recompute_parts),
            "offload": list(self.strategy.offload),
            "options": {
                name: value
                for name, value in self.strategy.options_beside_name().items()
                if name not in _BESIDE_LAYOUT
            },
            "hours": self.hours,
            "usd": self.usd,
            "usd_per_hour": self.cost.idle_usd_per_hour,
            "network": self.cluster.network and asdict(self.cluster.network),
            "link": self.cluster.link,
            "tokens_per_second": self.step.tokens_per_second,
            "step_seconds": self.step.step_seconds,
            "mfu": self.step.mfu,
            "memory": {key: memory[key] for key in _MEMORY_KEYS},
            "range": {
                "usd_low": low.usd,
                "usd_high": high.usd,
                "hours_low": low.wall_hours,
                "hours_high": high.wall_hours,
            },
            "price_source": self.offer.source,
            "price_date": self.offer.date,
            "price_marks": list(self.offer.marks),
            "why": self.why,
        }

    def trained_beside(self, workload: Workload) -> dict[str, Any]:
        """What the named trainer makes of `workload` and the layout there, by the options' names.

        Empty where no trainer is named, or where its defaults follow from nothing of the layout.
        """
        trained_values, plain_values = (
            {
                **{name: getattr(work, name) for name in declared(Workload)},
                **{name: getattr(work.kernels, name) for name in _IMPLEMENTATION},
                **strategy.options(),
            }
            for work, strategy in ((self.workload, self.trained), (workload, self.strategy))
        )
        return {
            name: value
            for name, value in trained_values.items()
            if value != plain_values[name] and name not in {"micro_batch", "accumulate"}
        }


_MEMORY_KEYS = (
    *("allocated_bytes", "reserved_bytes", "on_card_bytes", "card_bytes", "headroom_bytes"),
    *("fits", "verdict", "peak", "parts"),
)


def tight_note(memory: Estimate) -> str:
    """A clause on a plan whose range of memory ends beyond the card; "" for others."""
    if memory.verdict != "tight" or memory.card_bytes is None:
        return ""
    high, card = format_bytes(memory.high_bytes), format_bytes(memory.card_bytes)
    return f"memory is tight: up to {high} on a card of {card}; measure a step before a long run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What happens to the ranking when one number turns out worse."""

    name: str
    """The number: "speed of the winner" …"""
    change: str
    """How much worse it was taken."""
    winner: str
    """The first plan then, in one line; empty when none keeps the limits."""
    changes: bool
    """Whether that is another one."""
    at: float | None
    """The change at which another plan comes first, as a factor of time, rate or price; None: not
    up to `UP_TO`."""
    sentence: str
    """All of it in words."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


UP_TO = 4.0
"""Factor up to which a change of the winner is looked for."""


class Answers(Protocol):
    """What can still be asked of a finished search (explain.py)."""

    def explain(self) -> tuple[str, ...]:
        """Sentences: the winner against the others."""
        ...

    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What would change the winner."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Ranked plans; the first is the cheapest that keeps every limit, ties go to the faster.

    One plan per offer, number of nodes and kind of price, each with its fastest layout: on the same
    machines it is the cheapest too. The Pareto front is exact over all combinations looked at.
    """

    plans: tuple[Plan, ...]
    """Ranked; empty when nothing keeps the limits."""
    pareto: tuple[int, ...]
    """Positions of the plans that no other beats in both dollars and hours."""
    rejected: Rejected = field(compare=False)
    """Every other combination with its reason."""
    combinations: int
    """Layouts x offers looked at: `plans` and `rejected` together."""
    global_batch: int
    """Sequences per optimizer step, the same for all."""
    misses: tuple[str, ...] = ()
    """Where there is no plan: the nearest ones and what would make them one."""
    answers: Answers = field(compare=False)
    """Keeps what `explain` and `sensitivity` need."""

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    @property
    def best(self) -> Plan | None:
        """The first."""
        return self.plans[0] if self.plans else None

    def explain(self) -> tuple[str, ...]:
        """The winner against the runner-up, the naive choice and the dearest provider."""
        return self.answers.explain() if self.plans else self.misses

    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Whether the winner stays when a number turns out worse, and up to which value."""
        return self.answers.sensitivity() if self.plans else ()

    def document(self, listed: int = LISTED) -> dict[str, Any]:
        """Plain JSON form, with at most `listed` single rejections and all their totals."""
        return {
            "plans": [plan.document() for plan in self.plans],
            "pareto": list(self.pareto),
            "rejected": [
                {"layout": rejection.layout, "offer": rejection.offer, "reason": rejection.reason}
                for rejection in self.rejected.listed(listed)
            ],
            "rejected_total": self.rejected.total,
            "rejected_by_reason": dict(self.rejected.by_kind),
            "combinations": self.combinations,
            "global_batch": self.global_batch,
            "explanation": list(self.explain()),
            "sensitivity": [change.document() for change in self.sensitivity()],
        }

    def __str__(self) -> str:
        if not self.plans:
            return "\n".join(("no plan", *self.misses))
        front = set(self.pareto)
        listed = self.plans[:MAX_LISTED]
        where, layout = (
            max(len(name), *(len(getattr(plan, name)) for plan in listed)) + 2
            for name in ("where", "layout")
        )
        lines = [f"{'':<5}{'where':<{where}}{'layout':<{layout}}{'time':>12}{'cost':>10}"]
        for position, plan in enumerate(listed):
            mark = f"{position + 1}{' *' if position in front else ''}"
            hours, usd = format_seconds(3600 * plan.hours), format_usd(plan.usd)
            lines.append(
                f"{mark:<5}{plan.where:<{where}}{plan.layout:<{layout}}{hours:>12}{usd:>10}"
            )
        lines.append(f"* no other plan is both cheaper and faster; {len(self.plans)} plans, ")
        lines[-1] += f"{self.rejected.total:,} combinations rejected"
        return "\n".join(lines)

    __repr__ = __str__
