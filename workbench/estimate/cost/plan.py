"""What a finished run needs besides its step time: how long, how saved, how often interrupted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from workbench.describe import Accelerator, Strategy, Workload
from workbench.describe.checks import require_number
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.estimate.context import widths
from workbench.estimate.rank import ranks_of

HOUR = 3600.0
MONTHS = (720, 730)
"""Hours of a month: 720 = 30 days (the articles), 730 = a year / 12 (clouds' calculators)."""
FAILURE_GPU_HOURS = 16_384 * 54 * 24 / 419
"""Llama 3 405B: 419 unplanned interruptions in 54 days on 16,384 H100 (arXiv 2407.21783 3.3.4)."""
NODE_STORAGE_BYTES_PER_SECOND = 1e9
"""Llama 3: 2 TB/s sustained for 2,048 nodes of 8 GPUs (arXiv 2407.21783 3.3.1)."""
# Optimizers whose states live in pages outside the allocator are saved like the plain ones.
_SAVED_AS = {"paged-adamw": "adamw", "paged-adamw-8bit": "adamw-8bit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run from the first rented minute to the last; lengths are given in exactly one way."""

    tokens: int | None = None
    """Tokens to train on."""
    steps: int | None = None
    """Or optimizer steps."""
    epochs: float | None = None
    """Or passes over `dataset_tokens`."""
    dataset_tokens: int | None = None
    """Tokens of one epoch."""
    checkpoint_bytes: Annotated[int | None, Option(help="Of one checkpoint.", least=0)] = None
    """One checkpoint, all ranks together; `checkpoint_bytes()` knows it."""
    checkpoint_seconds: Annotated[
        float | None,
        Option(help="Time of one checkpoint [default: from its size].", unit="s", least=0),
    ] = None
    """What one checkpoint holds the training up; None = its bytes over the nodes' storage rate."""
    storage_bytes_per_second: Annotated[
        float, Option(help="Rate at which a node writes checkpoints.", unit="B/s", above=0)
    ] = NODE_STORAGE_BYTES_PER_SECOND
    """Rate at which one node writes checkpoints."""
    checkpoint_interval_seconds: Annotated[
        float | None, Option(help="Work between two checkpoints.", unit="s", above=0)
    ] = None
    """Work between two checkpoints; None = Daly's optimum."""
    spot: bool = False
    """Rented as interruptible machines."""
    interruption_hours: Annotated[
        float | None,
        Option(
            help="Spot: mean hours between interruptions of one machine [default: unknown].",
            unit="h",
            above=0,
        ),
    ] = None
    """Spot: mean hours until one machine is taken away; None = the provider's, else unknown: then
    the estimate is a wide range."""
    failure_gpu_hours: Annotated[
        float | None, Option(help="GPU-hours between failures that stop the job.", above=0)
    ] = FAILURE_GPU_HOURS
    """GPU-hours between two failures that stop the job, rented in any way; None = never."""
    start_seconds: Annotated[
        float, Option(help="Paid time before the first step.", unit="s", least=0)
    ] = 300.0
    """Paid time before the first step: machines, image, data, weights."""
    restart_seconds: Annotated[
        float, Option(help="From an interruption to the next step.", unit="s", least=0)
    ] = 600.0
    """From an interruption to the first new step, a new machine included."""
    evaluation_share: Annotated[
        float, Option(help="Evaluation's share on top of training.", least=0)
    ] = 0.0
    """Evaluation's time as a share of the training's (0.05 = 5 % on top)."""
    failed_share: Annotated[
        float, Option(help="Share of failed attempts on top of training.", least=0)
    ] = 0.0
    """Work of attempts that are thrown away, as a share of the finished run's."""
    idle_hours: Annotated[float, Option(help="Idle machine hours.", unit="h", least=0)] = 0.0
    """Hours in which the machines run and do nothing (weekend, debugging, waiting for you)."""
    storage_gb: Annotated[
        float, Option(help="Data kept on the provider's disks.", unit="GB", least=0)
    ] = 0.0
    """Data and checkpoints kept on the provider's disks, GB (10**9 bytes)."""
    stopped_days: Annotated[
        float, Option(help="Days to keep the disks after the machines.", unit="days", least=0)
    ] = 0.0
    """Days for which the disks are kept while the machines are stopped."""
    egress_gb: Annotated[
        float, Option(help="Data downloaded from the provider.", unit="GB", least=0)
    ] = 0.0
    """Data that leaves the provider, GB: checkpoints taken home."""
    hours_per_month: Annotated[
        int, Option(help="720 (30 days) or 730 (a year / 12).", choices=MONTHS)
    ] = 720
    """One of `MONTHS`."""

    def __post_init__(self) -> None:
        _check_length(self)
        check_declared(self)
        if self.checkpoint_bytes is None and self.checkpoint_seconds is None:
            raise UsageError(
                "A run needs the size or the time of a checkpoint. Give "
                "checkpoint_bytes=checkpoint_bytes(workload, strategy), or checkpoint_seconds."
            )

    def length(self, tokens_per_step: int) -> tuple[int, float]:
        """Optimizer steps (rounded up) and tokens of the run."""
        if self.steps is not None:
            return self.steps, float(self.steps) * tokens_per_step
        tokens = float(self.tokens or 0)
        if self.epochs is not None and self.dataset_tokens is not None:
            tokens = self.epochs * self.dataset_tokens
        return max(1, math.ceil(tokens / tokens_per_step)), tokens

    def saving_seconds(self, nodes: int) -> float:
        """What one checkpoint holds `nodes` machines up."""
        if self.checkpoint_seconds is not None:
            return self.checkpoint_seconds
        return (self.checkpoint_bytes or 0) / (self.storage_bytes_per_second * nodes)


def _check_length(plan: RunPlan) -> None:
    lengths = [name for name in ("tokens", "steps", "epochs") if getattr(plan, name) is not None]
    if len(lengths) != 1:
        raise UsageError(
            f"A run's length is given once, not {len(lengths)} times"
            f"{' (' + ', '.join(lengths) + ')' if lengths else ''}. "
            "Give tokens, steps, or epochs with dataset_tokens."
        )
    if (plan.epochs is None) != (plan.dataset_tokens is None):
        raise UsageError("epochs and dataset_tokens belong together. Give both, or tokens.")
    for name in (*lengths, "dataset_tokens"):
        if (value := getattr(plan, name)) is not None:
            require_number(name, value, above=0)


def checkpoint_bytes(workload: Workload, strategy: Strategy) -> int:
    """Bytes of one checkpoint: trained weights (with their fp32 copy) and optimizer states, once.

    12 bytes per parameter with AdamW and fp32 weights, 14 with a separate bf16 copy (ZeRO,
    Megatron); with LoRA the adapters alone.

    >>> from workbench.describe import Model
    >>> work = Workload(model=Model.catalog("llama-2-7b"), seq_len=1, micro_batch=1)
    >>> round(checkpoint_bytes(work, Strategy.parse("ddp", 8)) / 1e9, 1)
    80.9
    """
    saved = replace(workload, optimizer=_SAVED_AS.get(workload.optimizer, workload.optimizer))
    (rank,) = ranks_of(saved, Strategy.parse("single", 1))
    elements, width = rank.elements, widths(saved, strategy)
    weights = (elements.trained - elements.adapters) * (width.weight + width.master)
    adapters = elements.adapters * width.adapter
    return int(weights + adapters + rank.states.optimizer)


def gpu_hours(tokens: float, tokens_per_second_per_gpu: float) -> float:
    """GPU-hours of `tokens` at a known rate; useful work alone.

    >>> round(gpu_hours(1e12, 3370))
    82427
    """
    return tokens / tokens_per_second_per_gpu / HOUR


def hours_of(
    flops: float, gpu: Accelerator, mfu: float, *, precision: str = "bf16", gpus: int = 1
) -> float:
    """Hours of `flops` (6 N T) on `gpus` accelerators at a share `mfu` of their dense peak.

    Raises:
        UsageError: the share is not within 0 to 1, or the accelerator lacks the precision.

    >>> from workbench.describe import catalog
    >>> round(hours_of(6 * 6.738e9 * 1e12, catalog.gpu("a100-sxm-80"), 0.4))
    89984
    """
    if not 0 < mfu <= 1:
        raise UsageError(f"mfu is a share of the peak, above 0 and at most 1, not {mfu}.")
    peak = gpu.peak_flops(precision)
    if peak is None:
        raise UsageError(f"{gpu.name} has no {precision} matmuls.")
    return flops / (peak * mfu * gpus) / HOUR
