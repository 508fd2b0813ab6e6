"""``--config`` in every command about a job, ``export --trainer``, and a launch's first table."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.entry import app
from workbench.trainer_configs import CannotExpressError
from workbench.trainer_configs.all_formats import FORMATS

RECIPE = """
base_model: meta-llama/Meta-Llama-3-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
adapter: lora
lora_r: 16
lora_target_modules: [q_proj, v_proj]
bf16: true
optimizer: adamw_torch_fused
gradient_checkpointing: true
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "lora.yaml"
    file.write_text(RECIPE)
    return file


def run(*words: object) -> Any:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("memory", "--gpu", "h100", "--gpus", 2),
        ("cost", "--gpu", "h100", "--gpus", 2, "--tokens", "1M"),
        ("plan", "--tokens", "1M", "--gpu", "h100", "--max-gpus", 2),
        ("advise", "--gpu", "h100", "--gpus", 2),
    ],
)
def test_every_command_about_a_job_reads_a_configuration(
    words: tuple[object, ...], recipe: Path
) -> None:
    command, *rest = words
    from_file = run(command, "--config", recipe, *rest)
    typed = ["--model", "llama-3-8b", "--seq-len", 4096, "--micro-batch", 2, "--accumulate", 4]
    typed += ["--lora-rank", 16, "--lora-targets", "q,v", "--trainer", "axolotl"]
    typed += ["--optimizer", "adamw-fused"]
    if command == "plan":
        typed = [one for one in typed if one not in {"--micro-batch", "--accumulate", 2, 4}]
    else:
        typed += ["--recompute", "full"]
    same = run(command, *typed, *rest)
    for document in (from_file, same) if isinstance(from_file, dict) else ():
        for key in ("notes", "trainer", "seconds", "assumptions", "workload"):
            document.pop(key, None)
    assert from_file == same


def test_a_job_is_exported_as_a_trainers_configuration(recipe: Path, tmp_path: Path) -> None:
    made = run("export", "--trainer", "trl", "--config", recipe, "--gpu", "h100", "--gpus", 2)
    assert made["trainer"] == "trl"
    assert "lora_r: 16" in made["files"]["sft.yaml"]
    assert "not parsed by TRL itself" in made["unproven"][0]
    out = tmp_path / "out"
    wanted = ("--strategy", "fsdp", "--gpu", "h100", "--gpus", 8, "--out", out)
    made = run("export", "--trainer", "axolotl", "--model", "llama-3-8b", *wanted)
    assert (out / "axolotl.yaml").read_text() == made["files"]["axolotl.yaml"]
    again = run("memory", "--config", out / "axolotl.yaml", "--gpu", "h100", "--gpus", 8)
    assert again["trainer"]["name"] == "axolotl"
    result = CliRunner().invoke(
        app,
        ["export", "--trainer", "trl", "--model", "llama-3-8b", "--strategy", "tp", "--gpus", "8"],
    )
    assert isinstance(result.exception, CannotExpressError)
    assert "tp" in result.exception.fields


def test_a_plan_is_exported_as_a_trainers_configuration(tmp_path: Path) -> None:
    words = ("--model", "llama-3-8b", "--tokens", "1B", "--gpu", "h100", "--max-gpus", 8)
    plans = run("plan", *words, "--trainer", "torchtitan", "--any-script")
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(plans))
    made = run("export", file, "--trainer", "torchtitan", "--rank", 1)
    text = made["files"]["train.toml"]
    first = plans["plans"][0]
    assert f"--nproc-per-node={first['gpus'] // first['nodes']}" in text
    assert 'flavor = "8B"' in text
    assert f"seq_len = {first['seq_len']}" in text


def test_a_run_is_exported_as_a_trainers_configuration(tmp_path: Path) -> None:
    job = wb.Job.of("qwen2.5-1.5b", gpu="h100", gpus=4, strategy="zero2", micro_batch=3)
    record = {"run": "20260101-a", "device": "cuda", "strategy": job.strategy.options()}
    record |= {"workload": asdict(job.workload), "cluster": asdict(job.cluster)}
    folder = tmp_path / "runs" / "20260101-a"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    made = run("export", "20260101-a", "--trainer", "trl", "--store", tmp_path / "runs")
    assert "per_device_train_batch_size: 3" in made["files"]["sft.yaml"]
    assert json.loads(made["files"]["deepspeed.json"])["zero_optimization"]["stage"] == 2
    assert made["command"][:4] == ["trl", "sft", "--config", "sft.yaml"]


def test_a_launch_predicts_from_a_known_trainer_s_arguments(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from transformers import Trainer, TrainingArguments\n")
    words = ["--model_name_or_path", "openai-community/gpt2", "--block_size", "256"]
    words += ["--per_device_train_batch_size", "4", "--gradient_checkpointing", "True"]
    how: dict[str, Any] = {"processes": 2, "cpu": True, "store": store}
    request = wb.request(script, words, **how)
    assert request.workload is not None
    assert (request.workload.micro_batch, request.workload.seq_len) == (4, 256)
    assert request.predicted is not None
    assert request.strategy.name == "ddp"
    sharded = wb.request(script, [*words, "--fsdp", "full_shard auto_wrap"], **how)
    assert sharded.predicted is not None  # the script shards by itself
    assert sharded.predicted.parts["parameters"] < request.predicted.parts["parameters"]
    assert wb.request(script, ["--learning_rate", "1"], **how).predicted is None


def test_the_help_says_whose_files_no_parser_of_theirs_has_read() -> None:
    result = CliRunner().invoke(app, ["export", "--help"])
    text = " ".join(result.output.replace("│", " ").split())
    parsed, _, other = text.partition("parser: ")[2].partition("Not parsed by the package itself: ")
    unproven = other.partition(".")[0].split(", ")
    assert sorted(unproven) == sorted(one.trainer for one in FORMATS if not one.parsed_by)
    proven = parsed.partition(".")[0].split(", ")
    assert sorted(proven) == sorted(one.trainer for one in FORMATS if one.parsed_by)


def test_calibration_counts_for_a_configuration_too(recipe: Path, store: Path) -> None:
    words = ["memory", "--config", str(recipe), "--gpu", "h100", "--calibration", "nonsense"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, wb.UsageError | wb.UnknownNameError)
