"""Configurations as people write them, read into jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.describe.named_model import read_model
from workbench.launching.prepare import accelerate_config
from workbench.trainer_configs import (
    TrainerConfig,
    job_from_config,
    job_of,
    read_command_line,
    read_config,
)
from workbench.trainer_configs.all_formats import FORMATS
from workbench.trainer_configs.document import Document
from workbench.trainer_configs.format import Format
from workbench.trainer_configs.reading import read_document
from workbench.trainer_configs.rules import Choice

TORCHTITAN = """
[job]
description = "Llama 3 70B"
[model]
name = "llama3"
flavor = "70B"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = false
[activation_checkpoint]
mode = "full"
"""
TORCHTUNE = """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 4096
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: True}
optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
batch_size: 2
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: False
clip_grad_norm: null
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
plugins: [axolotl.integrations.liger.LigerPlugin]
liger_rope: true
liger_rms_norm: true
liger_glu_activation: true
liger_fused_linear_cross_entropy: true
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_offload_params: true
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
lora_rank: 16
quantization_bit: 4
deepspeed: ds_z2.json
template: qwen
cutoff_len: 1024
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
flash_attn: fa2
"""
ZERO2 = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": True,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": "auto",
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
}
MEGATRON = """
#!/bin/bash
GPUS_PER_NODE=8
NNODES=2
TP_SIZE=4
DISTRIBUTED_ARGS=( --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_addr $MASTER )
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --disable-bias-linear  # as Llama 3 8B
    --untie-embeddings-and-output-weights --position-embedding-type rope
    "--vocab-size 128256" --seq-length 8192 --max-position-embeddings 8192
)
if [[ "$TOKENIZER" == "MOCK" ]]; then
    MODEL_ARGS+=("--log-interval 1")
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --micro-batch-size 1 --global-batch-size 128 --bf16 \\
    --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size 2 \\
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \\
    --grad-reduce-in-bf16 --recompute-granularity selective --lr 1.5e-4 --train-iters 1000
"""
ARGUMENTS = """
torchrun --nproc_per_node=4 train.py \\
    --model_name_or_path meta-llama/Llama-2-7b-hf --data_path data.json --bf16 True \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --model_max_length 2048 \\
    --fsdp "full_shard auto_wrap offload" \\
    --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --tf32 True --learning_rate 2e-5
