"""A script's command line: what it gives, what its files say, and what the script declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.trainer_configs import read_command_line

DECLARES = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Ours(TrainingArguments):
    model_name_or_path: str = field(default="openai-community/gpt2")
    model_max_length: int = field(default=512)
    per_device_train_batch_size: int = field(default=3)
    gradient_checkpointing: bool = field(default=True)

(args,) = HfArgumentParser(Ours).parse_args_into_dataclasses()
"""


def requested(folder: Path, store: Path, words: list[str], text: str = DECLARES) -> Any:
    (folder / "train.py").write_text(text)
    return wb.request(folder / "train.py", words, processes=2, cpu=True, store=store)


@pytest.mark.parametrize(
    ("words", "batch", "length", "recompute"),
    [
        ([], 3, 512, "full"),
        (["--model_max_length", "64"], 3, 64, "full"),
        (["--per_device_train_batch_size=5", "--no_gradient_checkpointing"], 5, 512, "none"),
    ],
)
def test_what_the_script_declares_counts_where_nothing_is_given(
    store: Path, tmp_path: Path, words: list[str], batch: int, length: int, recompute: str
) -> None:
    request = requested(tmp_path, store, words)
    assert request.workload is not None
    assert (request.workload.micro_batch, request.workload.seq_len) == (batch, length)
    assert any(f"recompute {recompute}" in one for one in request.predicted.assumptions)


def test_an_assumed_sequence_length_is_said(store: Path, tmp_path: Path) -> None:
    text = DECLARES.replace("    model_max_length: int = field(default=512)\n", "")
    request = requested(tmp_path, store, [], text)
    (note,) = [one for one in request.predicted.assumptions if "sequence length" in one]
    assert note.startswith("the script's command line does not say the sequence length")


@pytest.mark.parametrize(
    ("trainer", "text", "words", "batch"),
    [
        ("trl", "per_device_train_batch_size: 2", [], 2),
        ("trl", "per_device_train_batch_size: 2", ["--per_device_train_batch_size", "4"], 4),
        ("trl", "max_length: 64", [], 7),
        ("axolotl", "micro_batch_size: 2", ["--micro-batch-size=4"], 4),
        ("torchtune", "batch_size: 2", ["batch_size=4"], 4),
    ],
)
@pytest.mark.parametrize("named", [("--config", "{}"), ("--config={}",), ("{}",)])
def test_options_count_before_their_file_and_that_before_what_is_declared(
    tmp_path: Path, named: tuple[str, ...], trainer: str, text: str, words: list[str], batch: int
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text + "\n")
    start = [word.format(path) for word in named]
    declared = ["--per_device_train_batch_size=7"] if trainer == "trl" else []
    config = read_command_line([*start, *words], trainer, declared)
    assert config.values["micro_batch"] == batch


def test_keys_of_several_trainers_are_of_the_one_that_is_named() -> None:
    words = ["--model_name_or_path", "openai-community/gpt2", "--output_dir", "out"]
    config = read_command_line(words, "trl", ["--per_device_train_batch_size=7"])
    assert (config.values["precision"], config.values["seq_len"]) == ("bf16", 1024)
    assert config.values["micro_batch"] == 7
    assert read_command_line(words, "transformers").values["precision"] == "fp32"
