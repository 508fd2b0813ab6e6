"""What is written is read by the trainers' own parsers, of those packages that are installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.trainer_configs import write_config, write_files
from workbench.trainer_configs.formats.transformers import OPTIMIZER


def written(folder: Path, trainer: str, **options: Any) -> dict[str, Path]:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, trainer=trainer, **options)
    return {path.name: path for path in write_files(write_config(job, trainer), folder)}


def arguments(path: Path) -> list[str]:
    """The script's arguments in a file that starts it."""
    words = shlex.split(path.read_text().replace("\\\n", " "), comments=True)
    return words[words.index("train.py") + 1 :]


@pytest.mark.slow  # loads torch and transformers
def test_transformers_reads_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    monkeypatch.setattr(TrainingArguments, "__post_init__", lambda _: None)  # wants the hardware
    options: dict[str, Any] = {"strategy": "fsdp", "micro_batch": 3, "accumulate": 5}
    options |= {"recompute": "full", "optimizer": "adamw-8bit", "precision": "bf16"}
    files = written(tmp_path / "fsdp", "transformers", **options)
    parsed, rest = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        arguments(files["train.sh"]), return_remaining_strings=True
    )
    assert (parsed.per_device_train_batch_size, parsed.gradient_accumulation_steps) == (3, 5)
    assert (parsed.bf16, parsed.fp16, parsed.gradient_checkpointing) == (True, False, True)
    assert (parsed.optim, parsed.fsdp) == ("adamw_torch_8bit", "full_shard auto_wrap")
    # What is left belongs to the script's own model and data arguments.
    own = {word for word in rest if word.startswith("--")}
    assert own == {"--model_name_or_path", "--attn_implementation", "--dtype", "--block_size"}
    parsed.fsdp_config = str(files["fsdp.json"])
    plugin = parsed._process_fsdp_args()
    assert plugin["fsdp_version"] == 2
    assert plugin["reshard_after_forward"] is True
    assert plugin["state_dict_type"] == "SHARDED_STATE_DICT"

    files = written(tmp_path / "zero", "transformers", strategy="zero3", recompute="none")
    parsed, _ = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        arguments(files["train.sh"]), return_remaining_strings=True
    )
    assert parsed.deepspeed == "deepspeed.json"
    assert parsed.gradient_checkpointing is False


@pytest.mark.slow  # loads torch and transformers
def test_transformers_knows_each_optimizer_by_its_name() -> None:
    from transformers.training_args import OptimizerNames

    names = {keys[0] for keys, _ in OPTIMIZER.rows}
    assert names <= {one.value for one in OptimizerNames}


@pytest.mark.slow  # loads torch and DeepSpeed
def test_deepspeed_reads_its_json(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    options: dict[str, Any] = {"strategy": "zero3", "offload": "optimizer,parameters"}
    options |= {"micro_batch": 2, "accumulate": 4, "reduce_bucket": 1_000_000}
    file = written(tmp_path, "deepspeed", **options)["deepspeed.json"]
    values = json.loads(file.read_text())
    values["train_batch_size"] = 2 * 4  # this process is one of one
    parsed = DeepSpeedConfig(values)
    assert parsed.zero_optimization_stage == 3
    assert parsed.bfloat16_config.enabled
    assert parsed.gradient_accumulation_steps == 4
    assert parsed.zero_config.reduce_bucket_size == 1_000_000
    assert parsed.zero_config.offload_param.device == "cpu"


@pytest.mark.slow  # loads torch and Accelerate
def test_accelerate_reads_its_config(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    options: dict[str, Any] = {"strategy": "hsdp", "recompute": "full", "precision": "bf16"}
    file = written(tmp_path, "accelerate", **options)["accelerate.yaml"]
    parsed = load_config_from_file(str(file))
    assert (parsed.num_processes, parsed.mixed_precision) == (8, "bf16")
    assert parsed.distributed_type.value == "FSDP"
    assert parsed.fsdp_config["fsdp_version"] == 2
    assert parsed.fsdp_config["fsdp_activation_checkpointing"] is True
    assert parsed.parallelism_config["parallelism_config_dp_replicate_size"] == 2


@pytest.mark.full
@pytest.mark.slow  # starts two ranks
def test_accelerate_starts_the_ranks_of_a_cpu_job(tmp_path: Path) -> None:
    made = write_config(wb.Job.of("gpt2", gpus=2, cpu=True, strategy="ddp"), "accelerate")
    write_files(made, tmp_path)
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\n"
        "state = Accelerator().state\n"
        "print(f'{state.num_processes} {state.device.type} {state.backend}\\n', end='')\n"
    )
    command = [*made.command[:-1], "--main_process_port", "0", made.command[-1]]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["2 cpu gloo"] * 2, done.stderr
