"""The controls of the cost calculator: the job as for its memory, then length, price and terms."""

from __future__ import annotations

from typing import Any

from workbench.describe import prices
from workbench.estimate.cost.plan import MONTHS
from workbench_widgets.controls import (
    amount,
    check,
    gpu_field,
    model_field,
    number,
    of_job,
    select,
    slider,
    text,
)
from workbench_widgets.memory.choice import RECOMPUTES, STRATEGIES
from workbench_widgets.memory.fields import ACCUMULATIONS, MICRO_BATCHES, RECOMPUTED, SEQUENCES


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order."""
    return [
        {
            "title": "Model and length",
            "open": True,
            "fields": [model_field(), text("tokens", "Tokens to train on", "300B, 1.5T, 2e9")],
        },
        {"title": "GPUs and price", "open": True, "fields": _machines()},
        {"title": "Batch and layout", "open": True, "fields": _work()},
        {"title": "Interruptions and checkpoints", "open": True, "fields": _saving()},
        {"title": "Storage, egress, idle time", "open": False, "fields": _extras()},
    ]


def _machines() -> list[dict[str, Any]]:
    known = ("", *prices.providers())
    return [
        gpu_field("GPU", "search", "name of a GPU"),
        of_job("gpus", "GPUs per node"),
        of_job("nodes", "Nodes"),
        select("strategy", "Strategy", STRATEGIES),
        select("provider", "Provider", known, {"": "the cheapest offer"}),
        text("usd_per_hour", "Own node price", "20, or 18-24", "$/h"),
        amount("spot_usd_per_hour", "Own node spot", "$/h", "none"),
        check("spot", "Spot: interruptible machines"),
    ]


def _work() -> list[dict[str, Any]]:
    return [
        slider("micro_batch", "Micro-batch", "sequences per GPU", MICRO_BATCHES),
        slider("seq_len", "Sequence length", "tokens", SEQUENCES),
        slider("accumulate", "Accumulation", "micro-batches per step", ACCUMULATIONS),
        of_job("precision", "Precision"),
        select("recompute", "Recompute", tuple(RECOMPUTES), RECOMPUTED),
        of_job("optimizer", "Optimizer"),
        number("tp", "Tensor (tp)"),
        number("pp", "Pipeline (pp)"),
        number("cp", "Context (cp)"),
        number("ep", "Experts (ep)"),
        of_job("lora_rank", "LoRA rank (0: none)"),
        of_job("quantization", "Frozen weights", {"none": "as computed"}),
    ]


def _saving() -> list[dict[str, Any]]:
    return [
        amount("interruption_hours", "Machine lifetime", "h", "unknown"),
        amount("checkpoint_minutes", "Checkpoint every", "min", "best"),
    ]


def _extras() -> list[dict[str, Any]]:
    return [
        amount("storage_gb", "Data on disk", "GB"),
        amount("stopped_days", "Disk kept after", "days"),
        amount("egress_gb", "Downloaded", "GB"),
        amount("idle_hours", "Idle", "h"),
        select(
            "hours_per_month",
            "Hours per month",
            tuple(map(str, MONTHS)),
            {"720": "720 h (30 days)", "730": "730 h (a year / 12)"},
        ),
    ]
