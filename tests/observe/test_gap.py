"""Predicted beside measured: which term was off, in words that name it; and the sample of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.sample_gap import RUN, SLOW_INPUT, STEADY, TIME, VIEW, comparison
from workbench.observe.events import StepRow
from workbench.observe.prediction_error.comparison import compare, read_prediction_error
from workbench.observe.prediction_error.explanation import most_off
from workbench.observe.prediction_error.steady_steps import WARMUP, Steady, StepSample
from workbench.observe.prediction_error.terms import PredictionError
from workbench.observe.report import write_report
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def gap(steady: Steady = STEADY, run: dict[str, Any] = RUN, **view: Any) -> PredictionError:
    return compare(RunRecord.of(run), {**VIEW, **view}, steady)


def predicting(**time_: Any) -> dict[str, Any]:
    return {**RUN, "predicted": {**RUN["predicted"], "time": {**TIME, **time_}}}


def test_within_its_range_is_as_predicted() -> None:
    found = gap(elapsed_seconds=215.0)
    assert found.explanation == "Step 1.01 s, as predicted (0.92 s to 1.1 s). Memory as predicted."
    assert found.row("step").within
    assert found.row("step").ratio == pytest.approx(1.01)
    assert found.row("MFU").measured == pytest.approx(0.4 / 1.01)
    assert found.row("tokens/s").measured == pytest.approx(8192 / 1.01)
    assert found.row("run time").predicted == 210
    assert found.row("cost").predicted == pytest.approx(2.1)


def test_steps_of_other_tokens_than_predicted_have_no_mfu() -> None:
    """Their FLOPs are not those of the prediction; the rate of their own tokens is known."""
    found = gap(replace(STEADY, tokens=4096))
    assert found.row("MFU").measured is None
    assert found.row("tokens/s").measured == pytest.approx(4096 / 1.01)


@pytest.mark.parametrize(
    ("change", "name", "advice"),
    [
        ({"input_seconds": 0.3}, "input wait", "loader"),
        ({"slowest_seconds": 0.28}, "slowest rank", "rank timeline"),
        ({"forward_seconds": 0.53}, "forward", "calibrate"),
        ({"backward_seconds": 1.02}, "backward, exchange, optimizer", "workbench profile"),
    ],
)
def test_the_term_that_was_off_most_is_named(
    change: dict[str, float], name: str, advice: str
) -> None:
    found = gap(replace(STEADY, step_seconds=1.3, **change))
    off = most_off(found)
    assert off is not None
    assert off.what == name
    begin = f"Step 1.3 s, predicted 1 s (+30 %): {name} took 2"
    assert found.explanation.startswith(begin)
    assert advice in found.explanation


def test_seconds_decide_and_not_ratios() -> None:
    """Input took fifteen times as long, but backward is what costs."""
    steady = replace(STEADY, step_seconds=1.8, input_seconds=0.3, backward_seconds=1.24)
    off = most_off(gap(steady))
    assert off is not None
    assert off.what.startswith("backward")
    faster = replace(STEADY, step_seconds=0.7, forward_seconds=0.2, backward_seconds=0.45)
    found = gap(faster)
    assert "(-30 %): backward, exchange, optimizer took 280 ms less" in found.explanation
    assert "use this run too" in found.explanation


@pytest.mark.parametrize(
    ("source", "assumed"), [("catalog", True), ("a measured step: t.py", False)]
)
def test_quicker_than_assumed_is_said_of_the_catalog_alone(source: str, *, assumed: bool) -> None:
    faster = replace(STEADY, step_seconds=0.7, forward_seconds=0.2, backward_seconds=0.45)
    said = gap(faster, predicting(source=source)).explanation
    assert ("faster than assumed" in said, "quicker than the measurement" in said) == (
        assumed,
        not assumed,
    )


def test_causes_add_up_to_the_predicted_step_whatever_is_measured() -> None:
    one = {**RUN, "processes": 1}
    pipeline = {**RUN, "strategy": {"pp": 2}}
    gpu = {**RUN, "device": "cuda"}
    for run in (RUN, one, pipeline, gpu):
        causes = [row for row in gap(run=run).rows if row.group == "cause"]
        assert sum(row.predicted or 0.0 for row in causes) == pytest.approx(1.0)
        assert sum(row.measured or 0.0 for row in causes) == pytest.approx(1.01)
    assert "forward" not in [row.what for row in gap(run=gpu).rows]  # its process runs ahead
    assert "slowest rank" not in [row.what for row in gap(run=one).rows]


def test_forward_before_the_last_backward() -> None:
    def forward(**workload: int) -> float | None:
        return gap(run={**RUN, "workload": workload}).row("forward").predicted

    assert forward(accumulate=1) == pytest.approx(0.75 / 3)
    assert forward(accumulate=4) == pytest.approx(0.75 * (3 + 1 / 3) / 4)
    assert forward(accumulate=1, lora_rank=8) == pytest.approx(0.75 / 2)


def test_a_catalog_that_was_off_leads_to_calibrate() -> None:
    steady = replace(STEADY, step_seconds=1.3, forward_seconds=0.54)
    assert "workbench calibrate measures" in gap(steady, predicting(source="catalog")).explanation


def test_the_source_tells_the_correction_and_its_spread() -> None:
    known = {"factor": 1.08, "low": 0.97, "high": 1.15, "runs": 5}
    said = "corrected by 1.08, the median of 5 runs here (0.97 to 1.15)"
    assert gap(run=predicting(correction=known)).source == f"{TIME['source']}, {said}"
    for broken in (None, {}, {**known, "runs": None}):
        assert gap(run=predicting(correction=broken)).source == TIME["source"]
    assert str(gap(run=predicting(correction={**known, "more": 1})).source).endswith(said)


def test_what_is_unknown_stays_unknown() -> None:
    run = {**RUN, "predicted": {"memory": RUN["predicted"]["memory"]}, "usd_per_hour": None}
    found = gap(run=run, usd_so_far=None)
    assert found.row("step").predicted is None
    assert found.row("step").ratio is None
    assert found.row("cost").measured is None
    assert "MFU" not in [row.what for row in found.rows]
    assert found.explanation.startswith("No step time was predicted. On CPU it is for dense models")
    nothing = compare(RunRecord(), {}, Steady())
    assert nothing.rows == ()
    assert "not known at launch" in nothing.explanation
    soon = gap(replace(STEADY, steps=2))
    assert soon.explanation.startswith("The run ended too soon")
    assert gap(Steady(), phase="running", peak_memory_bytes=[]).explanation == ""


def test_memory_by_part_on_a_gpu() -> None:
    series = {"memory_bytes": [1, None, 13 * 10**9]}
    found = gap(run={**RUN, "device": "cuda"}, devices=[{"series": series}, {"series": {}}])
    assert found.row("peak memory").predicted == 8 * 10**9  # what the allocator hands out
    assert found.row("on the card").measured == 13 * 10**9
    assert found.row("context, library, slack").predicted == 2 * 10**9
    assert found.row("context, library, slack").measured == 13 * 10**9 - 10_100_000_000
    assert "Peak memory 9.41 GiB per rank, predicted 7.45 GiB (+26 %)" in found.explanation


def test_what_was_no_step_is_told_at_the_end_of_a_long_run() -> None:
    assert "87.9 s" not in gap(phase="running").explanation
    assert "1 min 28 s of 5 min 00 s were outside steps" in gap().explanation


def test_steps_that_a_restart_made_twice_are_not_called_outside_steps() -> None:
    ended = {"event": "end", "attempt": 1, "time": 190.0, "last_step": 90}
    begun = {"event": "start", "attempt": 2, "time": 200.0, "first_step": 20}
    said = gap(attempts=[ended, begun]).explanation
    assert "outside steps" not in said  # 18 s are left of the 88
    assert "1 min 11 s of 5 min 00 s went into 70 steps that were made twice." in said


def test_a_document_is_read_back_and_rubbish_is_none() -> None:
    document = comparison()
    again = PredictionError.read(json.loads(json.dumps(document)))
    assert PredictionError.read(again.document()) == again
    assert [again.explanation, again.source] == [document["explanation"], document["source"]]
    assert [row.measured for row in again.rows] == [row["measured"] for row in document["rows"]]
    assert PredictionError.read({}) == PredictionError()
    assert PredictionError.read({"rows": [{"what": "step"}, {"more": 1}]}).rows == ()


def test_read_gap_takes_what_is_kept_what_is_live_or_what_an_old_run_has(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.run.write_text(json.dumps(RUN))
    old = {**VIEW, "step_seconds_median": 1.2, "tokens_per_second": 7000.0}
    paths.view.write_text(json.dumps(old))
    assert read_prediction_error(paths).row("step").measured == 1.2
    live = {**old, "phase": "running", "comparison": comparison(STEADY, phase="running")}
    paths.view.write_text(json.dumps(live))
    paths.comparison.write_text(json.dumps(comparison()))
    assert (
        read_prediction_error(paths).row("step").measured == 1.01
    )  # resumed: the kept one is of before
    paths.view.write_text(json.dumps({**live, "phase": "ended"}))
    assert read_prediction_error(paths).row("step").measured == 1.31


def test_the_report_says_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    about = {"name": "r", "script": "t.py", "environment": {}, "command": ["t"]}
    memory = {"parts": {}, "assumptions": [], **RUN["predicted"]["memory"]}
    run = {**RUN, **about, "predicted": {**RUN["predicted"], "memory": memory}}
    paths.run.write_text(json.dumps(run))
    paths.view.write_text(json.dumps(VIEW))
    found = comparison()
    found["rows"][1]["what"] = "<img src=x>"
    paths.comparison.write_text(json.dumps(found))
    write_report(paths, {"outcome": "succeeded", "message": "", "exit_code": 0})
    text = paths.report.read_text()
    assert "input wait took 280 ms more than predicted" in text
    assert 'class=" off"><td>step</td>' in text
    assert "&lt;img src=x&gt;" in text
    assert "<img" not in text


def rows(count: int, *, late: float = 0.0, wait: float = 0.01, first: int = 1) -> list[StepRow]:
    """Two ranks with steps of 0.1 s: 30 ms to backward, rank 1 `late` s longer."""
    found: list[StepRow] = []
    for step in range(first, first + count):
        end = 0.1 * step
        begin = end - 0.1
        row = StepRow(step, end, ranks=2, tokens=64)
        row.step_seconds = None if step == first else 0.1
        row.ended_at = {0: end, 1: end}
        row.backward_at = {0: begin + 0.03 + wait, 1: begin + 0.03 + wait + late}
        row.data_seconds = {0: wait, 1: wait}
        found.append(row)
    return found


def sampled(steps: list[StepRow], paths: RunPaths | None = None) -> Steady:
    sample = StepSample(paths)
    for row in steps:
        sample.add(row)
    return sample.steady()


def test_a_step_is_split_by_cause() -> None:
    found = sampled(rows(60, late=0.02))
    assert found.steps == 60 - WARMUP
    assert found.step_seconds == pytest.approx(0.1)
    assert found.input_seconds == pytest.approx(0.01)
    assert found.slowest_seconds == pytest.approx(0.02)
    assert found.forward_seconds == pytest.approx(0.03)
    assert found.backward_seconds == pytest.approx(0.04)
    assert found.tokens == 64


def test_warm_up_and_steps_after_a_checkpoint_are_no_steady_steps(tmp_path: Path) -> None:
    steps = rows(40)
    for row in [*steps[:WARMUP], *steps[10::10]]:
        row.step_seconds = 9.0
    assert sampled(rows(WARMUP)).step_seconds is None
    paths = RunPaths(tmp_path)
    paths.saved.write_text("".join(f'{{"step": {step}}}\n' for step in (10, 20, 30)))
    sample = StepSample(paths)
    for row in steps:
        sample.add(row)
    assert max(one.seconds for one in sample._usual()) == 9.0
    assert sample.steady().step_seconds == pytest.approx(0.1)
    assert max(one.seconds for one in sample._usual()) == pytest.approx(0.1)


def test_each_attempt_warms_up_again() -> None:
    again = rows(10, first=20)
    again[1].step_seconds = again[2].step_seconds = 9.0
    found = sampled([*rows(30), *again])
    assert found.steps == 30 - WARMUP + 10 - WARMUP


def test_of_a_hundred_thousand_steps_few_are_kept_from_the_whole_run() -> None:
    sample = StepSample()
    for step in range(1, 100_001):
        row = StepRow(step, 0.1 * step, ranks=2)
        row.step_seconds = 0.1 if step <= 50_000 else 0.3
        sample.add(row)
    assert len(sample._rows) < 512
    found = sample.steady()
    assert found.steps > 99_990
    assert found.step_seconds == pytest.approx(0.2, abs=0.101)  # neither half alone
    early = sum(one.seconds < 0.2 for one in sample._rows)
    assert 0.4 < early / len(sample._rows) < 0.6


def test_clocks_that_were_set_and_ranks_that_are_missing_are_no_cause() -> None:
    steps = rows(30)
    for row in steps:
        row.backward_at = {0: row.backward_at[0] - 50.0}
    found = sampled(steps)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.input_seconds is None
    causes = [
        row for row in gap(replace(SLOW_INPUT, input_seconds=None)).rows if row.group == "cause"
    ]
    assert causes == []
