"""What scripts log by name: bounded however much it is, exact where people look first."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

import workbench as wb
from tests.observe.test_view import now, run_document
from workbench.cli.run_commands import _keys_table
from workbench.cli.tables import series_table
from workbench.compare import export
from workbench.errors import UnknownNameError
from workbench.observe.events import iterate_metrics
from workbench.observe.logged import LoggedRow, LoggedStream
from workbench.observe.logged_rows import LoggedRows, iterate_keys
from workbench.observe.series import figures, leading_series, read_series, shown_series
from workbench.observe.series_names import better, group_of
from workbench.observe.series_tables import SERIES_SHOWN, SeriesTables
from workbench.observe.view import ViewBuilder
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import VIEW_MAX_BYTES

VALUES = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "r-1")
    made.directory.mkdir()
    made.make_folders()
    made.run.write_text(json.dumps(run_document(2)))
    return made


def say(paths: RunPaths, rank: int, *lines: tuple[int | None, dict[str, object]]) -> None:
    with paths.rank_said(rank).open("a") as file:
        for number, (step, values) in enumerate(lines):
            file.write(json.dumps({"time": 1000.0 + number, "step": step, **values}) + "\n")


def one_series(values: list[float]) -> tuple[SeriesTables, dict]:
    tables = SeriesTables()
    for step, value in enumerate(values, 1):
        tables.add(LoggedRow(step=step, time=float(step), values={"x": value}))
    return tables, tables.document()


@given(st.lists(VALUES, min_size=1, max_size=3000))
@example([1.0] * 2999 + [-5.0])
@example([math.nan] * 700 + [2.0])
def test_extremes_and_the_last_value_survive_and_points_are_bounded(values: list[float]) -> None:
    _, document = one_series(values)
    (series,) = shown_series(document)
    finite = [one for one in values if math.isfinite(one)]
    assert series.count == len(values)
    assert series.nonfinite == len(values) - len(finite)
    assert len(series.step) <= 240
    if finite:
        assert (series.min, series.max, series.last) == (min(finite), max(finite), finite[-1])
        assert values[series.min_step - 1] == series.min
        shown = [one for one in series.high or series.mean if one is not None]
        assert max(shown) == pytest.approx(max(finite), rel=1e-5)
        shown = [one for one in series.low or series.mean if one is not None]
        assert min(shown) == pytest.approx(min(finite), rel=1e-5)
    else:
        assert series.last is None
        assert series.nonfinite_step == 1
    assert list(series.step) == sorted(series.step)
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("keys", [1, 13, 100, 500])
def test_any_number_of_names_fits_and_the_rest_are_named(keys: int) -> None:
    tables = SeriesTables()
    names = [f"train/some/long/name/of/a/metric_{key}" for key in range(keys)]
    for step in range(1, 400):
        tables.add(LoggedRow(step=step, time=1.7e9 + step, values=dict.fromkeys(names, step / 7)))
    tables.add(LoggedRow(step=400, time=1.7e9, values={"eval_loss": 1.0}))
    text = tables.text(left_out=3)
    document = json.loads(text)
    assert len(text) <= 20_000
    shown = [one["name"] for one in document["series"]]
    assert "eval_loss" in shown  # what is measured now and then comes before what each step logs
    assert len(shown) <= SERIES_SHOWN
    assert document["more_count"] == keys + 1 - len(shown) + 3


def test_a_run_that_goes_back_replaces_what_it_logs_again() -> None:
    tables = SeriesTables()
    for step, value in [(10, 1.0), (20, 9.0), (30, 8.0), (20, 2.0), (30, 1.5)]:
        tables.add(LoggedRow(step=step, time=0.0, values={"eval_loss": value}))
    (series,) = shown_series(tables.document())
    assert series.step == (10, 20, 30)
    assert series.mean == (1.0, 2.0, 1.5)
    assert (series.max, series.last) == (2.0, 1.5)


def test_what_was_not_finite_before_a_rewind_stays_told() -> None:
    tables = SeriesTables()
    for step, value in [(1, math.nan), (2, 1.0), (3, 1.0), (2, 1.0)]:
        tables.add(LoggedRow(step=step, time=0.0, values={"eval_loss": value}))
    (series,) = shown_series(tables.document())
    assert (series.nonfinite, series.nonfinite_step) == (1, 1)


def test_names_of_several_ranks_stand_beside_each_other(paths: RunPaths) -> None:
    say(paths, 0, (1, {"a": 1}), (2, {"a": 2}))
    say(paths, 1, (1, {"b": 3}), (2, {"b": 4}))
    assert [(row.step, row.values) for row in LoggedRows(paths, 2)] == [
        (1, {"a": 1.0, "b": 3.0}),
        (2, {"a": 2.0, "b": 4.0}),
    ]


def test_files_give_the_same_in_full(paths: RunPaths) -> None:
    say(paths, 0, (1, {"a": 1, "b": "text"}), (2, {"a": 2, "values": 3}), (None, {"a": True}))
    say(paths, 0, (2, {"a": 2.5}), (3, {"a": math.nan}), (1, {"a": 7}), (2, {"a": 8}))
    say(paths, 1, (1, {"a": 100, "only": 4}))
    rows = LoggedRows(paths, 2)
    assert rows.names == ("a", "values", "only")
    assert [(row.step, row.values) for row in rows] == [
        (1, {"only": 4.0, "a": 7.0}),
        (2, {"values": 3.0, "a": 8.0}),
    ]
    of_one = list(iterate_keys(paths, 2, ["only", "a"], rank=1))
    assert [(row["step"], row["a"], row["only"]) for row in of_one] == [(1, 100.0, 4.0)]
    with pytest.raises(UnknownNameError, match="Did you mean only"):
        iterate_keys(paths, 2, ["onyl"])


def test_names_logged_at_unlike_steps_stand_in_the_rows_of_their_own(paths: RunPaths) -> None:
    with paths.rank_metrics(0).open("w") as file:
        for step in range(1, 31):
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "loss": step}) + "\n")
    for step in range(1, 31):
        say(paths, 0, (step, {"here": step}))
        if step % 10 == 0:  # samples run ahead of the steps, epochs behind
            say(paths, 0, (8 * step, {"samples": math.inf}), (step // 10, {"epoch": step}))
    say(paths, 0, (10**30, {"far": 1.0}))
    rows = list(iterate_keys(paths, 1, ["loss", "here", "samples", "epoch", "far"]))
    assert [row["step"] for row in rows] == [*range(1, 31), 80, 160, 240, 10**30]
    assert [row["here"] for row in rows[:30]] == [row["loss"] for row in rows[:30]]
    assert [row["epoch"] for row in rows[:4]] == [10.0, 20.0, 30.0, None]
    assert [row["samples"] for row in rows[30:33]] == [math.inf] * 3
    assert rows[-1]["far"] == 1.0


def test_one_line_may_hold_its_values_apart(paths: RunPaths) -> None:
    say(paths, 0, (5, {"values": {"time": 2.0, "step": 3.0}}))
    (row,) = LoggedStream(paths, [0]).read()
    assert row == LoggedRow(step=5, time=1000.0, values={"time": 2.0, "step": 3.0})


def test_columns_of_export_and_command(paths: RunPaths, tmp_path: Path) -> None:
    for rank in range(2):
        with paths.rank_metrics(rank).open("w") as file:
            for step in range(1, 5):
                file.write(json.dumps({"step": step, "time": 1000.0 + step, "loss": step}) + "\n")
    say(paths, 0, (0, {"eval/loss": 9}), (2, {"eval/loss": 5, "loss": 1}), (4, {"eval/loss": 3}))
    run = wb.attach(paths.directory.name, tmp_path)
    rows = run.metrics(keys=["loss", "eval/*"])
    assert [(row["step"], row["loss"], row["eval/loss"]) for row in rows] == [
        (0, None, 9.0),
        (1, 1.0, None),
        (2, 2.0, 5.0),
        (3, 3.0, None),
        (4, 4.0, 3.0),
    ]
    file = tmp_path / "steps.csv"
    assert export.write(file, export.steps(paths), export.step_columns([paths])) == 5
    written = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["eval/loss"] for row in written] == ["9.0", "", "5.0", "", "3.0"]
    assert [row["logged/loss"] for row in written] == ["", "", "1.0", "", ""]
    assert [row["loss"] for row in written] == ["", "1.0", "2.0", "3.0", "4.0"]


def test_the_view_has_them_and_says_what_it_leaves_out(paths: RunPaths) -> None:
    names = {f"m{number}": 1.0 for number in range(250)}
    say(paths, 0, *((step, {**names, "eval_loss": 1 / step}) for step in range(1, 60)))
    builder = ViewBuilder(paths, RunRecord.of(run_document(2)))
    builder.read(final=True)
    data = builder.encoded(now())
    assert len(data) <= VIEW_MAX_BYTES
    logged = json.loads(data)["logged"]
    assert len(logged["series"]) == SERIES_SHOWN
    assert logged["more_count"] == 251 - SERIES_SHOWN
    paths.view.write_bytes(data)
    assert len(read_series(paths)) == 251  # the rest from the files
    assert read_series(paths, ["m1*"])[0].last == 1.0


def test_every_name_is_read_from_the_files_however_many_the_view_follows(
    paths: RunPaths, tmp_path: Path
) -> None:
    """The 201st name and all after it were in no list, no CSV file, and "unknown"."""
    names = [f"layer{number}/norm" for number in range(300)]
    say(paths, 0, *((step, dict.fromkeys(names, step / 2)) for step in range(1, 4)))
    paths.rank_metrics(0).write_text('{"step": 1, "time": 1000.0, "loss": 1.0}\n')
    builder = ViewBuilder(paths, RunRecord.of(run_document(2)))
    builder.read(final=True)
    paths.view.write_bytes(builder.encoded(now()))
    assert [series.name for series in read_series(paths)] == names
    assert list(iterate_keys(paths, 2, ["layer299/norm"]))[-1]["layer299/norm"] == 1.5
    assert set(names) <= export.step_columns([paths]).keys()
    shown, left_out = leading_series(paths)
    assert len(shown) + left_out == 300


def test_what_is_shown_first_is_read_from_the_view_alone(paths: RunPaths) -> None:
    """With more names than the view has, ``show`` read all that was ever logged."""
    say(paths, 0, (1, dict.fromkeys((f"name{number}" for number in range(60)), 1)))
    builder = ViewBuilder(paths, RunRecord.of(run_document(2)))
    builder.read(final=True)
    paths.view.write_bytes(builder.encoded(now()))
    paths.rank_said(0).unlink()
    shown, left_out = leading_series(paths)
    assert (len(shown), left_out) == (40, 20)


def test_names_and_numbers_of_any_size_fit_into_the_view(paths: RunPaths) -> None:
    names = [f"{number}{chr(0x1F600) * 500}" for number in range(150)]
    values = {**dict.fromkeys(names, 1.0), "huge": 10**400, "x": 2**62}
    say(paths, 0, *((step, {"values": values}) for step in range(1, 20)))
    builder = ViewBuilder(paths, RunRecord.of(run_document(2)))
    builder.read(final=True)
    data = builder.encoded(now())
    assert len(data) <= VIEW_MAX_BYTES
    logged = json.loads(data)["logged"]
    assert logged["series"]
    assert logged["more"]
    assert len(logged["series"]) + logged["more_count"] == 151  # not what no float can hold
    assert "huge" not in {one.name for one in read_series(paths)}


def test_names_do_nothing_to_a_terminal(paths: RunPaths) -> None:
    say(paths, 0, (1, {"\x1b[31mred\x1b]0;title\x07": 1.0}))
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    rows = list(iterate_keys(paths, 2, ["*red*"]))
    console.print(series_table(read_series(paths)), _keys_table(rows, header=True))
    text = console.file.getvalue()
    assert "red" in text
    assert "\x1b" not in text
    assert "title" not in text


def test_a_ranks_rows_are_numbers_and_go_on_after_what_cannot_be_read(paths: RunPaths) -> None:
    bad = {"step": 1, "time": 1.0, "loss": "low", "lr": [], "grad_norm": {}, "step_seconds": None}
    good = {"step": 2, "time": 2.0, "loss": 2.5, "lr": 0.1, "grad_norm": 1, "step_seconds": 1.0}
    zeros = "\0" * (3 << 20)  # of a file system that lost its power
    lines = [json.dumps(bad), zeros, json.dumps(good), ""]
    paths.rank_metrics(0).write_text("\n".join(lines))
    rows = list(iterate_metrics(paths, 1, rank=0))
    assert [row["loss"] for row in rows] == [None, 2.5]
    assert rows[0] == {**dict.fromkeys(good), "step": 1, "rank": 0, "time": 1.0}


def test_names_tell_group_direction_and_figure() -> None:
    assert [group_of(one) for one in ("eval/x", "val_acc", "epoch", "a/b/c")] == [
        "eval",
        "val",
        "",
        "a",
    ]
    assert [better(one) for one in ("acc/lr", "eval_wer", "eval/f1", "rank")] == [
        None,
        "lower",
        "higher",
        None,
    ]
    tables = SeriesTables()
    values = {"eval_loss": 1.0, "eval/acc": 0.5, "eval/f1": 0.4, "eval/tokens": 1e6, "x": 1.0}
    tables.add(LoggedRow(step=1, time=0.0, values=values))
    drawn = figures(shown_series(tables.document()))
    assert {title: [one.name for one in members] for title, members in drawn.items()} == {
        "eval": ["eval/acc", "eval/f1"],
        "eval/tokens": ["eval/tokens"],
        "x": ["x"],
    }
