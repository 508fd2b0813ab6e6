"""What is written for a trainer is read back as the same job, for generated jobs and each trainer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.trainer_configs import (
    CannotExpressError,
    TrainerFiles,
    job_from_config,
    write_config,
    write_files,
)
from workbench.trainer_configs.all_formats import FORMATS
from workbench.trainer_configs.reading import format_of

TRAINERS = [one.trainer for one in FORMATS]
MODELS = ("llama-3-8b", "llama-3.1-70b", "qwen3-8b", "qwen2.5-1.5b", "mixtral-8x7b", "gpt2")
LAYOUTS = (
    *("single", "ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero2", "zero3"),
    *("tp", "fsdp4-tp2", "dp2-tp2-pp2", "pp2-fsdp4", "cp2-fsdp4", "zero1x4-tp2", "fsdp8-ep4"),
)
PRECISIONS = ("fp32", "bf16", "bf16-pure", "fp16", "fp8")
MIXED_TP = {"strategy": "zero1x4-tp2", "seq_len": 4096, "sequence_parallel": True}
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "paged-adamw-8bit", "sgd", "lion", "adafactor")


@st.composite
def jobs(draw: st.DrawFn, trainer: str) -> wb.Job:
    """A job whose fields are drawn; most of them are left to the trainer."""
    layout = draw(st.sampled_from(LAYOUTS))
    gpus = 1 if layout == "single" else 8
    values: dict[str, Any] = {
        "strategy": layout,
        "gpus": gpus,
        "nodes": draw(st.sampled_from((1, 2))) if layout in {"ddp", "fsdp", "zero3"} else 1,
        "micro_batch": draw(st.integers(1, 4)),
        "accumulate": draw(st.sampled_from((1, 2, 8))),
        "seq_len": draw(st.sampled_from((512, 1024))),
    }
    for name, choices in (
        ("precision", PRECISIONS),
        ("optimizer", OPTIMIZERS),
        ("recompute", ("none", "full")),
        ("attention", ("sdpa", "flash")),
        ("loss", ("full", "fused")),
        ("variable_length", (True, False)),
    ):
        if draw(st.booleans()):
            values[name] = draw(st.sampled_from(choices))
    if "tp" in layout and draw(st.booleans()):
        values["sequence_parallel"] = True
    if layout in {"fsdp", "zero2", "zero3"} and draw(st.booleans()):
        values["offload"] = ("optimizer",) if layout == "zero2" else ("optimizer", "parameters")
    if draw(st.booleans()):
        values["lora_rank"] = draw(st.sampled_from((8, 64)))
        values["lora_targets"] = draw(st.sampled_from((("q", "v"), ("q", "k", "v", "o"))))
        values["quantization"] = draw(st.sampled_from(("none", "int8", "nf4", "nf4-dq")))
    try:
        return wb.Job.of(draw(st.sampled_from(MODELS)), gpu="h100", trainer=trainer, **values)
    except wb.UsageError:  # an impossible combination
        return wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", trainer=trainer)


def compared(job: wb.Job) -> dict[str, Any]:
    """What must come back: everything but names and what the trainer's code does by itself."""
    work, shape = job.workload, job.workload.model
    size = (shape.parameters, shape.layers, shape.hidden, shape.head_width, shape.key_value_heads)
    values = {"model": size, "seq_len": work.seq_len, "batch": (work.micro_batch, work.accumulate)}
    values |= {
        name: getattr(work, name)
        for name in ("precision", "optimizer", "attention", "loss", "lora_rank", "quantization")
    }
    options = job.strategy.options()
    for name in ("name", "recompute_parts"):
        del options[name]
    targets = work.lora_targets if work.lora_rank else ()
    soft = ("find_unused", "static_graph", "overlap_tp", "overlap_ep")
    kept = {name: value for name, value in options.items() if name not in soft}
    return values | kept | {"lora_targets": targets}


@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(trainer: str, data: st.DataObject) -> None:
    job = data.draw(jobs(trainer))
    try:
        made = write_config(job, trainer)
    except CannotExpressError as refused:
        sentences = refused.fields
    else:
        sentences = {}
        check_read_back(job, trainer, made)
    assert all("cannot express" in one or "No name" in one for one in sentences.values())


