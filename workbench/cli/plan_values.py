"""The options of ``workbench plan`` and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from workbench.cli.describing import RunDescription
from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.job import Job
from workbench.describe.option import Option, declared
from workbench.describe.trainers import Preset
from workbench.estimate.cost.plan import RunPlan
from workbench.planning import Limits, Plans, Space
from workbench.planning.market import MOST
from workbench.planning.rejected import LISTED

_LIMITS = declared(Limits)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunDescription):
    """The options of ``workbench plan``."""

    BETWEEN = ("network", "link")
    """Options of a job that describe machines one has."""
    MARKET = ("budget_usd", "deadline_hours", "providers", "regions", "max_gpus", "spot")
    """They choose among rented machines."""
    HIDDEN = (*("cpu", "strategy", "micro_batch", "accumulate"), *declared(Strategy))
    """What a plan answers instead of asking."""
    gpu: Annotated[
        tuple[str, ...],
        Option(help="Only these GPUs: h100,a100 [default: all].", metavar="G,G", split="commas"),
    ] = ()
    global_batch: Annotated[
        int | None, Option(help="Sequences per optimizer step, all GPUs [default: ~0.5 M tokens].")
    ] = None
    budget_usd: Annotated[float | None, _LIMITS["budget_usd"].option] = None
    deadline_hours: Annotated[float | None, _LIMITS["deadline_hours"].option] = None
    providers: Annotated[
        tuple[str, ...], Option(help="Only these: runpod,lambda.", metavar="P,P", split="commas")
    ] = ()
    regions: Annotated[
        tuple[str, ...],
        Option(help="Only regions with one of these words.", metavar="R,R", split="commas"),
    ] = ()
    max_gpus: Annotated[int, _LIMITS["max_gpus"].option] = MOST
    spot: Annotated[bool, Option(help="Include interruptible machines.")] = False
    here: Annotated[bool, Option(help="Plan for this host's GPUs instead of rented ones.")] = False
    gpus: Annotated[
        int | None,
        Option(help="Plan for machines you have: so many of --gpu in each [default: rent some]."),
    ] = None
    nodes: Annotated[int | None, Option(help="So many machines you have [default: 1].")] = None
    usd_per_hour: Annotated[
        float | None, Option(help="Price of one machine you have.", unit="$", above=0)
    ] = None
    no_offload: Annotated[bool, Option(help="Exclude offloading to host memory.")] = False
    any_script: Annotated[
        bool, Option(help="Only layouts that work with any script: DDP, FSDP, hybrid.")
    ] = False
    all_layouts: Annotated[
        bool,
        Option(help="Include layouts that the launcher cannot start."),
    ] = False
    zero: Annotated[bool, Option(help="Include DeepSpeed's ZeRO-2 and ZeRO-3.")] = False
    rejections: Annotated[int, Option(help="Number of rejected layouts to list.", least=0)] = LISTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a search is asked, read from the options."""

    workload: Workload
    """What is trained."""
    run: RunPlan
    """How long, and what else a run needs beside its steps."""
    global_batch: int | None
    """Sequences per optimizer step; None = about 0.5 M tokens."""
    limits: Limits
    """What a plan must keep to."""
    cluster: Cluster | None
    """Machines that one has; None = some are chosen to be rented."""
    is_here: bool
    """Whether they are this host."""
    space: Space
    """Layouts to look at."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was read by analogy or chosen by us."""
    trainer: Preset | None = field(default=None, compare=False)
    """What trains and what it decided of the job."""
    job: Job | None = field(default=None, compare=False)
    """The job as it was described; None = its workload alone is known."""
    trainer_text: str = ""
    """The trainer as it was named: it tells two questions of one workload apart."""

    @property
    def tokens(self) -> int:
        """Length of the run."""
        return round(self.run.length(1)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """Everything that one call of the command found out."""

    options: PlanOptions
    """The options."""
    workload: Workload
    """What is trained."""
    run: RunPlan
    """How long, and what else a run needs beside its steps."""
    plans: Plans
    """The answer."""
    seconds: float
    """Time of the search."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    trainer: Preset | None
    """What trains and what it decided of the job."""
