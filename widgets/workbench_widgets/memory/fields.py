"""The controls of the memory calculator: what each is called and what it offers."""

from __future__ import annotations

from typing import Any

from workbench.describe.job import options
from workbench.describe.option import DeclaredField
from workbench_widgets.controls import (
    gpu_field,
    model_field,
    number,
    of_job,
    remaining_options,
    select,
    slider,
)
from workbench_widgets.job_form import JOB, STRATEGIES

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SEQUENCES = (128, 256, 512, 768, *(size << step for step in range(8) for size in (1024, 1536)))
ACCUMULATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RECOMPUTED = {"selective": "parts of each block", "full": "every block"}


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order: one GPU's options first, several GPUs' after them."""
    groups = [
        {
            "title": "Model and GPU",
            "open": True,
            "fields": [model_field(), gpu_field("GPU to train on, and others to compare")],
        },
        {
            "title": "Batch",
            "open": True,
            "fields": [
                slider("micro_batch", "Micro-batch", "sequences per GPU", MICRO_BATCHES),
                slider("seq_len", "Sequence length", "tokens", SEQUENCES),
                slider("accumulate", "Accumulation", "micro-batches per step", ACCUMULATIONS),
            ],
        },
        {"title": "On one GPU", "open": True, "fields": _one_gpu()},
        {"title": "Several GPUs", "open": True, "fields": _several_gpus()},
        {"title": "Implementation", "open": False, "fields": _implementation()},
    ]
    return [*groups, remaining_options(groups, job_options())]


def job_options() -> list[DeclaredField]:
    """Those that the controls of a job set."""
    return [field for name, field in options().items() if name in JOB]


def _one_gpu() -> list[dict[str, Any]]:
    return [
        of_job("precision", "Precision"),
        *recompute_fields(),
        of_job("optimizer", "Optimizer"),
        of_job("loss", "Loss", {"full": "all logits"}),
        of_job("attention", "Attention"),
        of_job("lora_rank", "LoRA rank (0: none)"),
        of_job("quantization", "Frozen weights", {"none": "as computed"}),
        of_job("lora_targets", "LoRA on"),
    ]


def recompute_fields() -> list[dict[str, Any]]:
    """What is computed again in backward; which parts or blocks, where that is open."""
    return [
        of_job("recompute", "Recompute", RECOMPUTED),
        of_job("recompute_parts", "Parts to recompute"),
        of_job("recompute_layers", "Blocks per stage"),
    ]


def _several_gpus() -> list[dict[str, Any]]:
    return [
        select("strategy", "Strategy", STRATEGIES),
        of_job("gpus", "GPUs per node"),
        of_job("nodes", "Nodes"),
        number("tp", "Tensor (tp)"),
        number("pp", "Pipeline (pp)"),
        number("cp", "Context (cp)"),
        number("ep", "Experts (ep)"),
        of_job("schedule", "Pipeline schedule"),
        of_job("sequence_parallel", "Sequence parallel, with tp"),
    ]


def _implementation() -> list[dict[str, Any]]:
    return [
        of_job("kernels", "Kernels", {"fused": "fused (Liger)"}),
        of_job("offload", "In host memory"),
        of_job("expandable_segments", "Expandable segments"),
        of_job("optimizer_in_backward", "Optimizer in backward"),
        of_job("bucket_views", "Gradients as bucket views"),
    ]