"""


def read(folder: Path, name: str, text: str, **given: Any) -> wb.Job:
    file = folder / name
    file.write_text(text)
    return job_from_config(file, gpu="h100", **given)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in Python 3.11")
def test_torchtitan(tmp_path: Path) -> None:
    job = read(tmp_path, "llama3_70b.toml", TORCHTITAN, gpus=8, nodes=8)
    assert (job.workload.model.layers, job.workload.seq_len) == (80, 8192)
    assert (job.strategy.tp, job.strategy.dp_shard, job.strategy.sequence_parallel) == (8, 8, True)
    assert (job.workload.micro_batch, job.workload.accumulate) == (8, 1)
    assert (job.strategy.recompute, job.workload.optimizer) == ("full", "adamw-fused")
    with pytest.raises(wb.UsageError, match=r"llama3_70b.toml.*tp 8.*does not divide 12 GPUs"):
        read(tmp_path, "llama3_70b.toml", TORCHTITAN, gpus=12)


def test_torchtune(tmp_path: Path) -> None:
    job = read(tmp_path, "8B_lora.yaml", TORCHTUNE, gpus=2)
    work = job.workload
    assert (work.lora_rank, work.lora_targets) == (64, ("q", "v", "o", "gate", "up", "down"))
    assert (work.precision, work.seq_len, work.loss) == ("bf16-pure", 4096, "chunked-output")
    assert (work.micro_batch, work.accumulate, job.strategy.dp_shard) == (2, 8, 2)
    assert job.trainer is not None
    assert job.trainer.trainer.name == "torchtune"
    assert not [note for note in job.notes if "understood" in note]


def test_axolotl(tmp_path: Path) -> None:
    job = read(tmp_path, "qlora.yml", AXOLOTL, gpus=4)
    work = job.workload
    assert (work.quantization, work.lora_rank, len(work.lora_targets)) == ("nf4-dq", 32, 7)
    assert (work.loss, work.kernels.norm, work.attention) == ("fused", "fused", "flash")
    assert (work.optimizer, work.precision) == ("paged-adamw-8bit", "bf16")
    assert (job.strategy.dp_shard, job.strategy.engine) == (4, "fsdp1")
    assert job.strategy.offload == ("optimizer", "parameters")
    assert not [note for note in job.notes if "understood" in note]


@pytest.mark.parametrize(
    ("text", "resharded", "offload", "noted"),
    [
        ("fsdp: [full_shard, auto_wrap]", True, (), False),
        ("fsdp: [hybrid_shard, auto_wrap]", True, (), True),
        ("fsdp: [shard_grad_op, offload]", False, ("optimizer", "parameters"), False),
        (
            "fsdp_version: 1\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP",
            False,
            (),
            False,
        ),
        ("fsdp: full_shard\nfsdp_config:\n  sharding_strategy: HYBRID_SHARD", True, (), True),
    ],
)
def test_axolotls_words_of_fsdp(
    tmp_path: Path, text: str, *, resharded: bool, offload: tuple[str, ...], noted: bool
) -> None:
    plain = f"base_model: NousResearch/Llama-3.2-1B\nbf16: true\n{text}\n"
    job = read(tmp_path, "axolotl.yaml", plain, gpus=8)
    assert job.strategy.dp_shard == 8
    assert job.strategy.engine == "fsdp1"
    assert job.strategy.keeps_gathered_weights is not resharded
    assert tuple(sorted(job.strategy.offload)) == offload
    assert any("hybrid_shard" in note for note in job.notes) is noted


def test_llama_factory_and_its_deepspeed_file(tmp_path: Path) -> None:
    (tmp_path / "ds_z2.json").write_text(json.dumps(ZERO2))
    job = read(tmp_path, "sft.yaml", LLAMA_FACTORY, gpus=8)
    assert (job.strategy.zero_stage, job.strategy.offload) == (2, ("optimizer",))
    assert (job.strategy.overlap_gradients, job.strategy.reduce_bucket) == (True, 500_000_000)
    assert (job.workload.quantization, job.workload.seq_len) == ("nf4-dq", 1024)
    assert job.workload.lora_targets == ("q", "k", "v", "o", "gate", "up", "down")
    other = {**ZERO2, "train_micro_batch_size_per_gpu": 2}
    (tmp_path / "ds_z2.json").write_text(json.dumps(other))
    with pytest.raises(wb.UsageError, match=r"\.train_micro_batch_size_per_gpu is 2 and per"):
        read(tmp_path, "sft.yaml", LLAMA_FACTORY, gpus=8)


def test_megatron_lm(tmp_path: Path) -> None:
    job = read(tmp_path, "pretrain.sh", MEGATRON)
    assert job.workload.model.parameters == wb.Model.catalog("llama-3-8b").parameters
    strategy = job.strategy
    assert (strategy.tp, strategy.pp, strategy.dp_shard, strategy.zero_stage) == (4, 2, 2, 1)
    assert (job.workload.micro_batch, job.workload.accumulate) == (1, 64)
    assert (strategy.recompute, strategy.recompute_parts) == ("selective", ("attention",))
    assert job.workload.kernels.gradient_bytes == 2
    assert not [note for note in job.notes if "understood" in note]
    with pytest.raises(wb.UsageError, match="global batch of 128 is not a multiple"):
        read(tmp_path, "pretrain.sh", MEGATRON, nodes=3)


def test_arguments_of_a_transformers_script(tmp_path: Path) -> None:
    job = read(tmp_path, "train.sh", ARGUMENTS)
    assert (job.strategy.name, job.strategy.world_size) == ("fsdp", 4)
    assert job.strategy.offload == ("optimizer", "parameters")
    assert (job.workload.micro_batch, job.workload.accumulate) == (4, 8)
    assert (job.workload.seq_len, job.workload.model.layers) == (2048, 32)
    assert not [note for note in job.notes if "understood" in note]


@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero2", "zero3", "tp"])
def test_what_the_launcher_writes_for_accelerate(tmp_path: Path, name: str) -> None:
    strategy = wb.Strategy.parse(name, 4)
    texts = accelerate_config.files(strategy, "cuda", folder=tmp_path)
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    file = tmp_path / accelerate_config.CONFIG_NAME
    job = job_from_config(file, model="gpt2", gpu="h100")
    assert job.strategy.options() | {"name": name} == strategy.options()
    assert not [note for note in job.notes if "understood" in note]


def test_what_is_given_counts_before_the_file(tmp_path: Path) -> None:
    given: dict[str, Any] = {"micro_batch": 1, "optimizer": "sgd", "model": "gpt2", "seq_len": 512}
    job = read(tmp_path, "train.sh", ARGUMENTS, strategy="ddp", gpus=2, trainer="trl@0.20", **given)
    work = job.workload
    assert (work.micro_batch, work.optimizer, work.model.layers) == (1, "sgd", 12)
    assert (job.strategy.name, job.strategy.world_size) == ("ddp", 2)
    assert job.trainer is not None
    assert job.trainer.text == "trl@0.20"


def test_keys_that_matter_and_are_not_understood_are_named(tmp_path: Path) -> None:
    text = AXOLOTL + "galore_rank: 128\nwandb_project: mine\nquantize_moe_experts: true\n"
    notes = " ".join(read(tmp_path, "qlora.yml", text, gpus=4).notes)
    assert "not understood and left out: galore_rank=128, quantize_moe_experts=True." in notes
    assert "wandb" not in notes


def test_weights_that_are_trained_or_held_besides_are_named(tmp_path: Path) -> None:
    """Whole embeddings beside LoRA, a second copy of the weights in each node."""
    text = LLAMA_FACTORY.replace("deepspeed: ds_z2.json", "additional_target: embed_tokens")
    notes = " ".join(read(tmp_path, "lora.yaml", text, gpus=8).notes)
    assert "additional_target" in notes
    words = ARGUMENTS.rstrip() + " --lora_modules_to_save embed_tokens\n"
    notes = " ".join(read(tmp_path, "train.sh", words, gpus=8).notes)
    assert "lora_modules_to_save" in notes
    text = AXOLOTL + "lora_modules_to_save: [embed_tokens]\n"
    assert "lora_modules_to_save" in " ".join(read(tmp_path, "qlora.yml", text, gpus=4).notes)
    stage = {"stage": 3, "zero_hpz_partition_size": 8}
    plan = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": stage})
    notes = " ".join(read(tmp_path, "ds.json", plan, gpus=8, model="gpt2").notes)
    assert "zero_hpz_partition_size" in notes


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", AXOLOTL + "load_in_8bit: true\n", "a.yaml: load_in_4bit and load_in_8bit"),
        (
            "b.yaml",
            "micro_batch_size: many\nbase_model: gpt2\n",
            "b.yaml: micro_batch_size is many",
        ),
        ("c.yaml", "learning_rate: 1\n", "c.yaml has no keys of a known trainer: torchtitan"),
        ("d.json", '{"zero_optimization": {"stage": 2}}', "d.json names no model"),
        ("f.sh", MEGATRON.replace("vocab-size", "vocab-file"), "f.sh names no model"),
        ("e.sh", "python t.py --model_name_or_path gpt2 --bf16 --fp16", "bf16 and fp16 contradict"),
    ],
)
def test_contradictions_name_file_and_key(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(wb.UsageError, match=words):
        read(tmp_path, name, text)


def test_a_script_s_arguments_may_name_a_file(tmp_path: Path) -> None:
    file = tmp_path / "qlora.yml"
    file.write_text(AXOLOTL)
    assert read_command_line([str(file)], "axolotl").values["lora_rank"] == 32
    assert read_config(file).trainer == "axolotl"
    words = ["--model_name_or_path", "gpt2", "--max_length", "512"]
    assert read_command_line(words, "trl").values["seq_len"] == 512


def test_a_repository_in_the_cache_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 96, "vocab_size": 500}
    config |= {"num_attention_heads": 6, "intermediate_size": 256}
    folder = tmp_path / "hub" / "models--someone--tiny-model"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    model, _ = read_model("someone/tiny-model")
    assert (model.name, model.layers, model.hidden) == ("tiny-model", 3, 96)
    with pytest.raises(wb.UnknownNameError):
        read_model("someone/other-model")


ODD = ("", "abc", -1, 0, 3.5, True, None, [], ["x", 1], {"a": 1}, "1e400", "auto", 10**30)


def keys_of(one: Format) -> list[str]:
    """Every key that a format's rules read."""
    rules = (vars_of(rule) for rule in one.rules)
    return sorted({key for keys in rules for key in keys if "." not in key or one.documents == {}})


