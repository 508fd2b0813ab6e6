"""The options of ``workbench plan`` and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.cli.describing import (
    Description,
    option,
)
from workbench.describe import Strategy, Workload
from workbench.describe.option import declared
from workbench.describe.trainers import Preset
from workbench.planning import Plans
from workbench.planning.rejected import LISTED


@dataclass(frozen=True, kw_only=True)
class PlanAsked(Description):
    """The options of ``workbench plan``."""

    HIDDEN = (
        *("gpus", "nodes", "cpu", "strategy", "micro_batch", "accumulate", "network", "link"),
        *declared(Strategy),
    )
    """What a plan answers instead of asking."""
    gpu: Annotated[
        str | None, option("Only these GPUs: h100,a100 [default: all].", metavar="G,G")
    ] = None
    tokens: Annotated[str | None, option("Tokens to train on: 300B, 1.5T, 2e9.")] = None
    epochs: Annotated[float | None, option("Or passes over --dataset-tokens.")] = None
    dataset_tokens: Annotated[str | None, option("Tokens of one epoch.")] = None
    global_batch: Annotated[
        int | None, option("Sequences per optimizer step, all GPUs [default: ~0.5 M tokens].")
    ] = None
    budget_usd: Annotated[float | None, option("Maximum cost of the run, in USD.")] = None
    deadline_hours: Annotated[float | None, option("Maximum hours, including start-up.")] = None
    providers: Annotated[str, option("Only these: runpod,lambda.", metavar="P,P")] = ""
    regions: Annotated[str, option("Only regions with one of these words.", metavar="R,R")] = ""
    max_gpus: Annotated[int | None, option("Maximum number of GPUs [default: 128].")] = None
    spot: Annotated[bool, option("Include interruptible machines.", "--spot")] = False
    interruption_hours: Annotated[
        float | None,
        option("Spot: mean hours between interruptions of one machine [default: unknown]."),
    ] = None
    here: Annotated[bool, option("Plan for this host's GPUs instead of rented ones.", "--here")] = (
        False
    )
    no_offload: Annotated[bool, option("Exclude offloading to host memory.", "--no-offload")] = (
        False
    )
    any_script: Annotated[
        bool, option("Only layouts that work with any script: DDP, FSDP, hybrid.", "--any-script")
    ] = False
    all_layouts: Annotated[
        bool,
        option("Include layouts that the launcher cannot start.", "--all-layouts"),
    ] = False
    zero: Annotated[bool, option("Include DeepSpeed's ZeRO-2 and ZeRO-3.", "--zero")] = False
    rejections: Annotated[int, option("Number of rejected layouts to list.")] = LISTED
    as_json: Annotated[bool, option("Print one JSON value and nothing else.", "--json")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Everything that one call of the command found out."""

    asked: PlanAsked
    """The options."""
    workload: Workload
    """What is trained."""
    plans: Plans
    """The answer."""
    seconds: float
    """Time of the search."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""
    trainer: Preset | None
    """What trains and what it decided of the job."""
