"""An answer ends where the model has no more positions; a longer prompt is refused in words."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import transformers

from workbench.errors import UsageError
from workbench.trained_model.worker import answering
from workbench.trained_model.worker.huggingface import byte_tokenizer

POSITIONS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """GPT-2 of 12 learned positions, as a request names it."""
    folder = tmp_path_factory.mktemp("model")
    shape = transformers.GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=8,
        n_positions=POSITIONS,
        vocab_size=258,
        bos_token_id=256,
        eos_token_id=256,
    )
    transformers.GPT2LMHeadModel(shape).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    place = str(folder)
    about = {"run": "r", "family": "huggingface", "arguments": [], "base": None, "adapter": False}
    return {**about, "checkpoint": place, "config": place}


def ask(model: dict[str, Any], prompt: str, most: int) -> dict[str, Any]:
    """What is said at the answer's end."""
    said: list[dict[str, Any]] = []
    how = {"max_tokens": most, "temperature": 0.8, "top_k": 50, "seed": 0, "raw": False}
    request = {"model": model, "prompt": prompt, "sides": ["trained"], **how}
    answering.answer(request, threading.Event(), said.append)
    return next(one for one in said if "tokens" in one)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_an_answer_ends_at_the_last_position(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "next_token", lambda *_: torch.tensor(65))
    cut = ask(model, "12345", 200)
    assert cut["tokens"] == POSITIONS - 5 + 1
    assert cut["note"] == "it ends at the model's 12 positions"
    whole = ask(model, "12345", 3)
    assert (whole["tokens"], whole["note"]) == (3, "")


def test_a_prompt_that_does_not_fit_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="13 tokens and the model has 12 positions"):
        ask(model, "x" * 13, 5)


def test_positions_after_a_padding_do_not_count() -> None:
    shape = transformers.RobertaConfig(
        num_hidden_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        intermediate_size=8,
        vocab_size=10,
        max_position_embeddings=34,
        pad_token_id=1,
    )
    with torch.device("meta"):
        assert answering.positions(transformers.RobertaForCausalLM(shape)) == 32
