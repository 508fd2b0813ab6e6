"""Trainer presets: what they decide, what wins over them, where each assumption can be read."""

from __future__ import annotations

import ast

import pytest

import workbench as wb
from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.option import flat_names
from workbench.describe.trainers import imported_trainer, preset, trainers
from workbench.describe.trainers.preset import read_value
from workbench.describe.trainers.releases import month_of
from workbench.describe.workload import Workload
from workbench.estimate.stages import chunk_sizes
from workbench.store.python_source import imports

FIELDS = {*flat_names(wb.Strategy), *flat_names(Workload), *flat_names(ImplementationAssumptions)}
JOB = {"gpu": "h100", "gpus": 8, "strategy": "fsdp"}


def job(trainer: str | None = None, model: str = "llama-3-8b", **values: object) -> wb.Job:
    named = {} if trainer is None else {"trainer": trainer}
    return wb.Job.of(model, **{**JOB, **named, **values})


def test_every_assumption_names_a_field_and_its_source() -> None:
    counted = 0
    for one in trainers().values():
        assert one.lineage[-1] is one
        for line in one.lines:
            assert line.field in FIELDS, (one.name, line)
            read_value(line.field, line.value, {"hidden": 1024, "tp": 2})
            assert "/" in line.source, (one.name, line)
            assert line.since < (line.until or "9999"), (one.name, line)
            counted += 1
    assert counted >= 120


@pytest.mark.parametrize("name", list(trainers()))
@pytest.mark.parametrize("more", [{}, {"lora_rank": 8, "strategy": "zero3"}, {"strategy": "tp"}])
def test_every_trainer_describes_a_job_that_can_be_estimated(
    name: str, more: dict[str, object]
) -> None:
    found = job(name, **more)
    assert found.trainer is not None
    assert found.trainer.trainer.name == name
    assert found.trainer.note in found.notes
    assert wb.training_memory(found).total_bytes > 0
    assert wb.step_time(found).step_seconds > 0


def test_without_a_trainer_nothing_changes_and_the_answer_says_what_is_assumed() -> None:
    plain, named = job(), job("pytorch")
    assert plain.workload == named.workload == Workload(model=plain.workload.model, seq_len=2048)
    assert plain.strategy == named.strategy == wb.Strategy.parse("fsdp", 8)
    assert plain.notes[0].startswith("Assuming plain PyTorch or Accelerate: ")
    assert plain.notes[0].endswith("If you use another trainer, add --trainer NAME.")
    assert "add --trainer" not in named.notes[0]


def test_what_is_given_wins_over_the_trainer() -> None:
    assert job("torchtune").workload.precision == "bf16-pure"
    assert job("torchtune").workload.optimizer == "adamw-fused"
    own = job("torchtune", low_precision_weights=False, fused_optimizer=False, recompute="none")
    assert (own.workload.precision, own.workload.optimizer) == ("bf16", "adamw")
    assert own.strategy.recompute == "none"
    assert not {"low_precision_weights", "recompute"} & {
        one.field for one in own.trainer.assumptions
    }
    assert job("megatron-lm", kernels="transformers").workload.kernels.norm == "upcast"


def test_a_release_decides_what_its_trainer_did_then() -> None:
    losses = {one: job(f"torchtune@{one}").workload.loss for one in ("0.2", "0.5", "2025-06")}
    assert losses == {"0.2": "full", "0.5": "chunked-output", "2025-06": "chunked"}
    old, new = job("transformers@4.44"), job("transformers@5.1")
    assert old.workload.kernels.fp32_logits_returned
    assert not new.workload.kernels.fp32_logits_returned
    assert job("megatron-lm@2.0").workload.attention == "eager"


def test_an_assumption_may_depend_on_the_job() -> None:
    piped = job("torchtitan", strategy="fsdp4-pp2")
    assert not piped.strategy.fsdp.reshard_after_forward
    assert job("torchtitan").strategy.fsdp.reshard_after_forward
    assert job("torchtitan", strategy="fsdp4-tp2").strategy.sequence_parallel
    assert not job(strategy="fsdp4-tp2").strategy.sequence_parallel
    buckets = job("transformers", strategy="zero3").strategy
    assert buckets.reduce_bucket == 4096 * 4096


@pytest.mark.parametrize(
    ("release", "month"),
    [
        ("0.3.1", "2024-09"),
        ("v0.4.0", "2024-11"),
        ("0.6.x", "2025-03"),
        ("0.x", "2025-03"),
        ("0.3.9", "2024-09"),
        ("0.5.0dev20250101", "2024-12"),
        ("2025-01", "2025-01"),
        ("2024-H1", "2024-06"),
        ("2025-26", "2025-12"),
        ("2025", "2025-07"),
        ("", "9999-12"),
    ],
)
def test_releases_are_versions_or_dates(release: str, month: str) -> None:
    assert month_of(release, trainers()["torchtune"].releases, "torchtune") == month