def vars_of(rule: Any) -> tuple[str, ...]:
    return rule.keys if isinstance(rule, Choice) else (rule.key,)


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.trainer)
def test_odd_values_are_refused_or_left_out_never_a_crash(one: Format) -> None:
    base: dict[str, Any] = {"model": "gpt2", "gpu": "h100", "gpus": 4, "seq_len": 128}
    for key in keys_of(one):
        for value in ODD:
            document = Document("odd")
            document.put(key, value)
            try:
                values = read_document(document, one)
                config = TrainerConfig(
                    format=one, trainer=one.trainer, document=document, values=values
                )
                job = job_of(config, base)
            except wb.UsageError:
                continue
            assert job.strategy.world_size == 4


def test_json_may_stand_in_the_place_of_a_file() -> None:
    text = json.dumps({"zero_optimization": {"stage": 2}, "wandb": "x" * 300})
    words = ["--model_name_or_path", "gpt2", "--deepspeed", text]
    assert read_command_line(words, "transformers").values["zero_stage"] == 2
    for wrong in ("x" * 300, "{zero"):
        with pytest.raises(wb.UsageError):
            read_command_line(
                ["--model_name_or_path", "gpt2", "--deepspeed", wrong], "transformers"
            )


def test_prefixed_keys_of_fsdp_config_count(tmp_path: Path) -> None:
    text = "model_name_or_path: gpt2\nmax_length: 512\nfsdp: full_shard auto_wrap\n"
    text += "fsdp_config: {fsdp_version: 1, fsdp_offload_params: true}\n"
    job = read(tmp_path, "sft.yaml", text, gpus=4)
    assert (job.strategy.engine, job.strategy.offload) == ("fsdp1", ("optimizer", "parameters"))


