"""The controls of the planner: what is trained, then the limits that a plan must keep."""

from __future__ import annotations

from typing import Any

from workbench.describe import prices
from workbench.describe.job import options
from workbench_widgets.controls import (
    gpu_field,
    limit,
    model_field,
    of_job,
    of_option,
    remaining_options,
    several,
    slider,
)
from workbench_widgets.memory.fields import SEQUENCES
from workbench_widgets.planner.choice import OWN, WORK

_GPUS = tuple(1 << power for power in range(11))


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order."""
    groups = [
        {
            "title": "What to train",
            "open": True,
            "fields": [
                model_field(),
                of_option(OWN["tokens"], "Tokens to train on", "300B, 1.5T, 2e9"),
                of_option(OWN["global_batch"], "Global batch", "auto"),
            ],
        },
        {
            "title": "Limits",
            "open": True,
            "fields": [
                limit("budget_usd", "Budget", "$"),
                limit("deadline_hours", "Deadline", "hours"),
                slider("max_gpus", "Maximum GPUs", "", _GPUS),
                of_option(OWN["spot"], "Include spot machines"),
                several("providers", "Providers", prices.providers(), "all; add one") | _EMPTY,
                gpu_field("GPUs", hint="all; add one") | _EMPTY,
            ],
        },
        {"title": "Or machines you have", "open": True, "fields": _machines()},
        {"title": "Training settings", "open": False, "fields": _work()},
    ]
    return [
        *groups,
        remaining_options(groups, [*OWN.values(), *(options()[name] for name in WORK)]),
    ]


_EMPTY = {"empty": True}


def _machines() -> list[dict[str, Any]]:
    return [
        of_option(OWN["here"], "This host's GPUs"),
        of_option(OWN["gpus"], "GPUs in each machine", "plan for rented ones"),
        of_option(OWN["nodes"], "Machines", "1"),
        of_job("network", "Between them"),
        of_option(OWN["usd_per_hour"], "Price of one", "not known"),
    ]


def _work() -> list[dict[str, Any]]:
    return [
        slider("seq_len", "Sequence length", "tokens", SEQUENCES),
        of_job("precision", "Precision"),
        of_job("loss", "Loss", {"full": "all logits"}),
        of_job("optimizer", "Optimizer"),
        of_job("lora_rank", "LoRA rank (0: none)"),
        of_job("lora_targets", "LoRA on"),
        of_job("quantization", "Frozen weights", {"none": "as computed"}),
    ]
