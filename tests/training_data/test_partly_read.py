"""Files and folders of which a part cannot be read or must not be learned: that part alone is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench as wb
from workbench.training_data import examine


def test_one_text_of_parquet_that_is_not_utf8_is_one_broken_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    offsets = pyarrow.array([0, 1, 3, 4], pyarrow.int32()).buffers()[1]
    letters = pyarrow.py_buffer(b"a\xff\xfeb")
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, offsets, letters])
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "bad.parquet")
    report = examine(tmp_path / "bad.parquet")
    assert (report.examples, report.broken) == (2, 1)
    assert "column 'text' is not UTF-8 (byte 0xff at 1)" in report.problems[0].problem


def test_a_date_out_of_range_in_another_column_breaks_no_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    dates = pyarrow.array([9 * 10**15, 1], pyarrow.timestamp("ms"))
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "at": dates}), tmp_path / "d.parquet")
    report = examine(tmp_path / "d.parquet")
    assert (report.examples, report.broken) == (2, 0)
    assert report.notes == ("Not used: column 'at' (2 rows).",)


def test_compressed_files_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "train-1.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(wb.UsageError, match=r"only compressed data \(train-1.jsonl.gz\)"):
        examine(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "old.jsonl.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "train-0.jsonl").write_text('{"text": "a"}\n')
    assert examine(tmp_path).notes == (
        "Compressed, so not read: train-1.jsonl.gz. Unpack to read.",
    )


@pytest.mark.parametrize(("label", "examples"), [(False, 1), ("false", 1), (True, 2), (0, 2)])
def test_a_completion_that_is_not_wanted_is_not_learned(
    tmp_path: Path, label: object, examples: int
) -> None:
    """As KTO's unpaired preferences say it; 0 may be the number of a class."""
    rows = [
        {"prompt": "a", "completion": word} | {"label": value}
        for word, value in (("yes", True), ("no", label))
    ]
    file = tmp_path / "kto.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = examine(file)
    assert (report.examples, report.broken) == (examples, 2 - examples)
    assert all("not wanted (KTO)" in problem.problem for problem in report.problems)


def test_a_null_in_a_column_of_the_form_is_said(tmp_path: Path) -> None:
    file = tmp_path / "alpaca.jsonl"
    rows = [{"instruction": None, "output": "x"}, {"instruction": "a", "output": "b"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "'instruction' (null), 'output'" in examine(file).problems[0].problem


@pytest.mark.parametrize("place", ["tools", "calls", "arguments"])
def test_tools_too_deep_to_be_written_again_break_their_row_alone(
    tmp_path: Path, place: str
) -> None:
    deep = json.loads('{"a":' * 900 + "{}" + "}" * 900)
    text = json.dumps(deep)
    calls = {"calls": [deep], "arguments": [{"function": {"name": "f", "arguments": text}}]}
    answer = {"role": "assistant", "content": "b"}
    rows = [
        {"messages": [{"role": "user", "content": "a"}, answer | {"tool_calls": calls.get(place)}]},
        {"messages": [{"role": "user", "content": "a"}, answer]},
    ]
    rows[0]["tools"] = [deep] if place == "tools" else None
    (tmp_path / "deep.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = examine(tmp_path / "deep.jsonl")
    assert (report.examples, report.broken) == (1, 1)
    assert "nested more than 100 deep" in report.problems[0].problem


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\nprompt;completion\r\na,b;c\r\nd\r\n",
        'prompt, completion\n"a,b", c\nd\n',
        "sep=|\nprompt | completion\na,b| c\nd\n",
    ],
)
def test_a_csv_as_excel_or_a_person_writes_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    report = examine(tmp_path / "a.csv")
    assert (report.columns, report.examples) == (("prompt", "completion"), 1)
    example = report.first[0].example
    assert example is not None
    assert [turn.content for turn in example.turns] == ["a,b", "c"]
    assert report.problems[0].row == 3 + text.startswith("sep")


def test_a_csv_whose_lines_end_in_a_carriage_return_alone_is_told_how_to_convert(
    tmp_path: Path,
) -> None:
    (tmp_path / "old mac.csv").write_bytes(b"prompt,completion\ra,b\r")
    with pytest.raises(wb.UsageError, match=r"tr '\\r' '\\n' < 'old mac.csv' > new.csv"):
        examine(tmp_path / "old mac.csv")