def test_unknown_names_and_releases_say_what_is_known() -> None:
    with pytest.raises(wb.UnknownNameError, match="Did you mean torchtune"):
        preset("torchtun")
    with pytest.raises(wb.UsageError, match=r"not a release of torchtune.*0\.6.*such as 2025-06"):
        preset("torchtune@4ffb9bd")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\nfrom accelerate import Accelerator", "accelerate"),
        ("from transformers import AutoModelForCausalLM, Trainer", "transformers"),
        ("from transformers import Trainer\nfrom trl import SFTTrainer", "trl"),
        ("import torch\nimport litgpt.model", "litgpt"),
        ("def main():\n    from megatron.bridge import recipes", "megatron-bridge"),
        ("import torch", "pytorch"),
        ("import torchvision_of_mine", None),
    ],
)
def test_a_script_says_by_its_imports_what_trains(source: str, name: str | None) -> None:
    found = imported_trainer(name for name, _ in imports(ast.parse(source)))
    assert (found and found.name) == name


def test_a_launcher_is_not_told_what_the_trainer_does_itself() -> None:
    named = job("trl", strategy="zero3", overlap_gradients=False)
    assert named.strategy.recompute == "full"
    assert named.launched == wb.Strategy.parse("zero3", 8).with_options(overlap_gradients=False)
    assert job("trl").with_trainer(None).strategy == job().strategy


def test_old_four_bit_linears_keep_the_inputs_of_every_projection() -> None:
    """bitsandbytes 0.42 saves (A, B): k's input is q's, o's and down's come on top."""
    qlora = {"lora_rank": 8, "quantization": "nf4", "precision": "bf16-pure", "strategy": "ddp"}
    old, new = (job(None, quantized_inputs=one, **qlora) for one in (True, False))
    more = wb.training_memory(old).allocated_bytes - wb.training_memory(new).allocated_bytes
    gate_and_up, down = 4096, 14336  # one tensor for both; the attention's result is kept anyway
    assert more == pytest.approx(32 * 2048 * 2 * (gate_and_up + down), rel=0.01)
    assert job("litgpt@0.5.3", **qlora).workload.kernels.quantized_inputs
    assert not job("litgpt@0.5.8", **qlora).workload.kernels.quantized_inputs


def test_what_old_four_bit_linears_keep_outlives_the_next_forward() -> None:
    """LitGPT of 2024: bitsandbytes 0.42's inputs are no saved tensors, and logits hold the graph.

    Full recompute lets go of them, and LitGPT of 2023 had no micro-batch before the longest one.
    """
    qlora = {"lora_rank": 8, "quantization": "nf4", "precision": "bf16-pure", "strategy": "ddp"}
    width = 3 * 4096 + 14336  # what q, k and v, o, gate and up, and down read
    for recompute, expected in (("none", 32 * 2048 * 2 * width), ("full", 0)):
        old = {"quantized_inputs": True, "recompute": recompute, **qlora}
        both = (job(None, earlier_inputs=there, **old) for there in (True, False))
        more, less = ((wb.training_memory(one).peaks or {})["forward end"] for one in both)
        assert more - less == pytest.approx(expected, rel=0.01)
    assert job("litgpt@0.5.3", **qlora).workload.kernels.earlier_inputs
    assert not job("litgpt@0.5.8", **qlora).workload.kernels.earlier_inputs
    assert not job("litgpt@2023", **qlora).workload.kernels.earlier_inputs


def test_llm_foundry_keeps_neither_fp32_logits_nor_lists_of_temporaries() -> None:
    """flash_attn's cross entropy on bf16 logits; Composer's AdamW takes one tensor at a time."""
    small = {"micro_batch": 32, "recompute": "none", "seq_len": 1024}
    foundry, plain = (
        wb.training_memory(job(trainer, "gpt2", **small)).parts["logits and loss"]
        for trainer in ("llm-foundry", "pytorch")
    )
    assert foundry == pytest.approx(32 * 1024 * 50257 * (2 + 2), rel=0.02)
    assert plain > 2.5 * foundry
    large = wb.training_memory(job("llm-foundry", "llama-30b", micro_batch=1))
    assert "optimizer step" not in large.parts


def test_kbit_preparation_makes_embedding_head_and_norms_fp32() -> None:
    """PEFT's prepare_model_for_kbit_training: 1.96 GiB more on Llama-3-8B."""
    qlora = {"lora_rank": 8, "quantization": "nf4", "gpus": 1, "strategy": "single"}
    kept, plain = (job(None, fp32_unquantized=one, **qlora) for one in (True, False))
    more = (
        wb.training_memory(kept).parts["parameters"] - wb.training_memory(plain).parts["parameters"]
    )
    assert more / 2**30 == pytest.approx(1.96, abs=0.01)
    assert job("peft", **qlora).workload.kernels.fp32_unquantized
    assert not job("trl@1.9", **qlora).workload.kernels.fp32_unquantized


