"""Curves and tables as CSV and Parquet, read back by the standard library and by pyarrow."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import BEGAN, make_run
from workbench.compare import export, index


@pytest.fixture
def store(tmp_path: Path) -> wb.Store:
    root = tmp_path / "runs"
    make_run(root, "one", steps=30)
    make_run(root, "two", steps=20, usd_per_hour=None, name="=cmd()")
    return wb.Store(root)


def rows(store: wb.Store):
    return (row for run in ("one", "two") for row in export.steps(store.find(run)))


def test_csv_has_every_step(store: wb.Store, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    assert export.write(path, rows(store), export.STEP_COLUMNS) == 50
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 50
    last = found[29]
    assert (last["run"], last["step"], last["tokens"]) == ("one", "30", str(30 * 1024))
    assert float(last["seconds"]) == pytest.approx(15)
    assert float(last["time"]) == pytest.approx(BEGAN + 15)
    assert float(last["usd"]) == pytest.approx(7.2 * 15 / 3600)
    assert {one["usd"] for one in found[30:]} == {""}


def test_parquet_has_the_same_with_its_types(store: wb.Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the export extra is not installed")
    path = tmp_path / "steps.parquet"
    assert export.write(path, rows(store), export.STEP_COLUMNS) == 50
    table = parquet.read_table(path)
    assert table.column_names == list(export.STEP_COLUMNS)
    assert str(table.schema.field("step").type) == "int64"
    assert table.to_pylist()[:50] == list(rows(store))
    listed = tmp_path / "runs.parquet"
    export.write(listed, export.table_rows(index.table(store)), export.TABLE_COLUMNS)
    names = {one["run"]: one["name"] for one in parquet.read_table(listed).to_pylist()}
    assert names["two"] == "=cmd()"


def test_no_text_of_a_run_becomes_a_formula(store: wb.Store, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    export.write(path, export.table_rows(index.table(store)), export.TABLE_COLUMNS)
    with path.open(newline="") as file:
        names = {one["run"]: one["name"] for one in csv.DictReader(file)}
    assert names == {"one": "the one", "two": "'=cmd()"}


def test_a_failed_export_leaves_what_was_there(store: wb.Store, tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_text("before")

    def broken():
        yield from export.steps(store.find("one"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export.write(path, broken(), export.STEP_COLUMNS)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []
    with pytest.raises(wb.StoreError, match="does not exist"):
        export.check(tmp_path / "missing" / "steps.csv")


def test_parquet_without_pyarrow_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(wb.HostError, match="pip install pyarrow"):
        export.check(tmp_path / "steps.parquet")
