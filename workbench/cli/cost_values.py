"""The options of ``workbench cost`` and its answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from workbench.cli.describing import RunDescription
from workbench.describe.checks import require_amount
from workbench.describe.job import Job
from workbench.describe.option import Option, declared
from workbench.estimate.cost import RunCost
from workbench.estimate.cost.plan import (
    FAILURE_GPU_HOURS,
    MONTHS,
    NODE_STORAGE_BYTES_PER_SECOND,
)


@dataclass(frozen=True, kw_only=True)
class CostOptions(RunDescription):
    """The options of ``workbench cost``."""

    steps: Annotated[str | None, Option(help="Or optimizer steps.")] = None
    provider: Annotated[
        str | None, Option(help="Rent here [default: the cheapest offer].", metavar="P")
    ] = None
    offer: Annotated[
        str | None, Option(help="The provider's name of the machine.", metavar="O")
    ] = None
    usd_per_hour: Annotated[
        str | None, Option(help="Your price of one node: 20, or 18-24.", unit="$/h", metavar="X")
    ] = None
    spot_usd_per_hour: Annotated[
        float | None, Option(help="Your price of one interruptible node.", unit="$/h", metavar="X")
    ] = None
    spot: Annotated[bool, Option(help="Rent interruptible machines.")] = False
    failure_gpu_hours: Annotated[
        float | None,
        Option(
            help="GPU-hours between failures that stop the job; 0 = never "
            f"[default: {FAILURE_GPU_HOURS:,.0f}]."
        ),
    ] = None
    checkpoint_minutes: Annotated[
        float | None,
        Option(help="Work between two checkpoints [default: Daly's optimum].", unit="min"),
    ] = None
    checkpoint_seconds: Annotated[
        float | None, Option(help="Time of one checkpoint [default: from its size].", unit="s")
    ] = None
    storage_gb_per_second: Annotated[
        float, Option(help="Rate at which a node writes checkpoints.", unit="GB/s")
    ] = NODE_STORAGE_BYTES_PER_SECOND / 1e9
    start_minutes: Annotated[float, Option(help="Paid time before the first step.", unit="min")] = (
        5.0
    )
    restart_minutes: Annotated[
        float, Option(help="From an interruption to the next step.", unit="min")
    ] = 10.0
    evaluation: Annotated[float, Option(help="Evaluation's share on top of training.")] = 0.0
    failed: Annotated[float, Option(help="Share of failed attempts on top of training.")] = 0.0
    idle_hours: Annotated[float, Option(help="Idle machine hours.", unit="h")] = 0.0
    storage_gb: Annotated[float, Option(help="Data kept on the provider's disks.", unit="GB")] = 0.0
    keep_checkpoints: Annotated[int, Option(help="Checkpoints kept on the provider's disks.")] = 0
    stopped_days: Annotated[
        float, Option(help="Days to keep the disks after the machines.", unit="days")
    ] = 0.0
    egress_gb: Annotated[float, Option(help="Data downloaded from the provider.", unit="GB")] = 0.0
    hours_per_month: Annotated[
        int, Option(help="720 (30 days) or 730 (a year / 12).", choices=MONTHS)
    ] = 720

    @property
    def gpu(self) -> str | None:
        """The card that was named; None = none was."""
        return self.job.get("gpu")

    def check_amounts(self) -> None:
        """Refuse impossible amounts by the names and in the units in which they were given.

        Raises:
            UsageError: one is not a number, below 0, or 0 where that says nothing.
        """
        for name in (*_ABOVE_NOTHING, *_FROM_NOTHING):
            allowed, least = ("0 or above", 0.0)
            if name in _ABOVE_NOTHING:
                allowed, least = ("above 0", math.ulp(0.0))
            if (amount := getattr(self, name)) is not None:
                require_amount(declared(CostOptions)[name].flag, amount, allowed, least=least)


_ABOVE_NOTHING = ("epochs", "interruption_hours", "checkpoint_minutes", "storage_gb_per_second")
_FROM_NOTHING = (
    *("failure_gpu_hours", "checkpoint_seconds", "start_minutes", "restart_minutes"),
    *("evaluation", "failed", "idle_hours", "storage_gb", "keep_checkpoints", "stopped_days"),
    "egress_gb",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer:
    """Everything that one call of the command found out."""

    job: Job
    """What, how and where."""
    cost: RunCost
    """The bill."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    problem: str = ""
    """Why the run cannot be as described; empty = it can."""
