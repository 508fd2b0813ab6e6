"""`workbench data`: what people and programs see."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.training_data.tiny import chat, tokenizer_folder, write_lines


def test_people_see_rows_examples_mask_and_figures(command: Command, tmp_path: Path) -> None:
    rows = [chat(1), chat(1), "{oops", chat(2)]
    path = write_lines(tmp_path / "chats.jsonl", rows)
    folder = tokenizer_folder(tmp_path / "model")
    seen = command("data", str(path), "--model", str(folder), "--seq-len", "64")
    assert seen.code == 0
    assert "4 rows: 3 examples (1 duplicate), 1 broken, 0 empty" in seen.out
    assert "row 3: not valid JSON" in seen.out
    assert "  learned │ 2 follows 1.<|im_end|>" in seen.out
    assert "     read │ <|im_start|>user" in seen.out
    assert "an epoch: tokens" in seen.out


def test_a_program_gets_the_same(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [chat(1), "{oops"])
    found = json.loads(command("data", str(path), "--json").out)
    assert found["problems"][0]["row"] == 2
    assert found["tokens"] is None


def test_text_of_a_row_is_shown_and_never_obeyed(command: Command, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "[bold]x[/bold] \x1b[2J"}])
    seen = command("data", str(path))
    assert "[bold]x[/bold] \\x1b[2J" in seen.out


def test_bad_input_is_one_line_and_exit_code_2(command: Command, tmp_path: Path) -> None:
    seen = command("data", str(tmp_path / "nothing.jsonl"))
    assert seen.code == 2
    assert seen.err.startswith("error: No file")