def test_fp8_in_torchtitan_is_compiled() -> None:
    def kernels(precision: str) -> tuple[bool, str]:
        described = job("torchtitan@2025-06", precision=precision)
        own = described.workload.kernels
        return own.compiled, own.norm

    assert kernels("fp8") == (True, "fused")
    assert kernels("bf16") == (False, "upcast")


def test_nanotron_ends_a_stage_with_the_block_that_exceeds_its_share() -> None:
    """build_model of nanotron: the head's FLOPs count, the embedding's do not."""
    pipeline = wb.Strategy.parse("pp2", 2).with_options(balanced_by_flops=True)
    assert chunk_sizes(28, pipeline, head_blocks=3.55) == [16, 12]
    assert chunk_sizes(32, pipeline, head_blocks=2.21) == [18, 14]
    four = wb.Strategy.parse("pp4", 4).with_options(balanced_by_flops=True)
    assert chunk_sizes(32, four, head_blocks=2.21) == [9, 9, 8, 6]
    assert job("nanotron", gpus=4, strategy="pp4").strategy.pipeline.balanced_by_flops


@pytest.mark.parametrize(
    ("gpu", "trainer", "version"),
    [
        ("h100", "trl", 3),
        ("gb300", "transformers", 3),
        ("a100-sxm-80", "transformers", 2),
        ("b200", "transformers@2024-06", 2),
        ("b200", "axolotl", 2),
    ],
)
def test_sdpa_takes_cudnn_where_torch_prefers_it(gpu: str, trainer: str, version: int) -> None:
    """On Hopper and Blackwell, since torch 2.9; FlashAttention-2 where the trainer asks for it."""
    job = wb.Job.of("llama-3-8b", gpu=gpu, trainer=trainer)
    assert job.workload.kernels.flash_version == version


def test_a_recipe_in_fp8_has_room_without_recompute() -> None:
    """Low-precision gradients, 8-bit inputs and a loss in place: NVIDIA's table runs it so."""
    layout = {"gpus": 8, "nodes": 72, "strategy": "zero1x4-tp8-pp9-cp2", "virtual_stages": 7}
    layout |= {"schedule": "interleaved", "accumulate": 63, "seq_len": 8192, "precision": "fp8"}
    found = job("nemo@25.02", "llama-3.1-405b", sequence_parallel=True, **layout)
    assert found.workload.kernels.gradient_bytes == 2
    assert found.workload.kernels.fp8_inputs
    assert found.strategy.recompute == "none"
    assert wb.training_memory(found).fits
    assert job("nemo@25.02").workload.kernels.gradient_bytes == 4
    assert job("nemo@25.05").workload.kernels.gradient_bytes == 2


def peak(described: wb.Job, moment: str) -> int:
    return dict(wb.training_memory(described).peaks or {})[moment]


def test_cross_entropy_of_megatron_works_in_place() -> None:
    """Of fp32 logits one copy is left, which becomes the gradient."""
    layout = {"strategy": "ddp", "seq_len": 8192, "recompute": "full", "loss": "full"}
    own, usual = (job(name, "llama-3.2-1b", **layout) for name in ("megatron-lm", "pytorch"))
    before, after = (
        peak(one, "loss backward") - peak(one, "block backward") for one in (usual, own)
    )
    assert before - after > 4 * 8192 * 128256


def test_early_torchtune_keeps_its_logits_through_backward() -> None:
    single = {"gpus": 1, "strategy": "single", "seq_len": 2048, "micro_batch": 4}
    early, later = (
        peak(job(f"torchtune@{release}", "llama-2-7b", loss="full", **single), "loss backward")
        for release in ("0.2", "0.3")
    )
    assert early - later == pytest.approx(4 * 8192 * 32000, rel=0.01)


@pytest.mark.parametrize(
    ("model", "first", "last"),
    [("llama-3.1-8b", (16, 40_724), (80, 342_733)), ("llama-3.3-70b", (48, 12_106), (80, 89_389))],
)
def test_inputs_of_blocks_wait_in_host_memory_in_unsloth(
    model: str, first: tuple[int, int], last: tuple[int, int]
) -> None:
    """Its page's longest contexts by card (QLoRA, rank 32): what one token more takes."""
    options = {"gpus": 1, "strategy": "single", "lora_rank": 32, "quantization": "nf4"}
    asked = [job("unsloth", model, seq_len=tokens, **options) for _, tokens in (first, last)]
    short, long = (wb.training_memory(one).total_bytes for one in asked)
    published = (last[0] - first[0]) * 2**30 / (last[1] - first[1])
    assert published < (long - short) / (last[1] - first[1]) < 1.5 * published
    kept = job("unsloth", model, seq_len=4096, recompute="none", **options)
    assert (asked[0].strategy.offload, kept.strategy.offload) == (("activations",), ())
