"""What trainers' published files hold and was once read wrongly, in short files of the same keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.trainer_configs import CannotExpressError, job_from_config, write_config

AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nbf16: true\n"
FACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "
    "--vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
    "--bf16 "
)
DEEPSEEK = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
    "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 129280 --qk-layernorm "
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --num-experts 256 "
    "--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-layer-freq ([0]*3+[1]*58) --seq-length 4096 --micro-batch-size 1 --bf16 "
)


def read(folder: Path, name: str, text: str, **options: Any) -> wb.Job:
    (folder / name).write_text(text)
    return job_from_config(folder / name, gpu="h100", **options)


def megatron(folder: Path, words: str, **options: Any) -> wb.Job:
    return read(folder, "train.sh", f"torchrun pretrain_gpt.py {words}\n", **options)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("", "ddp"),
        ("deepspeed: zero3.json\n", "zero3"),
        ("fsdp_version: 2\n", "fsdp"),
        ("fsdp_config: {reshard_after_forward: true}\n", "fsdp"),
    ],
)
def test_an_optimizer_s_name_does_not_shard(tmp_path: Path, text: str, strategy: str) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    text = f"{AXOLOTL}{text}optimizer: adamw_torch_8bit\n"
    job = read(tmp_path, "axolotl.yaml", text, gpus=8)
    assert (job.strategy.name, job.workload.optimizer) == (strategy, "adamw-8bit")


@pytest.mark.parametrize(
    ("text", "recompute", "offload"),
    [
        ("activation_offloading: legacy\n", "full", ("activations",)),
        ("activation_offloading: hidden_states\n", "full", ("activations",)),
        ("activation_offloading: false\n", "full", ()),
        ("activation_offloading: disk\nadapter: lora\n", "none", ("activations",)),
        ("activation_offloading: true\nadapter: lora\n", "none", ("activations",)),
        ("activation_offloading: hidden_states\nadapter: lora\n", "full", ("activations",)),
    ],
)
def test_offloading_stands_in_the_place_of_recompute_with_adapters(
    tmp_path: Path, text: str, recompute: str, offload: tuple[str, ...]
) -> None:
    text = f"{AXOLOTL}gradient_checkpointing: true\n{text}"
    job = read(tmp_path, "axolotl.yaml", text, gpus=1)
    assert (job.strategy.recompute, job.strategy.offload) == (recompute, offload)
    old = text.replace("checkpointing: true", "checkpointing: offload")
    if "hidden" not in text and offload:
        assert read(tmp_path, "old.yaml", old, gpus=1).strategy == job.strategy


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("a.yaml", f"{AXOLOTL}expert_parallel_size: 4\n", "expert_parallel_size"),
        ("f.yaml", f"{FACTORY}use_badam: true\n", "use_badam"),
        ("f.yaml", f"{FACTORY}tensor_model_parallel_size: 4\n", "tensor_model_parallel_size"),
        ("f.yaml", f"{FACTORY}use_kt: true\n", "use_kt"),
        ("v1.yaml", "model: Qwen/Qwen3-8B\ntrain_dataset: d.yaml\ncutoff_len: 9\n", "v1"),
        ("f.yaml", f"{FACTORY}deepspeed: tp.json\n", "deepspeed.tensor_parallel.autotp_size"),
        ("t.sh", f"{LLAMA} --hybrid-layer-pattern M-M*", "hybrid_layer_pattern"),
        ("t.sh", DEEPSEEK.replace("[0]*3+[1]*58", "[0,1]*30+[0]"), "moe_layer_freq"),
        ("t.yaml", "loss: {_component_: torchtune.dev.grpo.loss.GRPOLoss}\n", "loss._component_"),
        (
            "c.yaml",
            "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 2}\n",
            "tp_degree",
        ),
        (
            "c.yaml",
            "distributed_type: FSDP\nparallelism_config: {parallelism_config_sp_size: 2}\n",
            "sp_size",
        ),
    ],
)
def test_what_no_job_says_is_refused_not_left_out(
    tmp_path: Path, name: str, text: str, key: str
) -> None:
    zero = {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}
    (tmp_path / "tp.json").write_text(json.dumps(zero))
    if name.startswith("t.y"):
        text += "model: {_component_: torchtune.models.llama3.llama3_8b}\n"
    with pytest.raises(wb.UsageError, match=key):
        read(tmp_path, name, f"torchrun pretrain_gpt.py {text}" if name == "t.sh" else text)


def test_gpus_that_no_degree_of_torchtitan_says_are_said_to_be_assumed(tmp_path: Path) -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{}\n'
    job = read(tmp_path, "open.toml", text.format("data_parallel_shard_degree = -1"))
    assert any("does not say on how many GPUs: 1 assumed" in note for note in job.notes)
    job = read(tmp_path, "said.toml", text.format("data_parallel_shard_degree = 8"))
    assert job.strategy.world_size == 8
    assert not any("how many GPUs" in note for note in job.notes)


def test_llama_factory_s_other_switches(tmp_path: Path) -> None:
    text = f"{FACTORY}fp8: true\nneat_packing: true\n"
    job = read(tmp_path, "f.yaml", text, gpus=1)
    assert (job.workload.precision, job.workload.variable_length) == ("fp8", False)


def test_modules_with_their_parent_and_kernels_of_the_hub(tmp_path: Path) -> None:
    text = (
        f"{AXOLOTL}adapter: lora\nlora_target_modules: [self_attn.q_proj, mlp.up_proj]\n"
        "attn_implementation: kernels-community/vllm-flash-attn3\n"
    )
    work = read(tmp_path, "axolotl.yaml", text, gpus=1).workload
    assert work.lora_targets == ("q", "up")
    assert (work.attention, work.kernels.flash_version) == ("flash", 3)


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ("--use-megatron-fsdp", "fsdp"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", "zero1"),
        ("--use-distributed-optimizer --data-parallel-sharding-strategy optim", "zero1"),
        ("--use-distributed-optimizer --context-parallel-size 8", "zero1x1-cp8"),
    ],
)
def test_megatrons_sharding(tmp_path: Path, words: str, strategy: str) -> None:
    assert megatron(tmp_path, LLAMA + words, gpus=8).strategy.name == strategy


def test_megatrons_stages_and_recompute(tmp_path: Path) -> None:
    staged = (
        f"{LLAMA} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1"
    )
    strategy = megatron(tmp_path, staged).strategy
    assert (strategy.pipeline.virtual_stages, strategy.recompute_layers) == (2, 2)
    parts = f"{LLAMA} --recompute-granularity selective --recompute-modules mlp layernorm"
    assert megatron(tmp_path, parts, gpus=1).strategy.recompute_parts == ("mlp", "norm")


def test_megatrons_latent_attention_and_experts(tmp_path: Path) -> None:
    job = megatron(tmp_path, f"{DEEPSEEK} --expert-model-parallel-size 64")
    model = wb.Job.of("deepseek-v3", gpu="h100", gpus=8, strategy="fsdp").workload.model
    assert job.workload.model.parameters == model.parameters
    assert (job.strategy.world_size, job.strategy.ep) == (64, 64)
    with pytest.raises(wb.UsageError, match="ep 64"):
        megatron(tmp_path, f"{DEEPSEEK} --expert-model-parallel-size 64", gpus=1)


def test_arguments_of_megatron_deepspeed(tmp_path: Path) -> None:
    words = LLAMA.replace("--group-query-attention --num-query-groups", "--num-key-value-heads")
    words = words.replace("--position-embedding-type rope", "--use-rotary-position-embeddings")
    words += " --zero-stage 3 --ds-sequence-parallel-size 2 --checkpoint-activations"
    job = megatron(tmp_path, words, gpus=8)
    assert (job.strategy.name, job.strategy.recompute) == ("zero3x4-cp2", "full")
    assert job.strategy.context.cp_method == "ulysses"
    assert job.workload.model.parameters == 8_030_261_248
    with pytest.raises(wb.UsageError, match="not known here"):
        write_config(job, "megatron-deepspeed")


def test_states_on_nvme_and_precision_of_deepspeed_s_file(tmp_path: Path) -> None:
    device = {"device": "nvme", "nvme_path": "/nvme"}
    zero = {"stage": 3, "offload_optimizer": device, "offload_param": device}
    values = {"bf16": {"enabled": True}, "zero_optimization": zero}
    (tmp_path / "zero.json").write_text(json.dumps(values))
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: zero.json}\n"
    (tmp_path / "a.yaml").write_text(text)
    for name in ("zero.json", "a.yaml"):
        job = job_from_config(tmp_path / name, model="llama-3-8b", gpu="h100", gpus=8)
        assert job.strategy.deepspeed.offload_device == "nvme"
        assert job.workload.precision == "bf16"


def test_states_sharded_over_cp_are_written_as_sharded() -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="cp", trainer="axolotl")
    assert "fsdp_version: 2" in write_config(job, "axolotl").files["axolotl.yaml"]
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="tp2-cp2-pp2", trainer="megatron-lm")
    with pytest.raises(CannotExpressError, match="neither pp nor ep"):
        write_config(job, "megatron-lm")


@pytest.mark.parametrize("trainer", ["unsloth", "alst"])
def test_a_trainer_without_such_a_file_says_so(trainer: str) -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=1, strategy="single", trainer=trainer)
    assert any("reads no such file" in note for note in write_config(job, trainer).notes)


@pytest.mark.parametrize(
    ("trainer", "model", "options", "words"),
    [
        ("torchtitan", "qwen3-8b", {"strategy": "pp2-fsdp4"}, "pipeline stages"),
        ("torchtitan", "gpt-oss-20b", {"strategy": "cp2-fsdp4"}, "no context parallelism"),
        ("torchtitan", "llama-3-8b", {"strategy": "dp4-tp2"}, "does not replicate"),
        ("torchtitan", "llama-3-8b", {"strategy": "tp"}, "mixed precision only where FSDP"),
        (
            "torchtitan",
            "llama-3-8b",
            {"strategy": "pp2-fsdp4", "optimizer_in_backward": True},
            "neither pp nor ep",
        ),
        (
            "torchtitan",
            "llama-3-8b",
            {"strategy": "fsdp4-tp2", "overlap_tp": True, "compiled": False},
            "needs the compiler",
        ),
        (
            "torchtune",
            "llama-3-8b",
            {"strategy": "fsdp", "lora_rank": 8, "optimizer_in_backward": True},
            "no optimizer in backward",
        ),
        (
            "llama-factory",
            "llama-3-8b",
            {"strategy": "zero3", "lora_rank": 8, "quantization": "int8"},
            "4 bits, not of 8",
        ),
        (
            "axolotl",
            "llama-3-8b",
            {
                "strategy": "fsdp",
                "engine": "fsdp1",
                "optimizer": "adamw-8bit",
                "offload": ("optimizer", "parameters"),
            },
            "8-bit optimizers",
        ),
    ],
)
def test_what_a_trainer_would_refuse_at_its_start_is_not_written(
    trainer: str, model: str, options: dict[str, Any], words: str
) -> None:
    job = wb.Job.of(model, gpu="h100", gpus=8, trainer=trainer, **options)
    with pytest.raises(CannotExpressError, match=words):
        write_config(job, trainer)


def test_axolotl_s_batch_of_a_rank_is_accumulated(tmp_path: Path) -> None:
    text = AXOLOTL.replace("batch_size: 1", "batch_size: 2") + "batch_size: 8\n"
    work = read(tmp_path, "axolotl.yaml", text, gpus=2).workload
    assert (work.micro_batch, work.accumulate) == (2, 4)


SFT = (
    "model_name_or_path: Qwen/Qwen3-8B\nbf16: true\ntorch_dtype: bfloat16\nmax_length: 2048\n"
    "per_device_train_batch_size: 1\n"
)


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"gpus": 1}, "bf16-pure"),
        ({"gpus": 8, "strategy": "ddp"}, "bf16-pure"),
        ({"gpus": 8, "strategy": "zero3"}, "bf16"),
        ({"gpus": 8, "strategy": "fsdp", "precision": "bf16-pure"}, "bf16-pure"),
        ({"layout_is_open": True}, "bf16"),
    ],
)
def test_what_shards_decides_whether_bf16_weights_have_an_fp32_copy(
    tmp_path: Path, options: dict[str, Any], precision: str
) -> None:
    assert read(tmp_path, "sft.yaml", SFT, **options).workload.precision == precision


@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        ("{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: 3}}", "bf16"),
        ("{distributed_type: FSDP, fsdp_config: {fsdp_version: 2}}", "bf16"),
        ("{distributed_type: MULTI_GPU, mixed_precision: bf16}", "bf16-pure"),
    ],
)
def test_so_does_what_accelerate_s_file_shards(tmp_path: Path, layout: str, precision: str) -> None:
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "accelerate.yaml").write_text(f"{layout[:-1]}, num_processes: 8}}\n")
    start = "accelerate launch --config_file accelerate.yaml sft.py --config sft.yaml\n"
    job = read(tmp_path, "run.sh", start, trainer="trl")
    assert (job.strategy.world_size, job.workload.precision) == (8, precision)


def test_torchtunes_qwen_3_is_of_its_source(tmp_path: Path) -> None:
    text = (
        "model: {_component_: torchtune.models.qwen3.lora_qwen3_8b_instruct}\n"
        "tokenizer: {_component_: torchtune.models.qwen3.qwen3_tokenizer, max_seq_len: 2048}\n"
        "dtype: bf16\n"
    )
    job = read(tmp_path, "recipe.yaml", text, gpus=8)
    assert (job.workload.model.layers, job.workload.lora_rank) == (36, 8)
    with pytest.raises(CannotExpressError, match="in no release"):
        write_config(job, "torchtune")
    source = job.with_trainer("torchtune@2025-05")
    assert "qwen3.lora_qwen3_8b" in write_config(source, "torchtune@2025-05").files["recipe.yaml"]
