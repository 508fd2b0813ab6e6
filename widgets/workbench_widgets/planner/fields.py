"""The controls of the planner: what is trained, then the limits that a plan must keep."""

from __future__ import annotations

from typing import Any

from workbench.describe import prices
from workbench_widgets.controls import (
    check,
    gpu_field,
    limit,
    model_field,
    number,
    of_job,
    select,
    several,
    slider,
    text,
)
from workbench_widgets.memory.choice import LORA_TARGETS
from workbench_widgets.memory.fields import SEQUENCES

_GPUS = tuple(1 << power for power in range(11))


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order."""
    return [
        {
            "title": "What to train",
            "open": True,
            "fields": [
                model_field(),
                text("tokens", "Tokens to train on", "300B, 1.5T, 2e9"),
                number("global_batch", "Global batch (0: auto)", least=0),
            ],
        },
        {
            "title": "Limits",
            "open": True,
            "fields": [
                limit("budget_usd", "Budget", "$"),
                limit("deadline_hours", "Deadline", "hours"),
                slider("max_gpus", "Maximum GPUs", "", _GPUS),
                check("spot", "Include spot machines"),
                several("providers", "Providers", prices.providers(), "all; add one") | _EMPTY,
                gpu_field("Only these GPUs", hint="all; add one") | _EMPTY,
            ],
        },
        {"title": "Training settings", "open": False, "fields": _work()},
    ]


_EMPTY = {"empty": True}


def _work() -> list[dict[str, Any]]:
    return [
        slider("seq_len", "Sequence length", "tokens", SEQUENCES),
        of_job("precision", "Precision"),
        of_job("loss", "Loss", {"full": "all logits"}),
        of_job("optimizer", "Optimizer"),
        of_job("lora_rank", "LoRA rank (0: none)"),
        select("lora_targets", "LoRA on", tuple(LORA_TARGETS)),
        of_job("quantization", "Frozen weights", {"none": "as computed"}),
    ]
