"""finetune.py: its options, its prediction, and runs on a user's folder and file."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.training_data.tiny import CHATML, chat, model_folder, tokenizer_folder, write_lines
from workbench.estimate.card import CPU_CONTEXT_BYTES
from workbench.estimate.parts import CONTEXT
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.epoch import epoch_of
from workbench.launching.prepare.options import LaunchOptions
from workbench.recipes import shape
from workbench.training_data import load_tokenizer
from workbench.units import MIB

OWN = ("--model", "m", "--data", "d")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A model's folder, and 60 rows of which three are broken."""
    if find_spec("trl") is None:
        pytest.skip("pip install 'training-workbench[finetune]'")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    rows: list[Any] = [chat(number) for number in range(60)]
    rows[7], rows[20], rows[41] = "{broken", {"messages": []}, {"messages": "text"}
    data = write_lines(tmp_path / "chats.jsonl", rows)
    return ("--model", str(model_folder(tmp_path / "model")), "--data", str(data))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required: --model, --data"),
        ((*OWN, "--lora-targets", "q,x"), "'x'"),
        ((*OWN, "--steps", "0"), "--steps 0"),
        ((*OWN, "--steps", "1k"), "'1k' is not a whole number; write it in full, such as 1000"),
        ((*OWN, "--eval-share", "1"), "give a share below 1"),
        ((*OWN, "--objective", "dpo", "--packing"), "pairs cannot be packed"),
        ((*OWN, "--method", "full", "--adapter", "a"), "--method lora"),
        ((*OWN, "--adapter", "a", "--lora-rank", "8"), "leave --lora-rank out"),
        ((*OWN, "--adapter", "a", "--lora-targets", "q,v"), "leave --lora-targets out"),
        ((*OWN, "--model", "s3://bucket/model"), "object-store address"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=r"finetune\.py: ") as error:
        shape(arguments, recipe="finetune")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_would_be_refused_after_loading_is_refused_before_a_launch(
    own: tuple[str, ...], tmp_path: Path
) -> None:
    pairs = [{"prompt": "one?", "chosen": "Two.", "rejected": "No."}] * 4
    of_pairs = ("--data", str(write_lines(tmp_path / "pairs.jsonl", pairs)))
    for words, said in (
        ((*own, "--objective", "dpo"), "needs pairs"),
        ((*own, "--objective", "dpo", "--packing"), "cannot be packed"),
        ((*own, *of_pairs), "Add --objective dpo"),
        ((*own, *of_pairs, "--packing"), "Add --objective dpo"),
        ((*own, "--adapter", str(tmp_path)), "no adapter_config.json there"),
    ):
        with pytest.raises(wb.UsageError, match=said):
            wb.request("finetune", words, cpu=True, store=tmp_path / "runs")
    wb.request("finetune", [*own, *of_pairs, "--objective", "dpo"], cpu=True, store=tmp_path)