def test_a_global_batch_is_divided_by_the_given_strategy_s_ranks(tmp_path: Path) -> None:
    job = read(tmp_path, "p.sh", MEGATRON, strategy="fsdp", gpus=8, nodes=2)
    assert (job.workload.micro_batch, job.workload.accumulate) == (1, 8)


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ("axolotl", "base_model: a/b\nrl: dpo\n"),
        ("axolotl", "base_model: a/b\nreward_model: true\n"),
        *(("llama-factory", f"finetuning_type: full\nstage: {one}\n") for one in ("dpo", "rm")),
        ("trl", "max_length: 512\nbeta: 0.1\n"),
        ("trl", "max_length: 512\nloss_type: [sigmoid, bco_pair]\n"),
        ("trl", "max_length: 512\nmax_prompt_length: 256\n"),
        ("torchtune", "loss: {_component_: torchtune.rlhf.loss.DPOLoss}\n"),
    ],
)
def test_preferences_and_rewards_are_not_read_as_fine_tuning(
    tmp_path: Path, trainer: str, text: str
) -> None:
    with pytest.raises(wb.UsageError, match="cannot be estimated: it trains on more than"):
        read(tmp_path, "dpo.yaml", text, trainer=trainer, model="llama-3-8b")


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ("axolotl", "base_model: a/b\nrl: null\nreward_model: false\n"),
        ("llama-factory", "finetuning_type: full\nstage: sft\n"),
        ("trl", "max_length: 512\nloss_type: nll\n"),
    ],
)
def test_fine_tuning_that_says_so_is_read(tmp_path: Path, trainer: str, text: str) -> None:
    assert read(tmp_path, "sft.yaml", text, trainer=trainer, model="llama-3-8b")


