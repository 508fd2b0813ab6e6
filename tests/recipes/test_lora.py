"""lora.py: the pairs and their labels; then the same curve on one process, DDP and FSDP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lora
import pairs
import pytest
import torch
from safetensors.torch import load_file

import workbench as wb

SHORT = ("--steps", "6", "--warmup", "2", "--lora-rank", "4", "--seq-len", "96")


def test_only_the_answer_is_learned_and_padding_is_neither_read_nor_learned() -> None:
    batch = pairs.collate([pairs.Pair([1, 2, 3], [4, 256]), pairs.Pair([5], [6, 7, 256])], 257)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 256], [5, 6, 7, 256, 257]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["labels"].tolist() == [
        [-100, -100, -100, 4, 256],
        [-100, 6, 7, 256, -100],
    ]


def test_padding_with_the_end_mark_leaves_the_real_one_learned() -> None:
    batch = pairs.collate([pairs.Pair([1], [2, 9]), pairs.Pair([1], [9])], 9)
    assert batch["labels"].tolist() == [[-100, 2, 9], [-100, 9, -100]]


@pytest.mark.slow  # reads the library of this Python
def test_pairs_are_signatures_with_their_documentation() -> None:
    found, padding = pairs.encoded_pairs(None, 192)
    assert padding == pairs.PADDING
    assert len(found) > 500
    assert max(len(one.question) + len(one.answer) for one in found) <= 192
    assert all(one.answer[-1] == pairs.END and len(one.answer) > 1 for one in found)
    assert all(bytes(one.question).startswith(b"def ") for one in found)


# peft 0.21 asks transformers 5.23 under a name that is about to go.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_parameters_are_those_of_the_real_model_and_adapters_alone_are_trained() -> None:
    options = lora.parse_options(["--size", "3", "--lora-rank", "4", "--lora-targets", "q,v"])
    model = lora.make_model(options)
    base = {name: one for name, one in model.named_parameters() if "lora_" not in name}
    assert sum(map(torch.Tensor.numel, base.values())) == options.parameters
    assert not any(one.requires_grad for one in base.values())
    adapters = [one for one in model.parameters() if one.requires_grad]
    assert len(adapters) == 3 * 2 * 2  # layers, targets, A and B
    assert sum(map(torch.Tensor.numel, adapters)) == 3 * 4 * (2 * 192 + 192 + 64)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--qlora", "--lora-rank", "0"], "cannot be trained"),
        (["--lora-targets", "q,x"], "'x'"),
        (["--steps", "0"], "--steps 0"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lora.parse_options(arguments)


# --- Real processes ------------------------------------------------------------------------------


def trained(store: Path, strategy: str, processes: int, *arguments: str) -> dict[str, Any]:
    run = wb.launch(
        lora.__file__,
        [*SHORT, *arguments],
        strategy=strategy,
        processes=processes,
        cpu=True,
        store=store,
        wrap="LlamaDecoderLayer",
        warm=True,
    )
    assert run.wait(200) == "succeeded", run.logs(tail=30)
    found = run.summary()
    assert found["world_size"] in {processes, None}
    return found | {"folder": run.directory}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_curve_however_the_answers_are_spread_and_resumed(store: Path) -> None:
    """Micro-batches with unequal numbers of answer tokens: only the right weighting gives this."""
    alone = trained(store, "single", 1, "--micro-batch", "8", "--checkpoint-every", "3")
    assert alone["loss_first"] == pytest.approx(math.log(lora.VOCABULARY), rel=0.05)
    assert alone["loss_last"] < alone["loss_first"] - 0.1
    written = sorted(path.name for path in (alone["folder"] / "checkpoints" / "adapter").iterdir())
    assert "adapter_model.safetensors" in written
    spread = trained(store, "ddp", 2, "--micro-batch", "2", "--accumulate", "2")
    assert spread["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-4)
    half = alone["folder"] / "checkpoints" / "step-00000003"
    sharded = trained(store, "fsdp", 2, "--micro-batch", "4", "--resume", str(half))
    assert sharded["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-4)
    written = sum(path.stat().st_size for path in half.iterdir())
    assert written < 900_000  # weights and moments of the adapters, not the base model too
    resumed = trained(store, "single", 1, "--micro-batch", "8", "--resume", str(half))
    assert resumed["steps"] == 3
    assert resumed["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-5)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_qlora_trains_adapters_on_four_bits_whole_or_sharded(store: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="pip install 'training-workbench[lowbit]'")
    pytest.importorskip("deepspeed", reason="pip install 'training-workbench[deepspeed]'")
    found = trained(store, "ddp", 2, "--qlora", "--micro-batch", "4")
    assert found["world_size"] == 2
    assert found["loss_last"] < found["loss_first"] - 0.1
    sharded = trained(store, "zero3", 2, "--qlora", "--micro-batch", "4")
    assert sharded["loss_last"] == pytest.approx(found["loss_last"], rel=1e-4)
    saved = sharded["folder"] / "checkpoints" / "adapter" / "adapter_model.safetensors"
    adapters = load_file(saved)
    assert adapters
    assert all(one.numel() for one in adapters.values())  # gathered from all ranks
