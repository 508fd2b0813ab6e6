"""Every kind of file and every form of row, and that size costs no memory."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training_data.tiny import calls, chat, write_lines
from workbench.training_data import examine, form_of_source, locate, read_examples
from workbench.training_data.rows import MOST_ROW_BYTES

ALPACA = [{"instruction": f"Add {n}", "input": "1", "output": str(n + 1)} for n in range(5)]


def turns(report: Any) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in report.first[0].example.turns]


def as_jsonl(folder: Path) -> Path:
    return write_lines(folder / "a.jsonl", ALPACA)


def as_json(folder: Path) -> Path:
    (folder / "a.json").write_text(json.dumps(ALPACA, indent=1))
    return folder / "a.json"


def as_csv(folder: Path) -> Path:
    lines = ["instruction,input,output", *(f"Add {n},1,{n + 1}" for n in range(5))]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder / "a.csv"


def as_semicolons(folder: Path) -> Path:
    path = as_csv(folder)
    path.write_text(path.read_text().replace(",", ";"))
    return path


def as_parquet(folder: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ALPACA), folder / "a.parquet")
    return folder / "a.parquet"


def as_bom(folder: Path) -> Path:
    path = as_jsonl(folder)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def as_saved(folder: Path) -> Path:
    """What `datasets` writes by save_to_disk, with two splits."""
    for split, rows in (("train", ALPACA), ("test", ALPACA[:1])):
        part = folder / "saved" / split
        part.mkdir(parents=True)
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(str(part / "data-00000-of-00001.arrow"), table.schema) as out:
            out.write_table(table)
        (part / "state.json").write_text("{}")
    (folder / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder / "saved"


def as_folder(folder: Path) -> Path:
    (folder / "data").mkdir()
    write_lines(folder / "data" / "train-0.jsonl", ALPACA[:3])
    write_lines(folder / "data" / "train-1.jsonl", ALPACA[3:])
    write_lines(folder / "data" / "test-0.jsonl", ALPACA[3:])
    return folder / "data"


@pytest.mark.parametrize(
    "write",
    [as_jsonl, as_json, as_csv, as_semicolons, as_parquet, as_bom, as_saved, as_folder],
)
def test_every_kind_of_file_gives_the_same_examples(write: Any, tmp_path: Path) -> None:
    report = examine(write(tmp_path))
    assert report.form == "alpaca"
    assert report.columns == ("instruction", "input", "output")
    assert (report.rows, report.examples, report.broken, report.empty) == (5, 5, 0, 0)
    assert turns(report) == [("user", "Add 0\n\n1"), ("assistant", "1")]


def test_what_datasets_cached_beside_the_data_is_not_read(tmp_path: Path) -> None:
    saved = as_saved(tmp_path)
    data = saved / "train" / "data-00000-of-00001.arrow"
    data.with_name("cache-0123456789abcdef.arrow").write_bytes(data.read_bytes())
    report = examine(saved)
    assert (report.rows, report.duplicates) == (5, 0)


def test_what_others_keep_in_the_folder_is_not_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "chats.jsonl", [chat(1), chat(2)])
    for name in (".ipynb_checkpoints/chats-checkpoint.jsonl", ".cache/hub/a.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        write_lines(tmp_path / name, [chat(3)])
    (tmp_path / "dataset_infos.json").write_text('{"default": {"description": "chats"}}')
    report = examine(tmp_path)
    assert (report.rows, report.broken, report.notes) == (2, 0, ())
    hidden = write_lines(tmp_path / ".cache" / "hub" / "b.jsonl", [chat(4)]).parent
    (hidden / "a.json").unlink()
    assert examine(hidden).rows == 1  # where it is asked for


@pytest.mark.parametrize(
    ("names", "rows", "note"),
    [
        (("constraints", "chats"), 2, "Read together: chats, constraints."),
        (("train/0", "test/0"), 1, "Of 2 files the 1 with train in their names are read."),
        (("chatTrain", "chatTest"), 1, "Of 2 files the 1 with train in their names are read."),
        (("train_gen-0", "train_gen-1", "train_sft-0"), 3, "Read together: train_gen, train_sft."),
        (("train-00000-of-00002", "train-00001-of-00002"), 2, None),
    ],
)
def test_which_files_of_a_folder_are_read(
    names: tuple[str, ...], rows: int, note: str | None, tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / f"{name}.jsonl", [chat(number)])
    report = examine(tmp_path)
    assert report.rows == rows
    assert report.notes == ((note,) if note else ())


def test_a_suffix_in_capitals_is_the_same(tmp_path: Path) -> None:
    write_lines(tmp_path / "A.JSONL", [chat(1), chat(2)])
    assert examine(tmp_path).rows == 2


@pytest.mark.parametrize(
    ("row", "form", "said"),
    [
        (chat(1), "messages", "2 follows 1."),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            "sharegpt",
            "a",
        ),
        ({"prompt": "q", "completion": "a"}, "prompt-completion", "a"),
        ({"question": "q", "answer": "a"}, "prompt-completion", "a"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "preference", "a"),
        (
            {
                "chosen": chat(1)["messages"],
                "rejected": [chat(1)["messages"][0], {"role": "assistant", "content": "7"}],
            },
            "preference",
            "2 follows 1.",
        ),
    ],
)
def test_forms_are_recognised(row: dict[str, Any], form: str, said: str, tmp_path: Path) -> None:
    report = examine(write_lines(tmp_path / "a.jsonl", [row]))
    assert report.form == form
    assert turns(report)[-1] == ("assistant", said)


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        (  # as Dolly's
            {"instruction": "Who?", "context": "Ada wrote.", "response": "Ada", "category": ""},
            "Who?\n\nAda wrote.",
        ),
        ({"instruction": "Translate", "input": "Hallo", "response": "Hello"}, "Translate\n\nHallo"),
        ({"question": "Who?", "context": "Ada.", "answer": "Ada"}, "Who?\n\nAda."),
        ({"input": "Who?", "context": "Ada.", "output": "Ada"}, "Who?\n\nAda."),
        ({"instruction": "Add", "input": "1", "context": "", "output": "2"}, "Add\n\n1"),
        ({"prompt": "Who?", "context": "Ada.", "chosen": "Ada", "rejected": "I"}, "Who?\n\nAda."),
    ],
)
def test_a_question_has_what_it_is_about(row: dict[str, Any], asked: str, tmp_path: Path) -> None:
    report = examine(write_lines(tmp_path / "a.jsonl", [row]))
    assert turns(report)[0] == ("user", asked)
    assert report.notes == ()


@pytest.mark.parametrize("column", ["system", "system_prompt"])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "completion": "a"},
        {"prompt": [{"role": "user", "content": "q"}], "completion": [chat(1)["messages"][1]]},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": [chat(1)["messages"][1]], "rejected": [chat(2)["messages"][1]]},
        chat(1),
    ],
)
def test_what_the_system_says_is_the_first_turn(
    row: dict[str, Any], column: str, tmp_path: Path
) -> None:
    report = examine(write_lines(tmp_path / "a.jsonl", [row | {column: "Be a pirate."}]))
    assert turns(report)[0] == ("system", "Be a pirate.")
    assert report.notes == ()


def test_text_is_read_by_blocks(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("One\ntwo.\n\n\n\nThree.\n")
    report = examine(tmp_path / "book.txt")
    assert [one.example.text for one in report.first if one.example] == ["One\ntwo.", "Three."]
    assert [one.row for one in report.first] == [1, 6]


def test_what_a_table_fills_up_with_null_is_not_trained_on(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "q"}
    rows: list[dict[str, Any]] = [
        {"messages": [asked, calls("weather", city="Rome")]},
        {"messages": [asked, calls("add", x=1, y=2)]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    table, lines = examine(tmp_path / "a.parquet"), examine(write_lines(tmp_path / "a.jsonl", rows))
    assert [one.example for one in table.first] == [one.example for one in lines.first]
    assert table.notes == (
        "Not used: nulls inside of nested columns, with which tables fill what a row lacks (2 rows).",
    )
    kept = examine(write_lines(tmp_path / "b.jsonl", [{"messages": [asked, calls("a", x=None)]}]))
    example = kept.first[0].example
    assert example is not None
    assert example.turns[1].calls[0]["function"]["arguments"] == {"x": None}


def test_a_conversation_in_a_csv_column_is_json(tmp_path: Path) -> None:
    text = json.dumps(chat(1)["messages"]).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'messages\n"{text}"\n')
    assert turns(examine(tmp_path / "a.csv"))[0] == ("user", "What follows 1?")


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.mark.parametrize("tools", [[WEATHER], json.dumps([WEATHER])])
def test_tools_are_read_from_a_list_or_its_json(tools: Any, tmp_path: Path) -> None:
    called = {"messages": [chat(1)["messages"][0], calls("weather")]}
    as_text = {**called["messages"][1], "tool_calls": json.dumps(calls("weather")["tool_calls"])}
    rows = [called | {"tools": tools}, {"messages": [called["messages"][0], as_text]}]
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    one, two = (read.example for read in report.first)
    assert one is not None
    assert two is not None
    assert (one.tools, two.tools, report.notes) == ((WEATHER,), (), ())
    assert one.turns == two.turns


@pytest.mark.parametrize("weight", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
def test_weights_say_which_answers_are_learned(weight: dict[str, Any], tmp_path: Path) -> None:
    (asked, answer), (again, other) = chat(1)["messages"], chat(2)["messages"]
    messages = [asked | {"weight": 0}, answer | weight, again, other | {"weight": 1, "train": None}]
    report = examine(write_lines(tmp_path / "a.jsonl", [{"messages": messages}]))
    assert report.first[0].example is not None
    learned = [turn.learned for turn in report.first[0].example.turns if turn.role == "assistant"]
    assert learned == [False, True]
    assert report.notes == ("Not used: key 'weight' of messages (1 row).",)  # the user's


def test_pairs_have_no_weights(tmp_path: Path) -> None:
    asked, answer = chat(1)["messages"]
    row = {"chosen": [asked, answer], "rejected": [asked, answer | {"content": "7", "weight": 0}]}
    (note,) = examine(write_lines(tmp_path / "a.jsonl", [row])).notes
    assert note == "Not used: weight of messages, since pairs have none (1 row)."


def test_what_is_not_used_is_told_once_with_its_rows(tmp_path: Path) -> None:
    dated = {"messages": [*chat(2)["messages"], {"role": "user", "content": "q", "date": "today"}]}
    rows = [chat(1) | {"id": 7, "note": None}, dated | {"id": 8, "history": []}, chat(3)]
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    assert report.notes == ("Not used: column 'id' (2 rows), key 'date' of messages (1 row).",)
    many = [chat(1) | {f"c{number}": 1 for number in range(14)}]
    (note,) = examine(write_lines(tmp_path / "b.jsonl", many)).notes
    assert note.endswith("column 'c11' (1 row), and 2 more.")


@pytest.mark.parametrize(
    ("row", "unused"),
    [
        ({"prompt": "q", "completion": "a", "system": "s"}, ""),
        ({"prompt": "q", "completion": "a", "system": {"a": 1}}, "column 'system' (1 row)"),
        ({"instruction": "i", "output": "o", "history": [["q", "a"]]}, "column 'history' (1 row)"),
        ({"text": "t", "tools": "hammer"}, "column 'tools' (1 row)"),
        (
            {"messages": [{"role": "system", "content": "t"}, *chat(1)["messages"]], "system": "s"},
            "column 'system' (1 row)",
        ),
    ],
)
def test_each_form_knows_its_columns(row: dict[str, Any], unused: str, tmp_path: Path) -> None:
    notes = examine(write_lines(tmp_path / "a.jsonl", [row])).notes
    assert notes == ((f"Not used: {unused}.",) if unused else ())


def test_conversations_in_csv_columns_of_pairs_are_json(tmp_path: Path) -> None:
    answers = [json.dumps([{"role": "assistant", "content": text}]) for text in ("a", "b")]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "chosen", "rejected"], ["q", *answers]])
        csv.writer(file).writerow(["q", '[{"a": 1}]', "b"])  # an answer that is JSON
    report = examine(tmp_path / "a.csv")
    assert turns(report) == [("user", "q"), ("assistant", "a")]
    second = report.first[1].example
    assert second is not None
    assert second.turns[-1].content == '[{"a": 1}]'


def test_duplicates_are_equal_in_all_that_is_trained_on(tmp_path: Path) -> None:
    asked, answer = chat(1)["messages"]
    rows: list[Any] = [
        *({"messages": [asked, calls("weather", city=city)]} for city in ("Rome", "Oslo", "Rome")),
        *({"messages": [asked, answer], "tools": tools} for tools in ([], [WEATHER])),
        {"messages": [asked, {**answer, "reasoning_content": "1 + 1"}]},
        {"messages": [asked, answer, asked, {**answer, "weight": 0}]},
        {"messages": [asked, answer, asked, answer]},
    ]
    assert examine(write_lines(tmp_path / "a.jsonl", rows)).duplicates == 1


def test_duplicates_empty_and_broken_rows_are_counted_with_their_numbers(tmp_path: Path) -> None:
    rows = [chat(1), chat(2), "{broken", chat(1), "", {"messages": []}, chat(3)]
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    assert (report.rows, report.examples, report.duplicates) == (7, 4, 1)
    assert (report.broken, report.empty) == (1, 2)
    assert [one.row for one in report.problems] == [3, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_a_line_larger_than_memory_should_hold_is_never_held(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"long.{suffix}"
    with path.open("wb") as file:  # a sparse file: blocks of zero bytes take no disk
        file.write(
            b"[" * (suffix == "json") + json.dumps(chat(1) | {"note": "x" * 100_000}).encode()
        )
        file.write(b"," * (suffix == "json") + b'\n{"messages": "')
        file.seek(40 * MOST_ROW_BYTES if suffix == "jsonl" else 3 * MOST_ROW_BYTES, 1)
        file.write(b'"}\n' + b"]" * (suffix == "json"))
        file.write(json.dumps(chat(2)).encode() + b"\n" if suffix == "jsonl" else b"")
    tracemalloc.start()
    report = examine(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (report.broken, report.problems[0].row) == (1, 2)
    assert report.examples == (2 if suffix == "jsonl" else 1)
    assert peak < 12 * MOST_ROW_BYTES


def test_rows_are_read_as_they_are_needed(tmp_path: Path) -> None:
    source = locate(write_lines(tmp_path / "a.jsonl", [chat(n) for n in range(10_000)]))
    form, _ = form_of_source(source)
    tracemalloc.start()
    assert sum(one.example is not None for one in read_examples(source, form)) == 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20