def test_batch_sizes_that_name_the_ranks_count_where_no_gpus_do(tmp_path: Path) -> None:
    values: dict[str, Any] = {"zero_optimization": {"stage": 1}, "train_batch_size": 256}
    values |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32}
    job = read(tmp_path, "ds.json", json.dumps(values), model="llama-3-8b")
    assert (job.workload.micro_batch, job.workload.accumulate) == (1, 32)  # as the file says
    strategy, _ = wb.read_strategy(tmp_path / "ds.json")
    assert job.strategy == strategy
    assert job.strategy.world_size == 8
    assert any("8 assumed, by its batch sizes (--gpus)" in note for note in job.notes)
    said = r"its global batch is 256, but micro-batch 1 x accumulation 32 x 4 .* ranks is 128\."
    with pytest.raises(wb.UsageError, match=f"{said}.* it fits 8 ranks"):  # DeepSpeed asserts it
        read(tmp_path, "ds.json", json.dumps(values), model="llama-3-8b", gpus=4)
    values["gradient_accumulation_steps"] = "auto"
    fewer = read(tmp_path, "ds.json", json.dumps(values), model="llama-3-8b", gpus=4)
    assert (fewer.strategy.world_size, fewer.workload.accumulate) == (4, 64)


@pytest.mark.parametrize(("accumulate", "micro"), [(None, 8), (2, 4)])
def test_a_global_batch_alone_is_divided_over_the_ranks(
    tmp_path: Path, accumulate: int | None, micro: int
) -> None:
    values: dict[str, Any] = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    if accumulate:
        values["gradient_accumulation_steps"] = accumulate
    job = read(tmp_path, "ds.json", json.dumps(values), model="llama-3-8b", gpus=8)
    assert (job.workload.micro_batch, job.workload.accumulate) == (micro, accumulate or 1)
    with pytest.raises(wb.UsageError, match="64 is not a multiple of 7 data-parallel ranks"):
        read(tmp_path, "ds.json", json.dumps(values), model="llama-3-8b", gpus=7)


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ("--bf16 True --dtype bfloat16", "bf16-pure"),
        ('--bf16 True --dtype bfloat16 --fsdp "full_shard auto_wrap"', "bf16"),
        ('--bf16 True --torch_dtype bfloat16 --fsdp "shard_grad_op"', "bf16"),
        ('--dtype bfloat16 --fsdp "full_shard auto_wrap"', "bf16-pure"),
        ("--bf16 True --dtype bfloat16 --deepspeed zero3.json", "bf16"),
    ],
)
def test_sharded_weights_in_bf16_have_an_fp32_copy_where_bf16_is_on(
    tmp_path: Path, options: str, precision: str
) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    text = f"python train.py --model_name_or_path a/b --output_dir out {options}"
    job = read(tmp_path, "train.sh", text, model="llama-3-8b", gpus=8)
    assert job.workload.precision == precision
    assert precision == "bf16-pure" or not job.workload.kernels.low_precision_weights


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", "bf16"),
        ("bf16: true\n", "bf16"),
        ("bf16: false\n", "fp32"),
        ("fp16: true\n", "fp16"),
        ("bf16: true\ndtype: bfloat16\n", "bf16-pure"),
        ("dtype: bfloat16\n", "bf16-pure"),
        ("dtype: float32\n", "bf16"),
        ("dtype: auto\n", "bf16-pure"),
    ],
)
def test_trl_loads_float32_and_trains_with_bf16_unless_told(
    tmp_path: Path, text: str, precision: str
) -> None:
    text = f"max_length: 512\n{text}"
    job = read(tmp_path, "sft.yaml", text, trainer="trl", model="llama-3-8b", gpus=8)
    assert job.workload.precision == precision
    assert not job.workload.kernels.low_precision_weights
