"""What a finished run needs besides its step time: how long, how saved, how often interrupted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from workbench.describe import Accelerator, Strategy, Workload
from workbench.describe.checks import require_amount
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
    checkpoint_bytes: int | None = None
    """One checkpoint, all ranks together; `checkpoint_bytes()` knows it."""
    checkpoint_seconds: float | None = None
    """What one checkpoint holds the training up; None = its bytes over the nodes' storage rate."""
    storage_bytes_per_second: float = NODE_STORAGE_BYTES_PER_SECOND
    """Rate at which one node writes checkpoints."""
    checkpoint_interval_seconds: float | None = None
    """Work between two checkpoints; None = Daly's optimum."""
    spot: bool = False
    """Rented as interruptible machines."""
    interruption_hours: float | None = None
    """Spot: mean hours until one machine is taken away; None = the provider's, else unknown: then
    the estimate is a wide range."""
    failure_gpu_hours: float | None = FAILURE_GPU_HOURS
    """GPU-hours between two failures that stop the job, rented in any way; None = never."""
    start_seconds: float = 300.0
    """Paid time before the first step: machines, image, data, weights."""
    restart_seconds: float = 600.0
    """From an interruption to the first new step, a new machine included."""
    evaluation_share: float = 0.0
    """Evaluation's time as a share of the training's (0.05 = 5 % on top)."""
    failed_share: float = 0.0
    """Work of attempts that are thrown away, as a share of the finished run's."""
    idle_hours: float = 0.0
    """Hours in which the machines run and do nothing (weekend, debugging, waiting for you)."""
    storage_gb: float = 0.0
    """Data and checkpoints kept on the provider's disks, GB (10**9 bytes)."""
    stopped_days: float = 0.0
    """Days for which the disks are kept while the machines are stopped."""
    egress_gb: float = 0.0
    """Data that leaves the provider, GB: checkpoints taken home."""
    hours_per_month: int = 720
    """One of `MONTHS`."""

    def __post_init__(self) -> None:
        _check_length(self)
        for name in (
            *("start_seconds", "restart_seconds", "evaluation_share", "failed_share"),
            *("idle_hours", "storage_gb", "stopped_days", "egress_gb"),
        ):
            _require(name, getattr(self, name), "0 or above", least=0.0)
        for name in (
            *("storage_bytes_per_second", "checkpoint_interval_seconds"),
            *("interruption_hours", "failure_gpu_hours"),
        ):
            _require(name, getattr(self, name), "above 0", least=math.ulp(0.0))
        for name in ("checkpoint_bytes", "checkpoint_seconds"):
            _require(name, getattr(self, name), "0 or above", least=0.0)
        if self.checkpoint_bytes is None and self.checkpoint_seconds is None:
            raise UsageError(
                "A run needs the size or the time of a checkpoint. Give "
                "checkpoint_bytes=checkpoint_bytes(workload, strategy), or checkpoint_seconds."
            )
        if self.hours_per_month not in MONTHS:
            raise UsageError(f"hours_per_month is 720 or 730, not {self.hours_per_month}.")

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
    given = [name for name in ("tokens", "steps", "epochs") if getattr(plan, name) is not None]
    if len(given) != 1:
        raise UsageError(
            f"A run's length is given once, not {len(given)} times"
            f"{' (' + ', '.join(given) + ')' if given else ''}. "
            "Give tokens, steps, or epochs with dataset_tokens."
        )
    if (plan.epochs is None) != (plan.dataset_tokens is None):
        raise UsageError("epochs and dataset_tokens belong together. Give both, or tokens.")
    for name in (*given, "dataset_tokens"):
        _require(name, getattr(plan, name), "above 0", least=math.ulp(0.0))


def _require(name: str, value: float | None, allowed: str, *, least: float) -> None:
    if value is not None:
        require_amount(name, value, allowed, least=least)


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
