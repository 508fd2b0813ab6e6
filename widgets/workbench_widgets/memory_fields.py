"""The controls of the memory calculator: what each is called and what it offers."""

from __future__ import annotations

from typing import Any

from workbench.describe import KERNELS
from workbench.describe.strategy import SCHEDULES
from workbench.describe.workload import (
    ATTENTIONS,
    LOSSES,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZATIONS,
)
from workbench_widgets.controls import check, gpu_field, model_field, number, select, slider
from workbench_widgets.memory_choice import LORA_TARGETS, OFFLOADS, RECOMPUTES, STRATEGIES

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SEQUENCES = (128, 256, 512, 768, *(size << step for step in range(8) for size in (1024, 1536)))
ACCUMULATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RECOMPUTED = {
    "none": "none",
    "selective": "attention's core",
    "mlp": "the MLPs",
    "op": "every second matmul",
    "full": "every block (full)",
}


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order: one GPU's options first, several GPUs' after them."""
    return [
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


def _one_gpu() -> list[dict[str, Any]]:
    return [
        select("precision", "Precision", PRECISIONS),
        select("recompute", "Recompute", tuple(RECOMPUTES), RECOMPUTED),
        select("optimizer", "Optimizer", OPTIMIZERS),
        select("loss", "Loss", LOSSES, {"full": "all logits"}),
        select("attention", "Attention", ATTENTIONS),
        number("lora_rank", "LoRA rank (0: none)", least=0),
        select("quantization", "Frozen weights", QUANTIZATIONS, {"none": "as computed"}),
        select("lora_targets", "LoRA on", tuple(LORA_TARGETS)),
    ]


def _several_gpus() -> list[dict[str, Any]]:
    return [
        select("strategy", "Strategy", STRATEGIES),
        number("gpus", "GPUs per node", most=1024),
        number("nodes", "Nodes", most=16_384),
        number("tp", "Tensor (tp)"),
        number("pp", "Pipeline (pp)"),
        number("cp", "Context (cp)"),
        number("ep", "Experts (ep)"),
        select("schedule", "Pipeline schedule", SCHEDULES),
        check("sequence_parallel", "Sequence parallel, with tp"),
    ]


def _implementation() -> list[dict[str, Any]]:
    return [
        select("kernels", "Kernels", tuple(KERNELS), {"fused": "fused (Liger)"}),
        select("offload", "In host memory", tuple(OFFLOADS), {"none": "nothing"}),
        check("expandable_segments", "Expandable segments"),
        check("optimizer_in_backward", "Optimizer in backward"),
        check("bucket_views", "Gradients as bucket views"),
    ]
