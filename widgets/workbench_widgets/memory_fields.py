"""The controls of the memory calculator: what each is called and what it offers."""

from __future__ import annotations

from typing import Any

from workbench.describe import KERNELS, catalog
from workbench.describe.strategy import SCHEDULES
from workbench.describe.workload import (
    ATTENTIONS,
    LOSSES,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZATIONS,
)
from workbench.units import format_bytes, format_count
from workbench_widgets.memory_choice import LORA_TARGETS, OFFLOADS, RECOMPUTES, STRATEGIES

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SEQUENCES = (128, 256, 512, 768, *(size << step for step in range(8) for size in (1024, 1536)))
ACCUMULATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SAYS = {
    "bf16": "bf16 mixed",
    "fp16": "fp16 mixed",
    "fp8": "fp8 mixed",
    "bf16-pure": "all in bf16",
    "adamw": "AdamW (torch's default, foreach)",
    "adamw-fused": "AdamW fused",
    "adamw-8bit": "AdamW 8-bit",
    "adamw-4bit": "AdamW 4-bit",
    "paged-adamw": "AdamW paged",
    "paged-adamw-8bit": "AdamW paged, 8-bit",
    "sgd": "SGD",
    "sgd-momentum": "SGD with momentum",
    "single": "One GPU",
    "ddp": "DDP: a whole copy on each GPU",
    "fsdp": "FSDP: all states sharded",
    "fsdp-grad-op": "FSDP, weights kept after forward",
    "hsdp": "HSDP: sharded in groups",
    "zero1": "ZeRO-1: optimizer sharded",
    "zero2": "ZeRO-2: and gradients",
    "zero3": "ZeRO-3: and weights",
    "tp": "Tensor parallel alone",
    "pp": "Pipeline alone",
    "cp": "Context parallel alone",
    "nf4": "nf4 (QLoRA)",
    "nf4-dq": "nf4 double",
    "transformers": "transformers, eager",
    "megatron": "Megatron",
    "compiled": "torch.compile",
}
_RECOMPUTED = {
    "none": "none",
    "selective": "attention's core",
    "mlp": "the MLPs",
    "op": "every second matmul",
    "full": "every block (full)",
}


def fields() -> list[dict[str, Any]]:
    """Groups of controls in reading order: one GPU's options first, several GPUs' after them."""
    return [
        {"title": "Model and GPU", "open": True, "fields": [_model(), _gpu()]},
        {
            "title": "Batch",
            "open": True,
            "fields": [
                _slider("micro_batch", "Micro-batch", "sequences per GPU", MICRO_BATCHES),
                _slider("seq_len", "Sequence length", "tokens", SEQUENCES),
                _slider("accumulate", "Accumulation", "micro-batches per step", ACCUMULATIONS),
            ],
        },
        {"title": "On one GPU", "open": True, "fields": _one_gpu()},
        {"title": "Several GPUs", "open": True, "fields": _several_gpus()},
        {"title": "Implementation", "open": False, "fields": _implementation()},
    ]


def _one_gpu() -> list[dict[str, Any]]:
    return [
        _select("precision", "Precision", PRECISIONS),
        _select("recompute", "Recompute", tuple(RECOMPUTES), _RECOMPUTED),
        _select("optimizer", "Optimizer", OPTIMIZERS),
        _select("loss", "Loss", LOSSES, {"full": "all logits"}),
        _select("attention", "Attention", ATTENTIONS),
        _number("lora_rank", "LoRA rank (0: none)", least=0),
        _select("quantization", "Frozen weights", QUANTIZATIONS, {"none": "as computed"}),
        _select("lora_targets", "LoRA on", tuple(LORA_TARGETS)),
    ]


def _several_gpus() -> list[dict[str, Any]]:
    return [
        _select("strategy", "Strategy", STRATEGIES),
        _number("gpus", "GPUs per node", most=1024),
        _number("nodes", "Nodes", most=16_384),
        _number("tp", "Tensor (tp)"),
        _number("pp", "Pipeline (pp)"),
        _number("cp", "Context (cp)"),
        _number("ep", "Experts (ep)"),
        _select("schedule", "Pipeline schedule", SCHEDULES),
        _check("sequence_parallel", "Sequence parallel, with tp"),
    ]


def _implementation() -> list[dict[str, Any]]:
    return [
        _select("kernels", "Kernels", tuple(KERNELS), {"fused": "fused (Liger)"}),
        _select("offload", "In host memory", tuple(OFFLOADS), {"none": "nothing"}),
        _check("expandable_segments", "Expandable segments"),
        _check("optimizer_in_backward", "Optimizer in backward"),
        _check("bucket_views", "Gradients as bucket views"),
    ]


def _model() -> dict[str, Any]:
    options = [
        {"value": one.id, "text": one.model.name, "detail": format_count(one.model.parameters)}
        for one in catalog.every_published()
    ]
    return {
        "name": "model",
        "label": "Model",
        "kind": "search",
        "options": options,
        "hint": "name, or path of a config.json",
    }


def _gpu() -> dict[str, Any]:
    options = [
        {"value": gpu.id, "text": gpu.name, "detail": format_bytes(gpu.memory_bytes)}
        for gpu in catalog.gpus()
    ]
    return {
        "name": "gpu",
        "label": "GPU to train on, and others to compare",
        "kind": "several",
        "options": options,
        "hint": "add a GPU",
    }


def _select(
    name: str, label: str, values: tuple[str, ...], own: dict[str, str] | None = None
) -> dict[str, Any]:
    says = {**_SAYS, **(own or {})}
    options = [{"value": value, "text": says.get(value, value)} for value in values]
    return {"name": name, "label": label, "kind": "select", "options": options}


def _slider(name: str, label: str, unit: str, marks: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "kind": "slider",
        "marks": sorted(set(marks)),
    }


def _number(name: str, label: str, least: int = 1, most: int | None = None) -> dict[str, Any]:
    return {"name": name, "label": label, "kind": "number", "least": least, "most": most}


def _check(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "label": label, "kind": "check"}
