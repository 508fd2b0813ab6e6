"""No option is taken without effect and without a word, whatever the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.cli.plan import question
from workbench.cli.plan_values import PlanOptions
from workbench.describe.job import Job, options
from workbench.describe.needed import needs
from workbench.errors import UsageError
from workbench.estimate.sizing.gpus import fewest_gpus, on_one_gpu
from workbench.trainer_configs import job_from_config

GPU = {"gpu": "h100"}
EFFECTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    # Option -> a model and job in which it counts, and a value that changes its estimate.
    "sequence_parallel": ("gpt2", {"gpus": 4, "strategy": "tp"}, True),
    "overlap_tp": ("gpt2", {"gpus": 4, "strategy": "tp"}, True),
    "schedule": ("gpt2", {"gpus": 4, "strategy": "pp", "accumulate": 8}, "gpipe"),
    "balanced_by_flops": ("gpt2", {"gpus": 4, "strategy": "pp", "accumulate": 8}, True),
    "cp_method": ("llama-3.2-1b", {"gpus": 4, "strategy": "cp", "seq_len": 8192}, "ulysses"),
    "expert_imbalance": ("mixtral-8x7b", {"gpus": 8, "strategy": "fsdp8-ep8"}, 3.0),
    "overlap_ep": ("mixtral-8x7b", {"gpus": 8, "strategy": "fsdp8-ep8"}, True),
    "recompute_parts": ("gpt2", {"recompute": "selective"}, ("mlp",)),
    "recompute_layers": ("gpt2", {"recompute": "full"}, 2),
    "lora_targets": ("gpt2", {"lora_rank": 8}, ("q", "k", "v", "o")),
    "lora_dropout": ("gpt2", {"lora_rank": 8}, True),
    "adapter_bytes": ("gpt2", {"lora_rank": 8}, 2),
    "quantized_head": ("gpt2", {"lora_rank": 8, "quantization": "nf4"}, True),
    "fp32_unquantized": ("llama-3.2-1b", {"lora_rank": 8, "quantization": "nf4"}, True),
    "loss_chunks": ("llama-3.2-1b", {"loss": "chunked", "micro_batch": 8}, 1),
    "keep_logits": ("gpt2", {"micro_batch": 8}, True),
    "fp8_inputs": ("llama-3.2-1b", {"precision": "fp8"}, True),
    "grouped_experts": ("mixtral-8x7b", {}, True),
    "reduce_bytes": ("gpt2", {"gpus": 8, "strategy": "ddp"}, 1),
    "separate_head": ("gpt2", {}, True),
}
ALONE = {"model": "llama-3-8b", **GPU, "optimizer": "sgd", "attention": "eager", "loss": "fused"}
OTHERS: dict[str, dict[str, Any]] = {
    "loss": {"model": "vit-b-16", **GPU},
    "norm": {"model": "gpt2", **GPU},
    "low_precision_weights": ALONE | {"precision": "fp32"},
}
"""Option -> a job in which it changes nothing, where it is not `ALONE`."""


def figures(job: Job) -> tuple[Any, ...]:
    memory = wb.training_memory(job)
    return dict(memory.parts), memory.allocated_bytes, memory.high, wb.step_time(job).step_seconds


@pytest.mark.parametrize("option", EFFECTS)
def test_an_option_counts_where_it_goes_and_is_refused_elsewhere(option: str) -> None:
    model, values, value = EFFECTS[option]
    job = Job.of(model, **GPU, **values)
    assert figures(job) != figures(Job.of(model, **GPU, **values, **{option: value}))
    with pytest.raises(UsageError, match=r"goes with .*Leave it out\.$"):
        Job.of(**ALONE, **{option: value})


def test_what_is_off_is_said_to_be_off() -> None:
    with pytest.raises(UsageError, match="goes with keep logits; this job has keep logits off"):
        Job.of("gpt2", **GPU, fp32_logits_returned=True)


def other_values(name: str) -> Iterator[Any]:
    field = options()[name]
    if field.option.choices:
        yield from ((word,) if field.option.split else word for word in field.option.choices)
    else:
        yield not field.default if field.is_switch else 3


@pytest.mark.parametrize("option", needs())
def test_every_option_that_needs_another_is_refused_without(option: str) -> None:
    for value in other_values(option):
        if value != options()[option].default:
            with pytest.raises(UsageError, match=r"goes with .*has .*Leave it out\.$"):
                Job.of(**OTHERS.get(option, ALONE) | {option: value})


@pytest.mark.parametrize(
    ("strategy", "option", "value"),
    [
        ("tp", "reduce_bucket", 5),  # one data-parallel rank: nothing is reduced
        ("tp", "comm_hook", "bf16"),
        ("pp", "state_dict", "full"),
        ("fsdp2-tp2", "gather_bucket", 5),
        ("single", "overlap_gradients", False),
        ("ddp", "engine", "fsdp1"),
        ("fsdp", "engine", "torch"),
    ],
)
def test_a_library_that_is_not_there_reads_nothing(strategy: str, option: str, value: Any) -> None:
    job = {"model": "gpt2", **GPU, "gpus": 1 if strategy == "single" else 4, "strategy": strategy}
    Job.of(**job)
    with pytest.raises(UsageError, match=r"Leave it out\.$|is for "):
        Job.of(**job, **{option: value})


def test_what_no_one_typed_is_not_refused(tmp_path: Path) -> None:
    typed = Job.of("llama-3-8b", **GPU, lora_rank=8, lora_targets="q,k", lora_dropout=True)
    changed = typed.changed(lora_rank=0)
    assert not {"lora_targets", "lora_dropout"} & set(changed.given)
    assert changed.workload == Job.of("llama-3-8b", **GPU).workload
    with pytest.raises(UsageError, match="lora targets"):
        typed.changed(lora_rank=0, lora_targets="q")
    assert Job.of("llama-3-8b", **GPU, trainer="megatron").workload.kernels.gradient_bytes == 4
    config = tmp_path / "qlora.yml"
    config.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nlora_r: 0\nlora_dropout: 0.1\nsequence_len: 512\n"
        "micro_batch_size: 1\ndatasets: []\n"
    )
    assert job_from_config(config, gpu="h100").workload.lora_rank == 0


def test_layouts_of_a_job_leave_out_what_they_do_not_read() -> None:
    job = Job.of(
        "llama-3-8b", **GPU, gpus=4, strategy="tp", sequence_parallel=True, overlap_tp=True
    )
    alone = on_one_gpu(job, "h100")
    assert not alone.strategy.sequence_parallel
    assert fewest_gpus(job)


def test_a_plan_keeps_what_only_some_layouts_read() -> None:
    given = {"model": "mixtral-8x7b", "expert_imbalance": 3.0, "reduce_bytes": 2}
    asked = question(PlanOptions(job=given, tokens="1B"))
    assert asked.workload.kernels.expert_imbalance == 3
    assert asked.job is not None
    assert asked.job.given["reduce_bytes"] == 2
    with pytest.raises(UsageError, match="goes with lora rank"):
        question(PlanOptions(job={**given, "lora_dropout": True}, tokens="1B"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lora_rank": 100_000}, "lora_rank can be at most 4,096, the hidden size of"),
        ({"micro_batch": 10**9}, "micro_batch can be at most 16,777,216, not 1,000,000,000."),
        ({"seq_len": 10**12}, "seq_len can be at most 16,777,216"),
        ({"accumulate": 10**9}, "accumulate can be at most"),
        ({"logits_copies": 1000}, "logits_copies can be at most 16"),
        ({"gpus": 8, "strategy": "ddp", "expert_imbalance": 1e20}, "must be below 1,000, not"),
    ],
)
def test_absurd_sizes_are_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Job.of("llama-3-8b", **GPU, **values)
