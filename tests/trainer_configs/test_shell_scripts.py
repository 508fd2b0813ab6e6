"""Shell scripts as people have them, Accelerate's file beside them, and aliases in YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.trainer_configs.test_reading import read

SFT = "sft.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --max_length 512 --output_dir o"


def test_accelerate_s_file_of_the_launcher_says_how_the_work_is_spread(tmp_path: Path) -> None:
    (tmp_path / "spread.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nnum_machines: 1\n"
        "fsdp_config: {fsdp_version: 2, fsdp_offload_params: true}\n"
    )
    text = f"accelerate launch --config_file spread.yaml {SFT}"
    job = read(tmp_path, "train.sh", text)
    assert (job.strategy.name, job.strategy.world_size) == ("fsdp", 8)
    assert job.strategy.offload == ("optimizer", "parameters")
    own = f"{text} --num_processes 4 --bf16 --fsdp full_shard"
    assert read(tmp_path, "train.sh", own).strategy.world_size == 4
    job = read(tmp_path, "train.sh", text.replace("spread", "absent"))
    assert any("config_file absent.yaml is not here" in note for note in job.notes)


def test_of_several_commands_the_training_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    text = (
        "N=${N:-4}\npython prepare.py --max_length 64 --packing && echo ready\n"
        f'torchrun --nproc_per_node $N {SFT} --no_gradient_checkpointing "$@"\n'
        "python eval.py --per_device_train_batch_size 64 --max_length 128\n"
    )
    job = read(tmp_path, "train.sh", text)
    assert (job.workload.micro_batch, job.workload.seq_len) == (2, 512)
    assert (job.strategy.world_size, job.strategy.recompute) == (4, "none")
    assert "its other commands are left out: prepare.py, eval.py" in " ".join(job.notes)


def test_options_in_the_text_of_a_variable_are_read(tmp_path: Path) -> None:
    """As Megatron-LM's older examples have them, over several lines or in one."""
    text = (
        'GPUS=8\nDIST_ARGS="--nproc_per_node $GPUS --nnodes 1"\nGPT_ARGS="\n'
        "    --num-layers 24 \\\n    --hidden-size 1024 --num-attention-heads 16\n"
        "    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257\n"
        '    --tensor-model-parallel-size 2 --bf16\n"\n'
        "torchrun $DIST_ARGS pretrain_gpt.py --micro-batch-size 4 $GPT_ARGS\n"
    )
    job = read(tmp_path, "train.sh", text)
    assert (job.workload.model.layers, job.workload.seq_len) == (24, 1024)
    assert (job.workload.micro_batch, job.workload.precision) == (4, "bf16")
    assert (job.strategy.world_size, job.strategy.tp) == (8, 2)


def test_aliases_of_yaml_are_read_unless_they_unfold_without_end(tmp_path: Path) -> None:
    text = "x: &size {sequence_len: 512, micro_batch_size: 3}\nbase_model: gpt2\n<<: *size\n"
    job = read(tmp_path, "axolotl.yaml", text)
    assert (job.workload.seq_len, job.workload.micro_batch) == (512, 3)
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
    )
    with pytest.raises(wb.UsageError, match=r"unfold to more than 10,000 values"):
        read(tmp_path, "bomb.yaml", bomb)
    with pytest.raises(wb.UsageError, match=r"stands within what it names"):
        read(tmp_path, "ring.yaml", "base_model: &a [*a]\n")


@pytest.mark.parametrize("value", [[4], {"a": 4}])
def test_a_list_beside_deepspeed_s_own_value_is_no_crash(tmp_path: Path, value: Any) -> None:
    arguments = {"model_name_or_path": "gpt2", "max_length": 512, "bf16": value}
    with pytest.raises(wb.UsageError, match=r"bf16"):
        read(
            tmp_path, "trl.json", json.dumps(arguments | {"deepspeed": {"bf16": {"enabled": True}}})
        )
