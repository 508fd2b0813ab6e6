"""What finetune.py saves beside the weights: the template and the end mark of the training."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.training_data.tiny import CHATML, chat, tokenizer_folder, write_lines
from workbench.errors import UsageError
from workbench.training_data import Encoder, load_tokenizer
from workbench.training_data.templates import TEMPLATES

pytest.importorskip("datasets")
PAIR = {"prompt": "What follows 3?", "completion": "4"}


def saved(folder: Path, row: Any, named: str | None, **tokenizer: Any) -> Any:
    """The tokenizer as it is read from the folder in which a training left it."""
    from finetune_tokenizer import tokenizer_of

    model = tokenizer_folder(folder / "model", **tokenizer)
    data = write_lines(folder / "rows.jsonl", [row])
    options = Namespace(model=str(model), data=str(data), template=named)
    tokenizer_of(options).save_pretrained(folder / "trained")
    (folder / "trained" / "config.json").write_text("{}")
    return load_tokenizer(folder / "trained")


@pytest.mark.parametrize(
    ("row", "named", "own", "template", "end"),
    [
        (chat(1), "chatml", None, TEMPLATES["chatml"], "<|im_end|>"),
        (chat(1), "zephyr", CHATML, TEMPLATES["zephyr"], "<|endoftext|>"),
        (chat(1), None, CHATML, CHATML, "<|im_end|>"),
        (PAIR, None, None, TEMPLATES["plain"], "<|endoftext|>"),
    ],
)
def test_the_template_and_the_end_of_an_answer_are_saved(
    tmp_path: Path, row: Any, named: str | None, own: str | None, template: str, end: str
) -> None:
    found = saved(tmp_path, row, named, template=own, eos="<|endoftext|>", pad=None)
    assert found.chat_template == template
    assert found.eos_token == end
    assert found.pad_token == "<|endoftext|>"


@pytest.mark.parametrize("own", [None, CHATML])
def test_raw_text_needs_no_template_and_keeps_the_end_mark_that_is_learned(
    tmp_path: Path, own: str | None
) -> None:
    found = saved(tmp_path, {"text": "once"}, None, template=own, eos="<|endoftext|>", pad=None)
    assert (found.eos_token, found.chat_template) == ("<|endoftext|>", own)


def test_an_end_mark_of_several_tokens_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = saved(tmp_path, chat(1), "llama-3", template=None, eos="<|endoftext|>")
    assert found.eos_token == "<|endoftext|>"
    assert "ends an answer with '<|eot_id|>', which is not one token" in capsys.readouterr().out


def test_a_template_that_wants_a_system_turn(tmp_path: Path) -> None:
    from finetune_tokenizer import asked_tokens

    wants = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    row = {"messages": [{"role": "system", "content": "Be brief."}, *chat(1)["messages"]]}
    found = saved(tmp_path, row, None, template=wants + CHATML, eos="<|endoftext|>")
    assert found.eos_token == "<|im_end|>"
    with pytest.raises(
        UsageError, match=r"--sample-prompts 'one\?': the template refuses it: no sys"
    ):
        asked_tokens(Encoder(found, "messages"), "one?")
