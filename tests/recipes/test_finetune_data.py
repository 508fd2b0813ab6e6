"""The examples that finetune.py trains on: what `workbench data` shows, and what is told of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training_data.tiny import chat, tokenizer_folder, write_lines
from workbench.errors import UsageError
from workbench.training_data import TokenOptions, examine, load_tokenizer, token_report

pytest.importorskip("datasets", reason="pip install 'training-workbench[finetune]'")

import datasets.config
import finetune_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder; examples are kept beside it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tokenizer_folder(tmp_path / "model")


def examples(folder: Path, data: Path, **how: Any) -> Any:
    """What is trained on."""
    chosen = {"template": None, "objective": "sft", "learn": "answers", "strict": False}
    options: Any = SimpleNamespace(data=str(data), model=str(folder), eval_share=0.0, seed=0)
    options.seq_len = 1024
    vars(options).update(chosen | how)
    arguments = SimpleNamespace(main_process_first=lambda **_: contextlib.nullcontext())
    return finetune_data.examples(options, arguments)[0]


def test_training_tells_what_the_check_tells(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"messages": [{**chat(2)["messages"][0], "name": "Ada"}, chat(2)["messages"][1]]}
    data = write_lines(tmp_path / "a.jsonl", [chat(1) | {"id": 7}, named, "{oops", chat(3)])
    rows = examples(folder, data)
    shown = token_report(examine(data), TokenOptions(model=str(folder)))
    assert len(rows) == shown.counted == 3
    assert set(rows.column_names) == {"input_ids", "labels"}
    told = capsys.readouterr().out
    assert "1 of 4 rows" in told
    assert (
        "Not used: column 'id' (1 row), "
        "key 'name' of messages, which the template does not show (1 row)." in told
    )


def test_a_pair_is_trained_on_as_it_is_shown(folder: Path, tmp_path: Path) -> None:
    pair = {"prompt": "one?", "chosen": "Two.", "rejected": "Not two."}
    data = write_lines(tmp_path / "pairs.jsonl", ["{oops", pair])
    (row,) = examples(folder, data, objective="dpo")
    decode = load_tokenizer(folder).decode
    assert {name: decode(tokens) for name, tokens in row.items()} == {
        "prompt_ids": "<|im_start|>user\none?<|im_end|>\n<|im_start|>assistant\n",
        "chosen_ids": "Two.<|im_end|>",
        "rejected_ids": "Not two.<|im_end|>",
    }
    (shown,) = token_report(examine(data), TokenOptions(model=str(folder))).first
    assert shown.tokens == 2 * len(row["prompt_ids"]) + len(row["chosen_ids"] + row["rejected_ids"])


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_what_the_sequence_leaves_nothing_of_is_told_and_left_out(
    objective: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"completion": "y"} if objective == "sft" else {"chosen": "y", "rejected": "n"}
    data = [{"prompt": "x" * length, **answers} for length in (2, 200, 2, 300)]
    file = write_lines(tmp_path / "a.jsonl", data)
    assert len(examples(folder, file, objective=objective, seq_len=100)) == 2
    told = "left out, as the prompt fills --seq-len: 2 of 4 examples"
    assert told in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"fills --seq-len 20, .* shortest has 21 tokens"):
        examples(folder, file, objective=objective, seq_len=20)
    with pytest.raises(UsageError, match=r"--eval-share 0\.6 of 2 examples leaves none"):
        examples(folder, file, objective=objective, seq_len=100, eval_share=0.6)


def test_rows_that_are_added_leave_the_held_out_ones_held_out() -> None:
    before = finetune_data._held_out(list(range(1, 401)), 0.1, seed=0)
    after = finetune_data._held_out(list(range(1, 601)), 0.1, seed=0)
    assert (len(before), len(after)) == (40, 60)
    assert len(before - after) <= 4  # of a new draw it would be 36
    other = finetune_data._held_out(list(range(1, 401)), 0.1, seed=1)
    assert len(before & other) < 12
    without = [row for row in range(1, 401) if row != 7]  # a row that was mended, or is broken
    again = {without[at] for at in finetune_data._held_out(without, 0.1, seed=0)}
    assert len({at + 1 for at in before} ^ again) <= 2


def test_examples_are_encoded_again_where_anything_of_them_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_lines(tmp_path / "a.jsonl", [chat(1)])

    def state() -> str:
        return finetune_data.state_of([data], load_tokenizer(folder))

    seen = [state()]
    assert state() == seen[0]
    (folder / "README.md").write_text("of no weight")
    assert state() == seen[0]
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    seen.append(state())
    tokenizer_folder(folder, eos="<|endoftext|>")
    seen.append(state())
    write_lines(data, [chat(1), chat(2)])
    seen.append(state())
    monkeypatch.setattr(finetune_data, "_VERSIONS", {"transformers": "0"})
    seen.append(state())
    assert len({*seen}) == len(seen)
    assert all(name in seen[0] for name in ("training_data/encode.py", "finetune_data.py"))
