"""The options of ``workbench cost`` and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.cli.describing import Description, option
from workbench.describe.job import Job
from workbench.estimate.cost import RunCost
from workbench.estimate.cost.plan import (
    FAILURE_GPU_HOURS,
    NODE_STORAGE_BYTES_PER_SECOND,
)


@dataclass(frozen=True, kw_only=True)
class CostAsked(Description):
    """The options of ``workbench cost``."""

    tokens: Annotated[str | None, option("Tokens to train on: 300B, 1.5T, 2e9.")] = None
    steps: Annotated[str | None, option("Or optimizer steps.")] = None
    epochs: Annotated[float | None, option("Or passes over --dataset-tokens.")] = None
    dataset_tokens: Annotated[str | None, option("Tokens of one epoch.")] = None
    provider: Annotated[
        str | None, option("Rent here [default: the cheapest offer].", metavar="P")
    ] = None
    offer: Annotated[str | None, option("The provider's name of the machine.", metavar="O")] = None
    usd_per_hour: Annotated[
        str | None, option("Your price of one node: 20, or 18-24.", metavar="X")
    ] = None
    spot_usd_per_hour: Annotated[
        float | None, option("Your price of one interruptible node.", metavar="X")
    ] = None
    spot: Annotated[bool, option("Rent interruptible machines.", "--spot")] = False
    interruption_hours: Annotated[
        float | None,
        option("Spot: mean hours between interruptions of one machine [default: unknown]."),
    ] = None
    failure_gpu_hours: Annotated[
        float, option("GPU-hours between failures that stop the job; 0 = never.")
    ] = round(FAILURE_GPU_HOURS)
    checkpoint_minutes: Annotated[
        float | None, option("Work between two checkpoints [default: Daly's optimum].")
    ] = None
    checkpoint_seconds: Annotated[
        float | None, option("Time of one checkpoint [default: from its size].")
    ] = None
    storage_gb_per_second: Annotated[float, option("Rate at which a node writes checkpoints.")] = (
        NODE_STORAGE_BYTES_PER_SECOND / 1e9
    )
    start_minutes: Annotated[float, option("Paid before the first step.")] = 5.0
    restart_minutes: Annotated[float, option("From an interruption to the next step.")] = 10.0
    evaluation: Annotated[float, option("Evaluation's share on top of training.")] = 0.0
    failed: Annotated[float, option("Share of thrown-away attempts on top.")] = 0.0
    idle_hours: Annotated[float, option("Idle machine hours.")] = 0.0
    storage_gb: Annotated[float, option("Data kept on the provider's disks.")] = 0.0
    keep_checkpoints: Annotated[int, option("Checkpoints kept there too.")] = 0
    stopped_days: Annotated[float, option("Days to keep the disks after the machines.")] = 0.0
    egress_gb: Annotated[float, option("Data downloaded from the provider.")] = 0.0
    hours_per_month: Annotated[int, option("720 (30 days) or 730 (a year / 12).")] = 720
    as_json: Annotated[bool, option("Print one JSON value and nothing else.", "--json")] = False

    @property
    def gpu(self) -> str | None:
        """The card that was named; None = none was."""
        return self.job.get("gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costed:
    """Everything that one call of the command found out."""

    job: Job
    """What, how and where."""
    cost: RunCost
    """The bill."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    problem: str = ""
    """Why the run cannot be as described; empty = it can."""
