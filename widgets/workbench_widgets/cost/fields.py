"""The controls of the cost calculator: the job as for its memory, then length, price and terms."""

from __future__ import annotations

from typing import Any

from workbench.describe import prices
from workbench_widgets.controls import (
    gpu_field,
    model_field,
    number,
    of_job,
    of_option,
    remaining_options,
    select,
    slider,
)
from workbench_widgets.cost.choice import OWN
from workbench_widgets.job_form import STRATEGIES
from workbench_widgets.memory.fields import (
    ACCUMULATIONS,
    MICRO_BATCHES,
    SEQUENCES,
    job_options,
    recompute_fields,
)

_LABELS = {
    "tokens": ("Tokens to train on", "300B, 1.5T, 2e9"),
    "usd_per_hour": ("Own node price", "20, or 18-24"),
    "spot_usd_per_hour": ("Own node spot", "none"),
    "spot": ("Spot: interruptible machines",),
    "interruption_hours": ("Machine lifetime", "unknown"),
    "checkpoint_minutes": ("Checkpoint every", "best"),
    "storage_gb": ("Data on disk",),
    "stopped_days": ("Disk kept after",),
    "egress_gb": ("Downloaded",),
    "idle_hours": ("Idle",),
}
"""Control -> its label, and what an empty one means."""


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order."""
    groups = [
        {"title": "Model and length", "open": True, "fields": [model_field(), *_own("tokens")]},
        {"title": "GPUs and price", "open": True, "fields": _machines()},
        {"title": "Batch and layout", "open": True, "fields": _work()},
        {
            "title": "Interruptions and checkpoints",
            "open": True,
            "fields": _own("interruption_hours", "checkpoint_minutes"),
        },
        {"title": "Storage, egress, idle time", "open": False, "fields": _extras()},
    ]
    own_fields = (
        field for name, field in OWN.items() if name != "offer"
    )  # chosen in the table of offers
    return [*groups, remaining_options(groups, [*own_fields, *job_options()])]


def _own(*names: str) -> list[dict[str, Any]]:
    return [of_option(OWN[name], *_LABELS[name]) for name in names]


def _machines() -> list[dict[str, Any]]:
    providers = ("", *prices.providers())
    return [
        gpu_field("GPU", "search", "name of a GPU"),
        of_job("gpus", "GPUs per node"),
        of_job("nodes", "Nodes"),
        select("strategy", "Strategy", STRATEGIES),
        select("provider", "Provider", providers, {"": "cheapest"}),
        *_own("usd_per_hour", "spot_usd_per_hour", "spot"),
    ]


def _work() -> list[dict[str, Any]]:
    return [
        slider("micro_batch", "Micro-batch", "sequences per GPU", MICRO_BATCHES),
        slider("seq_len", "Sequence length", "tokens", SEQUENCES),
        slider("accumulate", "Accumulation", "micro-batches per step", ACCUMULATIONS),
        of_job("precision", "Precision"),
        *recompute_fields(),
        of_job("optimizer", "Optimizer"),
        number("tp", "Tensor (tp)"),
        number("pp", "Pipeline (pp)"),
        number("cp", "Context (cp)"),
        number("ep", "Experts (ep)"),
        of_job("lora_rank", "LoRA rank (0: none)"),
        of_job("quantization", "Frozen weights", {"none": "as computed"}),
    ]


def _extras() -> list[dict[str, Any]]:
    months = {"720": "720 h (30 days)", "730": "730 h (a year / 12)"}
    return [
        *_own("storage_gb", "stopped_days", "egress_gb", "idle_hours"),
        of_option(OWN["hours_per_month"], own=months),
    ]