def check_read_back(job: wb.Job, trainer: str, made: TrainerFiles) -> None:
    nodes = job.cluster.nodes
    where: dict[str, Any] = {"gpu": "h100", "gpus": job.strategy.world_size // nodes}
    options = job.strategy.options()
    for name in format_of(trainer).outside:  # the script decides those
        where[name] = getattr(job.workload, name, options.get(name))
    if trainer in {"accelerate", "deepspeed"}:
        where |= {"model": job.workload.model}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(made, Path(folder))
        again = job_from_config(paths[0], nodes=nodes, **where)
    assert compared(again) == compared(job)
    assert again.trainer is not None
    assert again.trainer.trainer.name == trainer
    assert not [note for note in again.notes if "understood" in note]


@pytest.mark.parametrize(
    ("trainer", "model", "options"),
    [
        ("transformers", "llama-3-8b", {"strategy": "fsdp", "recompute": "full"}),
        ("trl", "llama-3-8b", {"strategy": "zero3", "lora_rank": 16}),
        ("torchtitan", "llama-3.1-70b", {"strategy": "pp2-fsdp2-tp2", "sequence_parallel": True}),
        ("torchtune", "llama-3.1-8b", {"strategy": "fsdp", "optimizer": "sgd"}),
        ("axolotl", "qwen2.5-1.5b", {"strategy": "fsdp", "precision": "bf16"}),
        ("llama-factory", "llama-3-8b", {"lora_rank": 8, "strategy": "zero2"}),
        ("megatron-lm", "mixtral-8x7b", MIXED_TP),
        ("accelerate", "llama-3-8b", {"strategy": "hsdp", "recompute": "full"}),
        ("deepspeed", "gpt2", {"strategy": "zero3", "offload": "optimizer,parameters"}),
    ],
)
def test_each_trainer_takes_a_usual_job(trainer: str, model: str, options: dict[str, Any]) -> None:
    job = wb.Job.of(model, gpu="h100", gpus=8, trainer=trainer, **options)
    made = write_config(job, trainer)
    assert made.command
    first = next(iter(made.files.values()))
    if trainer != "deepspeed":  # JSON has no comments
        assert first.startswith("#")
        assert f"Assuming {job.trainer.trainer.title}" in first
    assert bool(made.unproven) == (trainer not in {"transformers", "deepspeed", "accelerate"})


@pytest.mark.parametrize(
    ("trainer", "options", "words"),
    [
        ("trl", {"strategy": "tp"}, "TRL cannot express tp 8: it has no tensor parallelism"),
        ("torchtune", {"precision": "fp16"}, "torchtune cannot express precision fp16"),
        ("torchtitan", {"lora_rank": 8}, "torchtitan cannot express lora rank 8"),
        ("megatron-lm", {"strategy": "zero3"}, "its distributed optimizer is ZeRO-1"),
        ("axolotl", {"strategy": "pp"}, "Axolotl cannot express pp 8: it has no pipeline"),
    ],
)
def test_what_a_trainer_cannot_express_is_refused(
    trainer: str, options: dict[str, Any], words: str
) -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, trainer=trainer, **options)
    with pytest.raises(CannotExpressError, match=words):
        write_config(job, trainer)


@pytest.mark.parametrize(
    ("trainer", "text", "sentence"),
    [
        ("llama-factory", "finetuning_type: oft\n", "finetuning_type: oft cannot be estimated"),
        ("llama-factory", "finetuning_type: lora\nuse_dora: true\n", "LoRA without it can be"),
        ("axolotl", "adapter: llama-adapter\n", "known are lora"),
        ("axolotl", "adapter: lora\npeft_use_dora: true\n", "workbench measure train.py"),
    ],
)
def test_an_adapter_that_nobody_models_is_refused(
    tmp_path: Path, trainer: str, text: str, sentence: str
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(text)
    with pytest.raises(wb.UsageError, match=sentence):
        job_from_config(file, trainer=trainer, model="llama-3-8b", gpu="h100")
    file.write_text(
        text.replace("true", "false").replace("oft", "lora").replace("llama-a", "lora #")
    )
    assert job_from_config(file, trainer=trainer, model="llama-3-8b", gpu="h100").workload.lora_rank


def test_pure_bf16_under_fsdp_is_written_without_mixed_precision() -> None:
    options: dict[str, Any] = {"gpu": "h100", "gpus": 8, "precision": "bf16-pure"}
    job = wb.Job.of("llama-3-8b", strategy="fsdp", trainer="transformers", **options)
    text = write_config(job, "transformers").files["train.sh"]
    assert "--dtype bfloat16" in text
    assert "--bf16" not in text
    sharded = wb.Job.of("llama-3-8b", strategy="zero3", trainer="transformers", **options)
    with pytest.raises(CannotExpressError, match="DeepSpeed, which keeps an fp32 copy"):
        write_config(sharded, "transformers")


def test_trl_is_started_by_its_own_command() -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", trainer="trl")
    made = write_config(job, "trl")
    assert made.command[:4] == ("trl", "sft", "--config", "sft.yaml")
    assert made.command[-2:] == ("--num_processes", "8")


def test_fp32_of_trl_says_that_it_is_not_bf16() -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, precision="fp32", trainer="trl")
    assert "bf16: false" in write_config(job, "trl").files["sft.yaml"]
