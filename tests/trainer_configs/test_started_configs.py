"""Shell scripts that start a trainer with its own file, or lay it out by Accelerate's options."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.trainer_configs.test_reading import read
from tests.trainer_configs.test_shell_scripts import SFT

AXOLOTL = "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 2\nbf16: true\n"
FACTORY = (
    "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ncutoff_len: 512\n"
    "per_device_train_batch_size: 2\nbf16: true\n"
)
TRL = "model_name_or_path: gpt2\nmax_length: 512\nper_device_train_batch_size: 2\nbf16: true\n"
TUNE = (
    "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\nbatch_size: 2\ndtype: bf16\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 512}\n"
)


@pytest.mark.parametrize(
    ("trainer", "file", "line"),
    [
        ("axolotl", AXOLOTL, "axolotl train x.yaml --micro-batch-size 8 --launcher torchrun"),
        ("axolotl", AXOLOTL, "axolotl train $FILE --micro-batch-size=8 -- --nproc_per_node=2"),
        (
            "axolotl",
            AXOLOTL,
            "accelerate launch -m axolotl.cli.train x.yaml --micro_batch_size 8",
        ),
        (
            "llama-factory",
            FACTORY,
            "FORCE_TORCHRUN=1 llamafactory-cli train x.yaml per_device_train_batch_size=8",
        ),
        ("trl", TRL, "trl sft --config x.yaml --per_device_train_batch_size 8"),
        ("torchtune", TUNE, "tune run --nproc_per_node 2 full_x --config x.yaml batch_size=8"),
    ],
)
def test_the_file_is_followed_and_the_options_count_before_it(
    tmp_path: Path, trainer: str, file: str, line: str
) -> None:
    (tmp_path / "x.yaml").write_text(file)
    (tmp_path / "scripts").mkdir()
    text = f"FILE=x.yaml\naxolotl preprocess other.yaml --debug\nCUDA_VISIBLE_DEVICES=0,1 {line}\n"
    job = read(tmp_path / "scripts", "train.sh", text)
    assert job.given["trainer"] == trainer
    assert job.workload.seq_len == 512
    assert (job.workload.micro_batch, job.strategy.world_size) == (8, 2)
    assert any(f"read with {tmp_path / 'x.yaml'}" in note for note in job.notes)


@pytest.mark.parametrize("line", ["axolotl train $1", "tune run full --config llama3_2/1B_full"])
def test_a_file_that_is_not_here_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(wb.UsageError, match=r"which is not a file in .* Give that file: --config"):
        read(tmp_path, "train.sh", line)


def test_options_of_accelerate_s_launcher_lay_out_the_work(tmp_path: Path) -> None:
    fsdp = "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 --mixed_precision bf16"
    job = read(tmp_path, "train.sh", f"{fsdp} --fsdp_offload_params true {SFT}")
    assert (job.strategy.name, job.strategy.world_size) == ("fsdp", 8)
    assert job.strategy.offload == ("optimizer", "parameters")
    assert job.workload.precision == "bf16"
    zero = f"accelerate launch --use-deepspeed --num_machines=2 --num_processes 8 -m {SFT[:3]}"
    job = read(tmp_path, "train.sh", f"{zero} {SFT.partition(' ')[2]}")
    assert (job.strategy.zero_stage, job.strategy.world_size) == (2, 8)  # Accelerate's default
    array = f"ARGS=(--use_deepspeed --zero_stage 3)\naccelerate launch ${{ARGS[@]}} {SFT}"
    assert read(tmp_path, "train.sh", array).strategy.zero_stage == 3


def test_they_count_before_the_launcher_s_file(tmp_path: Path) -> None:
    (tmp_path / "spread.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 1}\n"
    )
    line = (
        f"accelerate launch --config_file spread.yaml --fsdp_sharding_strategy SHARD_GRAD_OP {SFT}"
    )
    job = read(tmp_path, "train.sh", line)
    assert (job.strategy.shard_ranks, job.strategy.fsdp.reshard_after_forward) == (8, False)


def test_visible_gpus_count_where_no_launcher_says_how_many(tmp_path: Path) -> None:
    visible = "export CUDA_VISIBLE_DEVICES=0,1,2,3\n"
    assert read(tmp_path, "train.sh", f"{visible}python {SFT}").strategy.world_size == 4
    text = f"{visible}torchrun --nproc_per_node 2 {SFT}"
    assert read(tmp_path, "train.sh", text).strategy.world_size == 2
    text = f"CUDA_VISIBLE_DEVICES=0 python prepare.py --x 1\nCUDA_VISIBLE_DEVICES=0,1 python {SFT}"
    assert read(tmp_path, "train.sh", text).strategy.world_size == 2
