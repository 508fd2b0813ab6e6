"""Curves and tables as CSV and Parquet, read back by the standard library and by pyarrow."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import BEGAN, build_view, make_run
from workbench.compare import export, index
from workbench.observe.curves import read_curve
from workbench.observe.events import MetricStream
from workbench.observe.work_clock import Clock, StepClock
from workbench.store import files


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
    said = store.find("one").metrics / "rank-0.said.jsonl"
    said.write_text('{"step":1,"time":1.0,"values":{"=cmd()":2.0}}\n')
    export.write(path, rows(store), export.step_columns([store.find("one")]))
    with path.open(newline="") as file:
        assert next(csv.DictReader(file))["'=cmd()"] == "2.0"


def test_tokens_of_a_fork_count_on_from_the_step_that_it_began_at(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "runs", "fork", steps=30, tokens_per_step=None)
    for rank in range(2):
        lines = map(json.loads, paths.rank_metrics(rank).read_text().splitlines())
        kept = [json.dumps(line | {"tokens": 100}) for line in lines if line["step"] > 10]
        paths.rank_metrics(rank).write_text("\n".join(kept) + "\n")
    document = json.loads(paths.run.read_text())
    paths.view.write_bytes(build_view(paths, document, 15.0, "succeeded", BEGAN + 15.0))
    tokens = [row["tokens"] for row in export.steps(paths)]
    assert tokens == [200 * step for step in range(11, 31)]
    assert list(read_curve(paths).tokens) == tokens


@pytest.mark.parametrize("view", [True, False])
def test_tokens_from_before_a_resume_with_another_batch_stay_what_they_were(
    tmp_path: Path, *, view: bool
) -> None:
    before = [{"until": BEGAN + 10.25, "tokens_per_step": 2048}]  # half a second each: 20 steps
    about = {"tokens_before": before, "work_since": before[0]["until"], "view": view}
    paths = make_run(tmp_path / "runs", "resumed", steps=30, **about)
    tokens = [row["tokens"] for row in export.steps(paths)]
    assert tokens == [2048 * min(step, 20) + 1024 * max(0, step - 20) for step in range(1, 31)]
    assert list(read_curve(paths).tokens) == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_meanwhile_changes_neither_time_nor_bill(
    tmp_path: Path, jump: float
) -> None:
    root = tmp_path / "runs"
    right, paths = make_run(root, "right", steps=30), make_run(root, "set", steps=30)
    for rank in range(2):
        lines = map(json.loads, paths.rank_metrics(rank).read_text().splitlines())
        moved = [line | {"time": line["time"] + jump * (line["step"] > 12)} for line in lines]
        paths.rank_metrics(rank).write_text("".join(json.dumps(line) + "\n" for line in moved))
    document = json.loads(paths.run.read_text())
    paths.view.write_bytes(build_view(paths, document, 15.0, "succeeded", BEGAN + 15.0 + jump))
    wanted = [(row["seconds"], row["usd"]) for row in export.steps(right)]
    found = [(row["seconds"], row["usd"]) for row in export.steps(paths)]
    assert sum(found, ()) == pytest.approx(sum(wanted, ()), abs=0.01)
    curve, other = read_curve(paths), read_curve(right)
    assert [*curve.seconds, *curve.usd] == pytest.approx([*other.seconds, *other.usd], abs=0.01)


def test_a_pause_between_two_attempts_is_no_jump_of_the_clock() -> None:
    clock = StepClock(Clock([(0.0, 10.0), (5000.0, 5010.0)]), elapsed=20.0)
    assert [clock.at(at, 1.0) for at in (9.0, 5001.0, 5009.0)] == [9.0, 11.0, 19.0]
    assert clock.at_time(6000.0) == 20.0


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


def test_a_rank_that_ended_early_leaves_the_others_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its curve ended where that rank did, and an export held every later step in memory."""
    paths = make_run(tmp_path / "runs", "one", steps=6_000, ranks=2, view=False)
    lines = paths.rank_metrics(1).read_text().splitlines(keepends=True)
    paths.rank_metrics(1).write_text("".join(lines[:10]))
    assert read_curve(paths).step[-1] == 6_000
    taken, take = [0], MetricStream.take

    def counted(stream: MetricStream, rank: int, line: dict) -> None:
        taken[0] += 1
        take(stream, rank, line)

    monkeypatch.setattr(MetricStream, "take", counted)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 16)
    steps = export.steps(paths)
    assert [row["step"] for row in itertools.islice(steps, 20)] == list(range(1, 21))
    assert taken[0] < 3_000  # what some readings hold
    assert sum(1 for _ in steps) == 6_000 - 20
