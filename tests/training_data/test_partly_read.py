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
