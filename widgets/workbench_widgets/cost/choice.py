"""What the cost calculator's controls say: a job as for its memory, its length, and its terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import workbench as wb
from workbench.cli.cost_offer import Priced, priced_offer
from workbench.cli.cost_values import CostAsked
from workbench.cli.quantities import read_count
from workbench.describe import Cluster
from workbench.describe.checks import require_choice
from workbench.estimate.cost import RunCost, RunPlan, checkpoint_bytes, run_cost
from workbench.estimate.cost.plan import MONTHS
from workbench_widgets.memory.choice import FIELDS as JOB
from workbench_widgets.memory.choice import MemoryChoice
from workbench_widgets.options import refuse_unknown

FACE = "CostCalculator"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChoice:
    """One setting of all controls. Values are checked when the engine's objects are built."""

    job: MemoryChoice = field(default_factory=MemoryChoice)
    """Model, GPUs, strategy and batch: the memory calculator's controls."""
    tokens: str = "20B"
    """Length of the run: 300B, 1.5T, 2e9."""
    provider: str = ""
    """Rent here; empty = the cheapest offer."""
    offer: str = ""
    """The provider's name of the machine; empty = its cheapest."""
    usd_per_hour: str = ""
    """Own price of a node, one number or a range (18-24); empty = the table's."""
    spot_usd_per_hour: float | None = None
    """Own price of an interruptible node; None = none."""
    spot: bool = False
    """Rent interruptible machines."""
    interruption_hours: float | None = None
    """Mean hours until one machine is taken; None = unknown."""
    checkpoint_minutes: float | None = None
    """Work between two checkpoints; None = Daly's optimum."""
    storage_gb: float = 0.0
    """Data kept on the provider's disks."""
    stopped_days: float = 0.0
    """Days for which the disks outlive the machines."""
    egress_gb: float = 0.0
    """Data downloaded from the provider."""
    idle_hours: float = 0.0
    """Hours in which the machines do nothing."""
    hours_per_month: str = "720"
    """720 (30 days) or 730 (a year / 12)."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> CostChoice:
        """Build from the constructor's keyword arguments.

        Raises:
            TypeError: an unknown option.
            UsageError: a strategy whose degrees do not multiply to the GPUs, an unknown name.
        """
        unknown = {name: value for name, value in options.items() if name not in FIELDS}
        refuse_unknown(FACE, unknown, FIELDS)
        of_job = {name: value for name, value in options.items() if name in JOB}
        own = {name: value for name, value in options.items() if name not in JOB}
        return cls(job=MemoryChoice.from_options(of_job), **_plain(own))

    def changed(self, changes: Mapping[str, Any]) -> CostChoice:
        """The choice after somebody has moved some controls; unknown names are left out."""
        own = _plain({name: value for name, value in changes.items() if name in OWN})
        if "provider" in own and "offer" not in own:
            own["offer"] = ""
        if {"gpu", "gpus"} & set(changes):
            own["offer"] = ""
        return dataclasses.replace(self, job=self.job.changed(changes), **own)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        own = {name: getattr(self, name) for name in OWN}
        return {**self.job.document(), "gpu": self.job.gpu[0] if self.job.gpu else "", **own}

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        away = self.job.hidden()
        away += [] if self.storage_gb else ["stopped_days"]
        away += ["provider"] if self.usd_per_hour else []
        return away

    def priced(self) -> tuple[Cluster, Priced]:
        """The machines with their fabric, and the offer they are priced at.

        Raises:
            UsageError: no such machine at that provider, a price that cannot be read.
        """
        cluster = self.job.cluster()
        own = self.spot_usd_per_hour
        asked = CostAsked(
            job={"model": self.job.model, "gpu": self.job.gpu[0]},
            provider=self.provider or None,
            offer=None if self.usd_per_hour or own is not None else self.offer or None,
            usd_per_hour=self.usd_per_hour or None,
            spot_usd_per_hour=own,
            spot=bool(self.spot),
        )
        try:
            found = priced_offer(asked, cluster)
        except wb.UnknownNameError:
            raise
        except wb.UsageError as error:
            raise wb.UsageError(_in_controls(str(error))) from error
        found = dataclasses.replace(found, notes=tuple(map(_in_controls, found.notes)))
        if cluster.nodes > 1 and cluster.network is None:
            cluster = dataclasses.replace(cluster, network=found.offer.network)
        return cluster, found

    def plan(self) -> RunPlan:
        """From the first rented minute to the last.

        Raises:
            UsageError: a length or an amount that cannot be.
        """
        for name in ("storage_gb", "stopped_days", "egress_gb", "idle_hours"):
            if getattr(self, name) is None:
                raise wb.UsageError(f"{name} is empty. Enter a number, 0 for none.")
        require_choice("hours_per_month", self.hours_per_month, tuple(map(str, MONTHS)))
        minutes = self.checkpoint_minutes
        return RunPlan(
            tokens=read_count(self.tokens),
            checkpoint_bytes=checkpoint_bytes(self.job.workload(), self.job.layout()),
            checkpoint_interval_seconds=None if minutes is None else minutes * 60,
            spot=bool(self.spot),
            interruption_hours=self.interruption_hours,
            idle_hours=self.idle_hours,
            storage_gb=self.storage_gb,
            stopped_days=self.stopped_days,
            egress_gb=self.egress_gb,
            hours_per_month=int(self.hours_per_month),
        )

    def cost(self) -> tuple[RunCost, Priced]:
        """The bill, and why this offer.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        cluster, found = self.priced()
        step = wb.step_time(self.job.workload(), self.job.layout(), cluster)
        bill = run_cost(
            step,
            found.offer,
            cluster.nodes,
            found.terms,
            self.plan(),
            price_range=found.price_range,
        )
        return bill, found


OWN = tuple(one.name for one in dataclasses.fields(CostChoice) if one.name != "job")
FIELDS = (*JOB, *OWN)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """What is written as text stays text, whatever was typed or given."""
    texts = ("tokens", "usd_per_hour", "hours_per_month", "provider", "offer")
    return {
        name: ("" if value is None else str(value).strip()) if name in texts else value
        for name, value in given.items()
    }


def _in_controls(text: str) -> str:
    """What the command line calls an option is a control here."""
    return text.replace("give --usd-per-hour X", "enter your price of a node")
