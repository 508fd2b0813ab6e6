"""Curves, alignment, the cost of a loss, and what differs: of runs whose numbers are known."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

import workbench as wb
from tests.compare.made_runs import BEGAN, make_run
from workbench.cli.tables import runs_table, summary_table
from workbench.compare.alignment import aligned, common_loss, cost_to_reach
from workbench.compare.differences import configuration, differing
from workbench.compare.runs import compare
from workbench.observe.current_view import current_view
from workbench.observe.curves import Curve, read_curve
from workbench.observe.rows import row
from workbench.observe.summary import summarise
from workbench.store.schema import BY_HAND


@pytest.fixture
def store(tmp_path: Path) -> wb.Store:
    root = tmp_path / "runs"
    make_run(root, "quick", steps=200, step_seconds=0.25, slow=40)
    make_run(root, "slow", steps=200, step_seconds=1.0, slow=40, arguments=["--lr", "1e-4"])
    make_run(root, "poor", steps=80, floor=4.0, usd_per_hour=None, tokens_per_step=None)
    return wb.Store(root)


def line(values: list[float | None], **more: object) -> Curve:
    steps = tuple(range(1, len(values) + 1))
    unknown = (None,) * len(values)
    columns = {"seconds": steps, "tokens": unknown, "usd": unknown} | more
    return Curve(step=steps, loss=tuple(values), loss_min=unknown, loss_max=unknown, **columns)


def test_the_curve_has_every_scale(store: wb.Store) -> None:
    curve = read_curve(store.find("quick"))
    assert (len(curve.step), curve.stride) == (200, 1)
    assert curve.seconds[-1] == pytest.approx(50)
    assert curve.tokens[-1] == 200 * 1024
    assert curve.usd[-1] == pytest.approx(7.2 * 50 / 3600)
    poor = read_curve(store.find("poor"))
    assert set(poor.tokens) == set(poor.usd) == {None}


def test_without_a_view_the_metrics_tell_the_same(tmp_path: Path) -> None:
    seen = read_curve(make_run(tmp_path, "seen", steps=300))
    raw = read_curve(make_run(tmp_path, "raw", steps=300, view=False))
    assert raw.step == seen.step
    assert raw.tokens == seen.tokens
    assert raw.loss == pytest.approx(seen.loss, rel=1e-4)


@pytest.mark.parametrize("left", [None, 300])
def test_a_run_whose_view_is_lost_has_made_its_steps(tmp_path: Path, left: int | None) -> None:
    """Beside a curve of 300 steps stood "steps 0" and no loss."""
    paths = make_run(tmp_path, "a", steps=300)
    whole = row(paths, read_curve(paths))
    view = paths.view.read_bytes()
    paths.view.unlink() if left is None else paths.view.write_bytes(view[:left])
    found = row(paths, read_curve(paths))
    assert found["steps"] == 300
    assert found["loss_last"] == pytest.approx(whole["loss_last"], rel=1e-4)
    assert current_view(paths)["steps"] == 300
    paths.exit.write_text("{")  # nor does anything tell how it ended
    assert row(paths, Curve())["steps"] == 300


def test_what_a_damaged_record_does_not_tell_is_no_word_of_python(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "a", steps=3)
    paths.run.write_text("{")
    console = Console(file=io.StringIO(), width=200)
    about = summarise(paths)
    console.print(summary_table(about), runs_table([row(paths, Curve())]))
    assert "None" not in console.file.getvalue()
    assert "n/a, 1 processes on n/a" in console.file.getvalue()


def test_a_long_run_is_thinned_and_keeps_its_spike(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "long", steps=3000, ranks=1, view=False)
    lines = paths.rank_metrics(0).read_text().splitlines()
    spike = json.loads(lines[1500]) | {"loss": 99.0}
    lines[1500] = json.dumps(spike)
    paths.rank_metrics(0).write_text("\n".join(lines) + "\n")
    curve = read_curve(paths)
    assert len(curve.step) <= 500
    assert curve.stride == 8
    assert curve.step[-1] == 3000
    assert max(value for value in curve.loss_max if value is not None) == 99.0


def test_pauses_between_attempts_cost_nothing(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "resumed", steps=20, step_seconds=1.0)
    attempts = [
        {"attempt": 1, "event": "start", "time": BEGAN},
        {"attempt": 1, "event": "end", "time": BEGAN + 10},
        {"attempt": 2, "event": "start", "time": BEGAN + 16},
        {"attempt": 2, "event": "end", "time": BEGAN + 20},
    ]
    paths.attempts.write_text("".join(json.dumps(one) + "\n" for one in attempts))
    curve = read_curve(paths)
    assert curve.seconds[9] == pytest.approx(10)
    assert curve.seconds[12] == pytest.approx(10)  # in the pause
    assert curve.seconds[-1] == pytest.approx(14)


def test_runs_meet_at_the_same_place(store: wb.Store) -> None:
    curves = {run: read_curve(store.find(run)) for run in ("quick", "slow")}
    by_step = aligned(curves, "step", weight=0)
    assert (by_step["at"][0], by_step["at"][-1]) == (1, 200)
    assert by_step["loss"]["quick"] == pytest.approx(by_step["loss"]["slow"])
    by_time = aligned(curves, "time", weight=0)
    assert by_time["at"][-1] == pytest.approx(50)  # as far as both go
    for at, quick, slow in zip(by_time["at"], *by_time["loss"].values(), strict=True):
        assert quick == pytest.approx(2 + 3 * math.exp(-at / 0.25 / 40), abs=2e-3)
        assert slow == pytest.approx(2 + 3 * math.exp(-at / 40), abs=2e-3)
    poor = curves | {"poor": read_curve(store.find("poor"))}
    assert set(aligned(poor, "tokens")["loss"]["poor"]) == {None}
    with pytest.raises(wb.UnknownNameError, match="usd"):
        aligned(curves, "dollars")


def test_a_loss_counts_when_it_stays() -> None:
    dip = [5.0] * 5 + [1.0] + [5.0] * 30 + [1.0] * 20
    found = cost_to_reach(line(dip), 2.0, weight=0)
    assert found is not None
    assert found.step == 37
    assert cost_to_reach(line(dip), 0.5) is None
    assert cost_to_reach(line([]), 1.0) is None
    later_broken = [5.0] * 5 + [1.0] * 40 + [9.0] * 55
    assert cost_to_reach(line(later_broken), 2.0, weight=0).step == 6  # pyright: ignore[reportOptionalMemberAccess]
    gaps: list[float | None] = [5.0, None, 1.0, None, 1.0, 1.0, math.nan]
    assert cost_to_reach(line(gaps), 2.0, weight=0).step == 3  # pyright: ignore[reportOptionalMemberAccess]


def test_what_a_loss_cost(store: wb.Store) -> None:
    both = compare(store, ["quick", "slow", "poor"])
    reached = both.cost_to_reach(3.0)["runs"]
    assert reached["poor"] is None
    assert reached["quick"]["step"] == reached["slow"]["step"]
    assert reached["slow"]["seconds"] == pytest.approx(4 * reached["quick"]["seconds"])
    assert reached["slow"]["usd"] == pytest.approx(4 * reached["quick"]["usd"])
    by_itself = both.cost_to_reach()
    assert by_itself["loss"] == common_loss(both.curves)
    assert None not in by_itself["runs"].values()


def test_only_what_differs_is_said(store: wb.Store) -> None:
    found = compare(store, ["quick", "slow"])
    values = {one["what"]: one["values"] for one in found.configuration}
    assert values == {"argument --lr": {"quick": "3e-4", "slow": "1e-4"}}
    results = {one["what"]: one["values"] for one in found.results}
    assert results["hours"] == {
        "quick": pytest.approx(50 / 3600),
        "slow": pytest.approx(200 / 3600),
    }
    assert results["memory_bytes"] == {"quick": 71234567, "slow": 71234567}
    assert json.loads(json.dumps(found.document(by="usd"), allow_nan=False))["aligned"]["at"]


def test_arguments_of_the_strategy_are_not_said_twice() -> None:
    one = configuration(
        {"arguments": ["--tp", "2", "--lr", "1"], "layout_arguments": ["--tp", "2"]}
    )
    two = configuration({"arguments": ["--lr", "-1e-3", "--compile"]})
    assert {row["what"] for row in differing({"a": one, "b": two})} == {
        "argument --lr",
        "argument --compile",
    }


def test_arguments_of_the_latest_resume_count() -> None:
    run = {"arguments": ["--tp", "2", "--minutes", "3"], "layout_arguments": ["--tp", "2"]}
    resumed = {
        "event": "start",
        "checkpoint": "/runs/one/step-9",
        "arguments": ["--tp", "2", "--minutes", "0.3", "--resume", "/runs/one/step-9"],
    }
    attempts = [{"event": "start", "arguments": None}, resumed, {"event": "start"}]
    found = configuration(run, attempts)
    assert {name: value for name, value in found.items() if name.startswith("argument")} == {
        "argument --minutes": "0.3"
    }


def test_an_unknown_workload_is_one_row() -> None:
    known, other = {"workload seq_len": 16, "workload model": "m"}, {"workload seq_len": 32}
    (only,) = differing({"a": known, "b": {}})
    assert only == {"what": "workload", "values": {"a": "known", "b": "unknown"}}
    three = differing({"a": known, "b": {}, "c": known | other})
    assert [one["what"] for one in three] == ["workload", "workload seq_len"]


def test_what_was_resumed_by_hand_is_no_restart(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "runs", "again")
    starts = [(1, None), (2, "rank 1 died"), (3, BY_HAND)]
    attempts = [
        {"attempt": number, "event": "start", "time": BEGAN, "why": why} for number, why in starts
    ]
    for path, more in ((paths.view, {"attempts": attempts}), (paths.state, {"restarts": 2})):
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    paths.attempts.write_text("".join(json.dumps(start) + "\n" for start in attempts))
    assert row(paths, Curve())["restarts"] == 1


def test_two_to_ten_runs(store: wb.Store) -> None:
    with pytest.raises(wb.UsageError, match="1 run given; give 2 to 10"):
        compare(store, ["quick", "qui"])
    with pytest.raises(wb.RunNotFoundError, match="Did you mean quick"):
        compare(store, ["quick", "quikc"])