def test_a_run_is_asked_for_again_from_any_folder(
    own: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume and rerun start where the run did: its files are found from there."""
    words = [Path(word).name if word.startswith("/") else word for word in own]
    options = LaunchOptions(cpu=True, store=tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    here = build_request("finetune", words, options)
    monkeypatch.chdir("/")
    with pytest.raises(wb.UsageError, match="No file chats"):
        build_request("finetune", words, options)
    again = build_request("finetune", words, options, tmp_path)
    assert again.working_directory == tmp_path
    assert (again.arguments, again.epoch_steps) == (here.arguments, here.epoch_steps)
    assert again.predicted is not None
    assert here.predicted is not None
    assert again.predicted.parts == here.predicted.parts


def test_options_stand_in_groups() -> None:
    text = wb.recipes.help_text("finetune")
    groups = "model data method batch optimizer schedule evaluation checkpoints"
    assert all(f"\n{group}:\n" in text for group in groups.split())


def test_what_it_loads_is_what_was_predicted(own: tuple[str, ...], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    words = (*own, "--seq-len", "64", "--eval-share", "0.1", "--epochs", "2")
    full = wb.request("finetune", [*words, "--method", "full"], processes=2, cpu=True)
    model = AutoModelForCausalLM.from_pretrained(own[1])
    held = sum(map(torch.Tensor.numel, model.parameters()))
    assert full.workload is not None
    assert full.predicted is not None
    assert full.workload.model.parameters == held
    assert full.predicted.parts["parameters"] == 4 * held
    assert (full.epoch_steps, full.steps_total) == (7, 14)  # 57 - 6 over 2 ranks of 4
    epoch = epoch_of(full)
    assert epoch is not None
    assert (epoch.steps, epoch.tokens) == (7, 51 * 64)
    assert full.predicted.parts[CONTEXT] > CPU_CONTEXT_BYTES + 200 * MIB  # TRL and what it imports
    adapters = wb.request("finetune", [*words, "--lora-rank", "4"], processes=2, cpu=True)
    assert adapters.predicted is not None
    # two layers; per layer q and o 64+64, k and v 64+32, three matrices of the MLP 64+128
    extra = 2 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert adapters.predicted.parts["parameters"] == 4 * (held + extra)
    config = {"r": 4, "target_modules": [f"{name}_proj" for name in ("q", "k", "v", "o")]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    further = wb.request("finetune", [*words, "--adapter", str(tmp_path)], processes=2, cpu=True)
    assert further.predicted is not None
    of_attention = 2 * 4 * (2 * 128 + 2 * 96)
    assert further.predicted.parts["parameters"] == 4 * (held + of_attention)
    assert adapters.trainer is not None
    assert adapters.trainer.text == "trl"


def test_pairs_are_two_sequences_and_need_the_start_model(
    own: tuple[str, ...], tmp_path: Path
) -> None:
    pair = {"prompt": "one?", "chosen": "two", "rejected": "ten"}
    data = str(write_lines(tmp_path / "pairs.jsonl", [pair] * 8))
    words = (*own, "--data", data, "--objective", "dpo", "--micro-batch", "2")
    full = wb.request("finetune", [*words, "--method", "full"], processes=2, cpu=True)
    adapters = wb.request("finetune", words, processes=2, cpu=True)
    assert full.workload is not None
    assert full.workload.micro_batch == 4
    assert full.epoch_steps == 2
    assert full.predicted is not None
    assert full.predicted.parts["reference model"] == 4 * full.workload.model.parameters
    assert adapters.predicted is not None
    assert "reference model" not in adapters.predicted.parts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "./nothing"), "nothing"),
        (("--data", "./nothing.jsonl"), "No file nothing.jsonl"),
    ],
)
def test_what_is_missing_is_told_before_the_start(
    own: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        wb.request("finetune", [*own, *words], processes=2, cpu=True)


def test_weights_that_are_not_whole_are_told_before_the_start(own: tuple[str, ...]) -> None:
    folder = Path(own[1])
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    shards = [folder / f"model-{number}-of-2.safetensors" for number in (1, 2)]
    weights = whole.read_bytes()
    shards[0].write_bytes(weights)
    index.write_text(json.dumps({"weight_map": {"a": shards[0].name, "b": shards[1].name}}))
    for name, content, said in (
        (whole, weights[:-10], r"model\.safetensors has [\d,]+ bytes instead of .* hf download"),
        (whole, b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (whole, None, r"model-2-of-2\.safetensors is missing\. Copy the folder again"),
        (shards[1], weights[:100], r"model-2-of-2\.safetensors is cut short"),
        (index, b"{", r"index\.json cannot be read"),
    ):
        name.unlink() if content is None else name.write_bytes(content)
        with pytest.raises(wb.UsageError, match=said):
            wb.request("finetune", own, cpu=True)


def trained(store: Path, own: tuple[str, ...], *words: str, **how: Any) -> wb.Run:
    arguments = [*own, "--seq-len", "64", "--lr", "1e-2", "--warmup", "2", *words]
    run = wb.launch("finetune", arguments, cpu=True, store=store, warm=True, **how)
    assert run.wait(280) == "succeeded", run.logs(tail=30)
    return run


@pytest.mark.slow
def test_the_latest_of_no_checkpoints_is_the_beginning(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from finetune import newest

    assert newest(tmp_path / "nowhere") is None
    assert newest(tmp_path) is None
    (tmp_path / "checkpoint-4").mkdir()
    assert newest(tmp_path) == str(tmp_path / "checkpoint-4")


@pytest.mark.slow
def test_adapters_are_trained_on_two_ranks_and_broken_rows_are_told_once(
    store: Path, own: tuple[str, ...]
) -> None:
    tokenizer_folder(Path(own[1]), template=None, eos="<|endoftext|>")
    words = ("--steps", "8", "--checkpoint-every", "4", "--micro-batch", "8", "--eval-share", "0.2")
    words = (
        *words,
        "--template",
        "chatml",
        "--sample-every",
        "4",
        "--sample-prompts",
        "What follows 3?",
    )
    run = trained(store, own, *words, processes=2, strategy="ddp")
    found = run.summary()
    assert (found["steps"], found["world_size"]) == (8, 2)
    assert found["loss_last"] < found["loss_first"] - 0.2
    assert [row["step"] for row in run.samples()] == [0, 4, 8]
    assert run.series()["eval_perplexity"].last == pytest.approx(
        math.exp(run.series()["eval_loss"].last)
    )
    told = run.logs()
    assert told.count("3 of 60 rows") == 1
    assert all(f"row {number}: " in told for number in (8, 21, 42))
    written = run.directory / "checkpoints"
    assert (written / "adapter" / "adapter_model.safetensors").is_file()
    assert (written / "checkpoint-8" / "trainer_state.json").is_file()
    tokenizer = load_tokenizer(Path(own[1])).from_pretrained(written / "adapter")
    assert tokenizer.chat_template == CHATML
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.full
def test_the_loss_of_the_held_out_is_per_token_whatever_the_batch_and_the_ranks(
    store: Path, own: tuple[str, ...]
) -> None:
    """With 15 of them, two ranks of four are filled up with a repetition."""
    told = ("--eval-share", "0.25", "--eval-every", "1", "--steps", "1", "--lr", "1e-9")
    losses = [
        trained(store, own, *told, "--micro-batch", batch, processes=ranks, **more)
        .series()["eval_loss"]
        .last
        for batch, ranks, more in (("1", 1, {}), ("6", 1, {}), ("4", 2, {"strategy": "ddp"}))
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.full
def test_preferences_are_trained_without_a_perplexity(
    store: Path, own: tuple[str, ...], tmp_path: Path
) -> None:
    pairs = [{"prompt": f"{n}?", "chosen": f"{n}.", "rejected": "No."} for n in range(15)]
    pairs.append({"prompt": "x" * 64, "chosen": "Yes.", "rejected": "No."})
    data = str(write_lines(tmp_path / "pairs.jsonl", pairs))
    words = ("--data", data, "--objective", "dpo", "--eval-share", "0.25", "--epochs", "1")
    run = trained(store, own, *words, processes=1)
    assert "fills --seq-len: 1 of " in run.logs()
    assert {"eval_loss", "eval_rewards/margins"} <= run.series().keys()
    assert "eval_perplexity" not in run.series()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "method"),
    [("fsdp", "lora"), ("fsdp", "full"), ("zero2", "lora"), ("zero3", "full"), ("ddp", "qlora")],
)
def test_methods_under_strategies(
    strategy: str, method: str, store: Path, own: tuple[str, ...]
) -> None:
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed", reason="pip install 'training-workbench[deepspeed]'")
    words = ("--steps", "6", "--micro-batch", "8", "--method", method)
    asked = ("--sample-every", "3", "--sample-prompts", "What follows 3?", "--sample-tokens", "8")
    run = trained(store, own, *words, *asked, processes=2, strategy=strategy)
    assert [row["step"] for row in run.samples()] == [0, 3, 6]
    bare = trained(store, own, *words, processes=2, strategy=strategy)
    assert [row["loss"] for row in run.metrics()] == [row["loss"] for row in bare.metrics()]
    assert run.summary()["loss_last"] < run.summary()["loss_first"] - 0.1
    kind = "model" if method == "full" else "adapter"
    assert list((run.directory / "checkpoints" / kind).glob("*.safetensors"))
