"""The options of ``workbench cost`` and its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from workbench.cli.describing import RunDescription
from workbench.describe.job import Job
from workbench.describe.option import Option, declared
from workbench.estimate.cost import RunCost
from workbench.estimate.cost.plan import (
    FAILURE_GPU_HOURS,
    RunPlan,
)

_RUN = declared(RunPlan)


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
        float | None,
        Option(
            help="Your price of one interruptible node.",
            unit="$/h",
            metavar="X",
            above=0,
            below=1e6,
        ),
    ] = None
    spot: Annotated[bool, Option(help="Rent interruptible machines.")] = False
    failure_gpu_hours: Annotated[
        float | None,
        Option(
            help="GPU-hours between failures that stop the job; 0 = never "
            f"[default: {FAILURE_GPU_HOURS:,.0f}].",
            least=0,
        ),
    ] = None
    checkpoint_minutes: Annotated[
        float | None,
        Option(help="Work between two checkpoints [default: Daly's optimum].", unit="min", above=0),
    ] = None
    checkpoint_seconds: Annotated[float | None, _RUN["checkpoint_seconds"].option] = None
    storage_gb_per_second: Annotated[
        float, replace(_RUN["storage_bytes_per_second"].option, unit="GB/s")
    ] = _RUN["storage_bytes_per_second"].default / 1e9
    start_minutes: Annotated[float, replace(_RUN["start_seconds"].option, unit="min")] = (
        _RUN["start_seconds"].default / 60
    )
    restart_minutes: Annotated[float, replace(_RUN["restart_seconds"].option, unit="min")] = (
        _RUN["restart_seconds"].default / 60
    )
    evaluation: Annotated[float, _RUN["evaluation_share"].option] = 0.0
    failed: Annotated[float, _RUN["failed_share"].option] = 0.0
    idle_hours: Annotated[float, _RUN["idle_hours"].option] = 0.0
    storage_gb: Annotated[float, _RUN["storage_gb"].option] = 0.0
    keep_checkpoints: Annotated[
        int, Option(help="Checkpoints kept on the provider's disks.", least=0)
    ] = 0
    stopped_days: Annotated[float, _RUN["stopped_days"].option] = 0.0
    egress_gb: Annotated[float, _RUN["egress_gb"].option] = 0.0
    hours_per_month: Annotated[int, _RUN["hours_per_month"].option] = _RUN[
        "hours_per_month"
    ].default

    @property
    def gpu(self) -> str | None:
        """The card that was named; None = none was."""
        return self.job.get("gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer:
    """Everything that one call of the command found out."""

    job: Job
    """What, how and where."""
    cost: RunCost
    """The bill."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    why: str = ""
    """Why this offer, and which cheaper ones were passed over; also in `notes`."""
    problem: str = ""
    """Why the run cannot be as described; empty = it can."""
