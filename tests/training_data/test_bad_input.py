"""What people really give: one sentence each, with the row's number where it is a row's fault."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training_data.tiny import STRICT, calls, chat, tokenizer_folder, write_lines
from workbench.errors import UsageError
from workbench.training_data import TokenOptions, examine, load_tokenizer, token_report
from workbench.training_data.rows import MOST_ROW_BYTES


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No folder"):
        load_tokenizer(tmp_path / "none")


GOOD = [chat(1), chat(2)]


def said(*roles_and_texts: str) -> dict[str, Any]:
    pairs = zip(roles_and_texts[::2], roles_and_texts[1::2], strict=True)
    return {"messages": [{"role": role, "content": text} for role, text in pairs]}


ROWS: dict[str, tuple[Any, str]] = {
    "broken JSON": ('{"messages": [', "not valid JSON: expecting value at character 16"),
    "not an object": ("[1, 2]", "a list, not an object with named columns"),
    "a number": ("7", "a number, not an object"),
    "no assistant": (said("user", "q"), "no turn of the assistant"),
    "two users": (
        said("user", "q", "user", "q", "assistant", "a"),
        "message 2 is a second turn of the user in a row",
    ),
    "two answers": (
        said("user", "q", "assistant", "a", "assistant", "b"),
        "message 3 is a second turn of the assistant in a row",
    ),
    "assistant first": (
        said("assistant", "a", "user", "q"),
        "the first turn is the assistant's; it has to be the user's",
    ),
    "late system": (
        said("user", "q", "system", "s", "assistant", "a"),
        "message 2 is of the system, which may only come first",
    ),
    "unknown role": (
        said("user", "q", "wizard", "a"),
        "message 2 has the role 'wizard'; allowed are system, user, assistant, tool",
    ),
    "without role": ({"messages": [{"content": "q"}]}, "message 1 has no role, only content"),
    "empty message": (said("user", " ", "assistant", "a"), "message 1 (user) is empty"),
    "empty answer": (said("user", "q", "assistant", ""), "the assistant's turns are empty"),
    "no turns": ({"messages": []}, "empty"),
    "empty object": ({}, "empty"),
    "text for a list": ({"messages": "hello"}, "messages is a text, not a list of messages"),
    "number for a list": ({"messages": 3}, "messages is a number, not a list of messages"),
    "number for a message": ({"messages": [3]}, "message 1 is a number, not an object"),
    "number for a text": (
        {"messages": [{"role": "user", "content": 3}]},
        "message 1 has a number as content, not a text",
    ),
    "null for a text": (
        {"messages": [{"role": "user", "content": None}]},
        "message 1 has no content",
    ),
    "a list for a role": (
        {"messages": [{"role": ["user"], "content": "q"}]},
        "message 1 has the role ['user']",
    ),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "message 1 has a part that is not text",
    ),
    "another form": (
        {"instruction": "a", "output": "b"},
        "which is the form alpaca; the file's form is messages",
    ),
    "other columns": ({"foo": 1}, "its columns are 'foo'; the file's form is messages"),
    "tools by name": (chat(1) | {"tools": ["hammer"]}, "tools is a list, not a list of objects"),
    "calls by name": (
        {"messages": [chat(1)["messages"][0], {**calls("a"), "tool_calls": "hammer"}]},
        "tool_calls of message 2 is a text, not a list of objects",
    ),
    "part of a weight": (
        {"messages": [chat(1)["messages"][0], chat(1)["messages"][1] | {"weight": 0.5}]},
        "message 2 has the weight 0.5; allowed are 0 and 1",
    ),
    "no weight": (
        {"messages": [chat(1)["messages"][0], chat(1)["messages"][1] | {"train": False}]},
        "each answer has the weight 0: nothing to learn from",
    ),
    "old tools": (chat(1) | {"functions": [{"name": "a"}]}, "functions is the old form of tools"),
    "old call": (
        {"messages": [chat(1)["messages"][0], {**calls("a"), "function_call": {"name": "a"}}]},
        "message 2 has a function_call, the old form of tool_calls",
    ),
    "half a letter of a call": (
        {"messages": [chat(1)["messages"][0], calls("a", city="\ud800")]},
        "not UTF-8",
    ),
    "half a letter": (
        '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}]}',
        "not UTF-8",
    ),
    "deep JSON": ("[" * 100_000, "nested too deeply"),
    "huge number": ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_row_is_skipped_with_a_sentence(name: str, tmp_path: Path) -> None:
    row, sentence = ROWS[name]
    report = examine(write_lines(tmp_path / "a.jsonl", [*GOOD, row, chat(3)]))
    (problem,) = report.problems
    assert problem.row == 3
    assert sentence in problem.problem
    assert "\n" not in problem.problem
    assert report.examples == 3  # nothing good is lost


def text(content: str | bytes, name: str = "a.jsonl") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return folder / name

    return write


def long_header(folder: Path) -> Path:
    return text("x" * (MOST_ROW_BYTES + 1), "a.csv")(folder)


def mixed_folder(folder: Path) -> Path:
    write_lines(folder / "a.jsonl", GOOD)
    (folder / "b.csv").write_text("text\nx\n")
    return folder


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "nothing.jsonl", "No file"),
    "near miss": (
        lambda folder: write_lines(folder / "chats.jsonl", GOOD).with_name("chat.jsonl"),
        "Did you mean chats.jsonl?",
    ),
    "hub name": (lambda _: Path("owner/dataset"), "hf download --repo-type dataset owner/dataset"),
    "empty file": (text(""), "is empty"),
    "only blanks": (text(" \n\n"), "is empty"),
    "binary": (text(b"\x7fELF\0\0\1\2"), "is a binary file"),
    "UTF-16": (text("text\nx".encode("utf-16"), "a.csv"), "is UTF-16, not UTF-8"),
    "gzip": (text(gzip.compress(b"{}")), "is compressed (gzip)"),
    "zip": (text(b"PK\x03\x04xxxx"), "is compressed (zip)"),
    "one object": (text('{\n "train": [1]\n}', "a.json"), "is one JSON object, not rows"),
    "columns of lists": (
        text('{"prompt": ["a"], "completion": ["b"]}', "a.json"),
        "is one JSON object, not rows",
    ),
    "unknown columns": (text('{"foo": "x", "bar": "y"}\n'), "the columns 'foo', 'bar' make no"),
    "nothing good": (text('{"messages": []}\n'), "no row can be trained on (row 1: "),
    "all broken": (text("{oops\n{oops\n"), "no row can be read (row 1: not valid JSON"),
    "unknown kind": (text("hello", "a.xyz"), "the kind of file is not known"),
    "false Parquet": (text("hello", "a.parquet"), "its content is not"),
    "cut Parquet": (text(b"PAR1" + b"x" * 50, "a.parquet"), "cannot be read"),
    "long header": (long_header, "is longer than 16 MiB"),
    "equal columns": (
        text("text,text\na,b\n", "a.csv"),
        "Two columns of the CSV are called 'text'",
    ),
    "carriage returns": (
        text("prompt,answer\rone,two\r", "a.csv"),
        "end in a carriage return alone",
    ),
    "mixed folder": (mixed_folder, "has files of several kinds (csv, jsonl)"),
    "empty folder": (lambda folder: folder, "has no data files"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    write, sentence = FILES[name]
    with pytest.raises(UsageError) as error:
        examine(write(tmp_path))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "name", "row", "sentence"),
    [
        (b'{"text": "a"}\n{"text": "caf\xe9"}\n', "a.jsonl", 2, "not UTF-8 (byte 0xe9"),
        (b"text\na\ncaf\xe9\n", "a.csv", 3, "not UTF-8 (byte 0xe9"),
        (b"a\n\ncaf\xe9\n", "a.txt", 3, "not UTF-8 (byte 0xe9"),
        (b"text,more\na,b\nc\n", "a.csv", 3, "1 values, but the header has 2 columns"),
        (b'[{"text": "a"}, {"text": }, {"text": "b"}]', "a.json", 2, "not valid JSON"),
        (b'[{"text": "a"}, {"text": "b"}', "a.json", 3, "cut off"),
        (b'{"prompt": "a", "chosen": "x", "rejected": "x"}', "a.jsonl", 1, "are the same"),
        (b'{"chosen": "x", "rejected": "y"}', "a.jsonl", 1, "the prompt is missing"),
        (b'{"prompt": "a", "chosen": [], "rejected": []}', "a.jsonl", 1, "no turn of the assist"),
        (b"messages,system\n[],Be kind\n", "a.csv", 2, "no turn of the assistant"),
    ],
)
def test_a_bad_row_of_another_kind(
    content: bytes, name: str, row: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        report = examine(tmp_path / name)
        told = [f"row {one.row}: {one.problem}" for one in report.problems]
    except UsageError as error:  # the only row
        told = [str(error)]
    assert any(f"row {row}: " in one and sentence in one for one in told), told


def without(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / key).unlink()

    return change


def small_embedding(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 200}))


MODELS: dict[str, tuple[dict[str, Any], Callable[[Path], None] | None, str]] = {
    "no template": ({"template": None}, None, "has no chat template"),
    "no config": ({}, without("config.json"), "has no config.json"),
    "no tokenizer": ({}, without("tokenizer.json"), "cannot be loaded"),
    "larger vocabulary": ({}, small_embedding, "The tokenizer has 260 tokens"),
    "refusing template": ({"template": "{{ raise_exception('never') }}"}, None, "never"),
    "broken template": ({"template": "{% for %}"}, None, "the template refuses it"),
    "losing template": ({"template": "{{ messages[0]['content'] }}"}, None, "drops or changes"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model_folder_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    how, change, sentence = MODELS[name]
    folder = tokenizer_folder(tmp_path / "model", **how)
    if change:
        change(folder)
    report = examine(write_lines(tmp_path / "a.jsonl", GOOD))
    with pytest.raises(UsageError) as error:
        token_report(report, TokenOptions(model=str(folder)))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("./nothing", "No folder ./nothing"),
        ("meta-llama/Llama-gated", "neither a folder here nor reachable on the hub"),
    ],
)
def test_a_model_that_is_not_here(
    model: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nothing answers
    report = examine(write_lines(tmp_path / "a.jsonl", GOOD))
    with pytest.raises(UsageError, match=sentence):
        token_report(report, TokenOptions(model=model))


@pytest.mark.parametrize(
    ("how", "options", "note"),
    [
        ({"pad": None}, {}, "no padding token: the end-of-sequence token pads"),
        ({"pad": None, "eos": None}, {}, "no padding token: token 0 pads"),
        ({"eos": None}, {}, "cannot learn to stop"),
        ({}, {"template": "llama-3"}, "does not know <|end_header_id|>, <|eot_id|>"),
    ],
)
def test_what_a_tokenizer_lacks_is_told(
    how: dict[str, Any], options: dict[str, Any], note: str, tmp_path: Path
) -> None:
    folder = tokenizer_folder(tmp_path / "model", **how)
    report = examine(write_lines(tmp_path / "a.jsonl", GOOD))
    counted = token_report(report, TokenOptions(model=str(folder), **options))
    assert any(note in one for one in counted.notes), counted.notes


def test_a_template_that_refuses_some_rows_names_them(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model", template=STRICT)
    rows = [*GOOD, said("system", "s", "user", "q", "assistant", "a")]
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    counted = token_report(report, TokenOptions(model=str(folder)))
    assert [(one.row, one.problem) for one in counted.refused] == [
        (3, "the template refuses it: no system turn here")
    ]


def test_an_unknown_template_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chatml"):
        TokenOptions(model=str(tmp_path), template="chatm")


def endless_line(folder: Path, size: int) -> Path:
    """A first row that is well, then one line of `size` bytes, most of them holes of the disk."""
    path = folder / "a.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(GOOD[0]).encode() + b"\n" + json.dumps(GOOD[1]).encode() + b"\n")
        file.write(b'{"messages": [{"role": "user", "content": "' + b"x" * 200_000)
        file.truncate(size)
        file.seek(0, 2)
        file.write(b'"}]}\n' + json.dumps(chat(3)).encode() + b"\n")
    return path


@pytest.mark.parametrize(
    "size", [40 << 20, pytest.param(10 << 30, marks=[pytest.mark.full, pytest.mark.slow])]
)
def test_a_line_of_gigabytes_is_one_skipped_row_in_little_memory(size: int, tmp_path: Path) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = examine(endless_line(tmp_path, size))
    (problem,) = report.problems
    assert (problem.row, report.examples) == (3, 3)
    assert "longer than 16 MiB" in problem.problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [
        ("a.csv", "text,more\none,1\ntwo,LONG\nthree,3\n", 3),
        ("a.csv", 'text,more\none,1\n"two\nLONG""\n",2\nthree,3\n', 3),  # inside of quotes
        ("a.csv", 'text,more\none,1\nLONG,"2\n2"\nthree,3\n', 3),  # it begins them
        ("a.csv", 'text,more\none,1\n"two\nLONG",2\nthree,3\n', 3),  # it ends them
        ("a.json", '[{"text": "one"}, {"text": "LONG"}, {"text": "three"}]', 2),
    ],
)
def test_a_row_that_is_too_long_is_told_and_takes_no_other(
    name: str, content: str, row: int, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content.replace("LONG", "x" * (MOST_ROW_BYTES + 10)))
    report = examine(tmp_path / name)
    assert [one.example.text for one in report.first if one.example] == ["one", "three"]
    assert [(one.row, one.problem) for one in report.problems] == [(row, "longer than 16 MiB")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
def test_a_byte_order_mark_is_no_part_of_the_first_row(name: str, tmp_path: Path) -> None:
    content = {"a.jsonl": '{"text": "é1"}\n', "a.json": '[{"text": "é1"}]', "a.csv": "text\né1\n"}
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.get(name, "é1\n").encode())
    report = examine(tmp_path / name)
    assert not report.problems
    assert report.examples == 1
    assert "\ufeff" not in str(report)
