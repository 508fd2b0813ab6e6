"""What a trainer's own checks refuse is not written, and what they want beside it is."""

from __future__ import annotations

from typing import Any

import pytest

import workbench as wb
from workbench.trainer_configs import CannotExpressError, TrainerFiles, write_config


def written(trainer: str, model: str = "llama-3-8b", **options: Any) -> TrainerFiles:
    options = {"gpu": "h100", "gpus": 8, **options}
    return write_config(wb.Job.of(model, trainer=trainer, **options), trainer)


def text(trainer: str, model: str = "llama-3-8b", **options: Any) -> str:
    return "".join(written(trainer, model, **options).files.values())


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("llama-3.2-1b", {"strategy": "fsdp"}, "wants a head of its own"),
        ("llama-3-8b", {"strategy": "fsdp", "precision": "fp16"}, "does not train in fp16"),
        ("llama-3-8b", {"strategy": "fsdp", "offload": ("optimizer",)}, "distributed optimizer"),
        ("mixtral-8x7b", {"strategy": "zero1x4-tp2"}, "experts need --sequence-parallel"),
    ],
)
def test_megatrons_own_refusals(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotExpressError, match=words):
        written("megatron-lm", model, **options)


def test_megatrons_companions() -> None:
    fsdp = text("megatron-lm", strategy="fsdp")
    assert "--no-gradient-accumulation-fusion" in fsdp
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in fsdp
    offloaded = text("megatron-lm", strategy="zero1", offload=("optimizer",))
    assert "--optimizer-cpu-offload" in offloaded
    assert "--use-precision-aware-optimizer" in offloaded
    for layout in ("zero1x4-tp2", "zero1x4-cp2"):
        script = text("megatron-lm", strategy=layout)
        assert script.index("export CUDA_DEVICE_MAX_CONNECTIONS=1") < script.index("\ntorchrun")


@pytest.mark.parametrize(
    ("trainer", "model", "options", "words"),
    [
        ("torchtune", "llama-3-8b", {"strategy": "fsdp4-cp2"}, "is in no release"),
        ("torchtune@0.6.1", "llama-3-8b", {"strategy": "hsdp"}, "shard over all ranks"),
        (
            *("torchtune", "llama-3-8b"),
            {"strategy": "fsdp4-tp2", "optimizer": "adamw-fused"},
            "must not be fused; give adamw",
        ),
        (
            *("torchtune", "qwen2.5-7b"),
            {"strategy": "fsdp4-tp2", "optimizer": "adamw"},
            "Llama 3 alone",
        ),
        ("torchtune", "llama-3-8b", {"strategy": "fsdp4-tp2", "lora_rank": 8}, "recipe for LoRA"),
        (
            *("torchtune", "llama-3-8b"),
            {"strategy": "fsdp", "optimizer_in_backward": True, "accumulate": 4},
            "cannot accumulate gradients",
        ),
        (
            *("torchtune", "llama-3-8b"),
            {"strategy": "fsdp", "offload": ("activations",), "recompute": "none"},
            "only beside recompute full",
        ),
        (
            *("torchtune", "llama-3-8b"),
            {"strategy": "fsdp", "optimizer": "adamw-8bit"},
            "do not know FSDP2's sharded tensors",
        ),
    ],
)
def test_torchtunes_own_refusals(
    trainer: str, model: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CannotExpressError, match=words):
        written(trainer, model, **options)


def test_torchtunes_recipe_is_of_its_last_release() -> None:
    assert "CEWithChunkedOutputLoss" in text("torchtune", strategy="fsdp")
    assert "LinearCrossEntropyLoss" in text("torchtune@2025-06", strategy="fsdp")
    assert "context_parallel_dim: 2" in text("torchtune@2025-06", strategy="fsdp4-cp2")
    recipe = text("torchtune", strategy="fsdp4-tp2")
    assert "torchtune.models.llama3.base_llama_tp_plan" in recipe
    assert "fused" not in recipe.partition("\nmodel:")[2]
