"""What a trainer's own checks refuse is not written, and what they want beside it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.trainer_configs import (
    CannotExpressError,
    TrainerFiles,
    job_from_config,
    write_config,
)

ON_HF = ("transformers", "trl", "llama-factory")


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


@pytest.mark.parametrize(
    ("trainer", "options", "words"),
    [
        *((one, {"strategy": "ddp", "optimizer": "muon"}, "optimizer muon") for one in ON_HF),
        ("llama-factory", {"strategy": "zero3", "precision": "bf16-pure"}, "under ZeRO-3"),
        ("torchtitan@0.3", {"strategy": "fsdp"}, "from 0.3 on it is configured in Python"),
        ("transformers", {"strategy": "fsdp", "optimizer": "paged-adamw-8bit"}, "FSDP2's sharded"),
        ("axolotl", {"strategy": "zero3", "optimizer": "adafactor"}, "works on whole matrices"),
        (
            "transformers",
            {"strategy": "zero3", "offload": ("optimizer",), "optimizer": "adamw-8bit"},
            "trains with its CPU Adam",
        ),
    ],
)
def test_what_would_fail_at_the_start_is_refused(
    trainer: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CannotExpressError, match=words):
        written(trainer, **options)


@pytest.mark.parametrize("trainer", [*ON_HF, "axolotl"])
def test_8_bit_adamw_under_fsdp2_is_torchaos(trainer: str) -> None:
    assert "adamw_torch_8bit" in text(trainer, strategy="fsdp", optimizer="adamw-8bit")
    assert "adamw_8bit" in text(trainer, strategy="ddp", optimizer="adamw-8bit")


def test_deepspeeds_files() -> None:
    for layout in ("ddp", "zero2"):
        written("deepspeed", strategy=layout, precision="fp32")
    options: dict[str, Any] = {"strategy": "zero3", "offload": ("optimizer",)}
    off = '"zero_force_ds_cpu_optimizer": false'
    assert off in text("deepspeed", optimizer="adamw", **options)
    assert off not in text("deepspeed", optimizer="adamw-fused", **options)
    for trainer in ("deepspeed", "transformers"):
        with pytest.raises(wb.UsageError, match="moves weights to the host in ZeRO-3"):
            written(trainer, strategy="zero2", offload=("parameters",))


def test_llama_factory_starts_its_share_of_each_machine() -> None:
    made = written("llama-factory", strategy="fsdp", nodes=2)
    assert made.command[:4] == ("env", "FORCE_TORCHRUN=1", "NNODES=2", "NPROC_PER_NODE=8")
    assert any("with its NODE_RANK" in note for note in made.notes)


def test_a_file_for_torchtitan_names_the_release_that_reads_it() -> None:
    assert "pip install torchtitan==0.2.2" in text("torchtitan", strategy="fsdp")
    written("torchtitan@0.2.2", strategy="fsdp")


def test_a_degree_that_no_job_says_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "axolotl.yaml"
    file.write_text("base_model: a/b\nfsdp_version: 2\ndp_shard_size: 4\ntensor_parallel_size: 2\n")
    with pytest.raises(wb.UsageError, match="tensor_parallel_size: 2 cannot be estimated"):
        job_from_config(file, model="llama-3-8b", gpu="h100", gpus=8)
    file.write_text(file.read_text().replace("tensor_parallel_size: 2", "tensor_parallel_size: 1"))
    assert job_from_config(file, model="llama-3-8b", gpu="h100", gpus=4).strategy.dp_shard == 4


@pytest.mark.parametrize("trainer", ["torchtitan", "megatron-lm"])
def test_a_trainer_that_needs_gpus_gets_no_job_on_cpu_ranks(trainer: str) -> None:
    with pytest.raises(CannotExpressError, match="does not train on CPU ranks"):
        write_config(wb.Job.of("llama-3-8b", gpus=2, cpu=True, strategy="fsdp"), trainer)


@pytest.mark.parametrize("trainer", ON_HF)
def test_a_host_with_gpus_is_told_to_train_on_its_cpus(trainer: str) -> None:
    job = wb.Job.of("llama-3-8b", gpus=1, cpu=True)
    (file, *_) = write_config(job, trainer).files.values()
    assert "use_cpu" in file or "use-cpu" in file
    assert "use_cpu" not in text(trainer, strategy="ddp")


@pytest.mark.parametrize("trainer", ["torchtitan", "torchtune"])
def test_a_model_without_a_flavor_is_refused_for_that(trainer: str) -> None:
    job = wb.Job.of("gpt2", gpus=8, gpu="h100", strategy="fsdp")
    with pytest.raises(CannotExpressError, match="none known has this shape"):
        write_config(job, trainer)
