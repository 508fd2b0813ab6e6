"""What a recipe refuses in a sentence, and what it must not take for the same, without training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import corpus
import gpt
import optimizers
import pairs
import pytest
import torch
from safetensors.torch import save_file

from workbench.errors import HostError
from workbench.rehearsing.driver import __main__ as driver
from workbench.trained_model.worker import exporting


def test_a_sequence_longer_than_the_held_out_text_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"held out for validation\. Give a shorter one"):
        corpus.read_corpus(10**8)


def test_a_loss_beyond_what_a_float_can_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, float]] = []
    monkeypatch.setattr(gpt, "tell", lambda _, **values: told.append(values))
    monkeypatch.setattr(gpt, "asked_to", lambda _: True)
    trainer: Any = SimpleNamespace(
        samples=SimpleNamespace(due=lambda _: False),
        options=SimpleNamespace(eval_every=0),
        evaluate=lambda: 5000.0,
        accelerator=SimpleNamespace(print=lambda _: None),
    )
    gpt.Trainer.look(trainer, 3)
    assert told == [{"eval_loss": 5000.0, "eval_perplexity": float("inf")}]


def test_fp8_needs_a_multiple_of_16_tokens() -> None:
    words = ["--precision", "fp8", "--micro-batch", "1", "--seq-len", "1000", "--steps", "1"]
    with pytest.raises((SystemExit, ValueError)) as refused:
        gpt.parse_options(words)
    assert "--micro-batch 1 x --seq-len 1000 is not a multiple of 16" in str(refused.value)


def test_an_optimizer_that_this_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(SystemExit, match="muon needs torch"):
        optimizers.build("muon", torch.nn.Linear(2, 2), 0.1)


@pytest.mark.slow  # reads the whole standard library
def test_pairs_that_are_all_too_long_are_none() -> None:
    assert pairs.encoded_pairs(None, 1)[0] == []


def test_only_the_first_dashes_are_the_drivers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(driver, "_become", lambda command, *_: started.append(command))
    for words in (["--", "a", "--", "b"], ["a", "--", "b"]):
        monkeypatch.setattr(sys, "argv", ["driver", *words])
        driver.main()
    assert started == [["a", "--", "b"]] * 2


def test_a_merge_needs_the_base_once_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"w": torch.zeros(1_000_000)}, tmp_path / "model.safetensors")
    job: Any = SimpleNamespace(request={"base": str(tmp_path)})

    def free(size: int) -> None:
        memory = SimpleNamespace(available=size)
        monkeypatch.setattr(exporting.psutil, "virtual_memory", lambda: memory)

    free(5_000_000)
    exporting._check_memory(job)
    free(4_000_000)
    with pytest.raises(HostError, match="Merging needs about"):
        exporting._check_memory(job)


def test_the_layers_of_gpt_2_have_sizes_too() -> None:
    finetune_adapter = pytest.importorskip("finetune_adapter")
    conv = SimpleNamespace(nx=3, nf=4)
    assert finetune_adapter._size(conv) == (3, 4)
    assert finetune_adapter._size(torch.nn.Linear(5, 6)) == (5, 6)
    assert finetune_adapter._size(torch.nn.LayerNorm(5)) is None
