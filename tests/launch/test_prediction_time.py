"""The step time that a launch predicts, what earlier runs correct it by, and what a run leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.estimate.test_calibration import calibrated
from tests.widgets.sample_gap import RUN, STEADY, VIEW
from workbench.cli.entry import app
from workbench.describe import Cluster, Strategy
from workbench.describe.detection import detect_host
from workbench.estimate.host_step import predict_step
from workbench.estimate.stack_factor import NOISE
from workbench.launching.prepare.step_prediction import predict
from workbench.observe.prediction_error.comparison import compare, read_prediction_error
from workbench.observe.prediction_error.corrections import (
    correction,
    correction_lines,
    record_prediction_error,
)
from workbench.observe.prediction_error.stack import stack_measurement
from workbench.store import calibrations, stack_calibrations
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

SMALL = ["--layers", "2", "--hidden", "64", "--seq-len", "64", "--steps", "60", "--eval-every", "0"]

RECORD = RunRecord.of(RUN)


def finding(kind: str, **more: Any) -> Finding:
    return Finding(kind=kind, evidence="", cause="", next="", confidence=0.9, **more)


def asked(store: Path, strategy: str = "ddp", processes: int = 2) -> wb.Request:
    how: dict[str, Any] = {"strategy": strategy, "processes": processes, "cpu": True}
    return wb.request("gpt", SMALL, store=store, **how)


@pytest.fixture
def key(store: Path) -> str:
    """A calibration of this host in the store; made up, but for the host it describes."""
    here = detect_host()
    key = calibrations.host_key(here, cpu=True)
    cores = here.cpu_cores or 1
    made = calibrated(key=key, host=here.name, cores=cores)
    calibrations.write_calibration(store, key, made.document())
    return key


def line(ratio: object, run: str, **more: object) -> dict[str, Any]:
    known = {"device": "cpu", "strategy": "ddp", "what": "step_seconds"}
    return {**known, "run": run, "ratio": ratio, **more}


def test_without_a_calibration_nothing_is_said(store: Path) -> None:
    request = asked(store)
    assert request.predicted_time is None
    assert request.predicted_basis is None
    prediction = request.prediction()
    assert prediction is not None
    assert prediction.keys() == {"memory"}


def test_a_calibrated_host_predicts_and_says_from_what(store: Path, key: str) -> None:
    request = asked(store)
    assert request.predicted_time is not None
    assert request.workload is not None
    measured = calibrated(key=key, host=detect_host().name, cores=detect_host().cpu_cores or 1)
    here = replace(detect_host(), gpus=(), accelerator=None)
    alone = predict_step(request.workload, request.strategy, here, measured)
    assert alone is not None
    assert request.predicted_time.parts == alone.parts
    time = (request.prediction() or {})["time"]
    assert time["step_seconds"] == pytest.approx(alone.step_seconds)
    assert time["source"].startswith("measured here on ")
    assert (time["host_key"], time["correction"]) == (key, None)
    assert "usd" not in (request.prediction() or {})
    json.dumps(request.prediction(), allow_nan=False)


def test_the_bill_needs_a_price(store: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "36")
    request = asked(store)
    assert request.predicted_time is not None
    assert request.predicted_usd == pytest.approx(60 * request.predicted_time.step_seconds / 100)
    assert (request.prediction() or {})["usd"] == request.predicted_usd


def test_several_machines_cost_as_many_and_no_cpu_predicts_them(
    store: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "25")
    two = wb.request("gpt", SMALL, store=store, cpu=True, processes=1, nodes=2, address="127.0.0.1")
    assert two.usd_per_hour == 50.0
    assert two.predicted_time is None


def test_the_dry_run_prints_memory_and_time(store: Path, key: str) -> None:
    assert key
    words = ["launch", "gpt", "--cpu", "--nproc", "2", "--store", str(store), "--dry-run"]
    text = CliRunner().invoke(app, [*words, "--", *SMALL]).stdout
    assert "# memory predicted per rank" in text
    assert "# step time predicted (measured here on " in text
    assert "exposed communication: gradients" in text
    told = json.loads(CliRunner().invoke(app, [*words, "--json", "--", *SMALL]).stdout)
    assert told["predicted_time"]["step_seconds"] > 0


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"format": 1}', '{"format": 1, "steps": 7}'])
def test_a_damaged_calibration_is_none_and_no_launch_fails(
    store: Path, key: str, rubbish: str
) -> None:
    (calibrations.folder(store) / f"{key}.json").write_text(rubbish)
    (calibrations.folder(store) / f"{key}.corrections.jsonl").write_text('7\n{"ratio": "x"}\n{')
    assert asked(store).predicted_time is None


def test_three_runs_correct_the_fourth(store: Path, key: str) -> None:
    plain = asked(store).predicted_time
    assert plain is not None
    for number, ratio in enumerate((1.0, 1.2)):
        calibrations.append_correction(store, key, line(ratio, f"r{number}"))
    for other in (
        line(3.0, "a", strategy="single"),
        line(3.0, "b", device="cuda"),
        line(3.0, "c", what="peak_bytes"),
        line("much", "d"),
        line(99.0, "e"),
    ):
        calibrations.append_correction(store, key, other)
    assert asked(store).predicted_time == plain
    calibrations.append_correction(store, key, line(1.1, "r3"))
    request = asked(store)
    found, basis = request.predicted_time, request.predicted_basis
    assert found is not None
    assert basis is not None
    assert found.step_seconds == pytest.approx(1.1 * plain.step_seconds)
    assert found.low == pytest.approx(1.0 / 1.1)
    assert found.high == pytest.approx(1.2 / 1.1)
    said = "corrected by 1.10, the median of 3 runs here (1.00 to 1.20)"
    assert found.assumptions[-1] == said
    assert str(basis).endswith(said)
    assert (request.prediction() or {})["time"]["correction"]["runs"] == 3


def test_only_the_newest_runs_count_each_once_and_the_range_is_never_too_narrow() -> None:
    lines = [line(2.0, f"old{number}") for number in range(30)]
    lines += [line(1.0 + number / 1000, f"new{number}") for number in range(20)]
    found = correction(lines, device="cpu", strategy="ddp")
    assert found is not None
    assert found.runs == 20
    assert (found.low, found.high) == (1.002, 1.017)  # the deciles
    assert found.range() == (0.95, 1.05)
    again = [line(5.0, "one"), line(1.0, "two"), line(1.0, "three"), line(1.0, "one")]
    resumed = correction(again, device="cpu", strategy="ddp")
    assert resumed is not None
    assert (resumed.factor, resumed.high) == (1.0, 1.0)
    assert correction(again, device="cpu", strategy="dp2-tp2") is None


def test_what_a_run_says_is_about_the_prediction_before_it_was_corrected() -> None:
    corrected = {"factor": 1.25, "low": 1.0, "high": 1.5, "runs": 5}
    time = {**RUN["predicted"]["time"], "correction": corrected}
    run = RunRecord.of({**RUN, "predicted": {**RUN["predicted"], "time": time}})
    found = compare(run, VIEW, STEADY)
    step, memory = correction_lines(run, found, [])
    assert (step["what"], step["predicted"]) == ("step_seconds", 0.8)
    assert step["ratio"] == pytest.approx(1.01 / 0.8)
    assert (step["layers"], step["seq_len"], step["processes"]) == (4, 128, 2)
    assert memory["ratio"] == pytest.approx(1.01)


def test_a_run_in_trouble_too_short_or_on_a_busy_host_says_nothing() -> None:
    found = compare(RECORD, VIEW, STEADY)
    assert len(correction_lines(RECORD, found, [finding("no-checkpoint")])) == 2
    assert correction_lines(RECORD, found, [finding("straggler", cleared_at=5.0)]) == []
    assert correction_lines(RECORD, compare(RECORD, VIEW, replace(STEADY, steps=19)), []) == []
    assert correction_lines(replace(RECORD, nodes=2), found, []) == []
    profiled = replace(RECORD, command=["/usr/bin/nsys", "profile"])
    assert correction_lines(profiled, found, []) == []
    columns = {"time": [2.0, 3.0], "cpu_percent": [100.0, 100.0], "run_cpu_percent": [90.0, 90.0]}
    busy = {**VIEW, "first_step_at": 1.0, "host": {"cores": 2, "series": columns}}
    slow = compare(RECORD, busy, replace(STEADY, step_seconds=1.3, forward_seconds=0.54))
    assert slow.row("other processes").measured == pytest.approx(1.1)
    assert "Other processes took 1.1 cores meanwhile" in slow.explanation
    assert correction_lines(RECORD, slow, []) == []
    quiet = {**busy, "host": {"cores": 2, "series": {**columns, "run_cpu_percent": [190.0, 190.0]}}}
    assert len(correction_lines(RECORD, compare(RECORD, quiet, STEADY), [])) == 2


def test_a_key_from_elsewhere_cannot_leave_the_store(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "runs" / "r")
    paths.directory.mkdir(parents=True)
    paths.view.write_text(json.dumps({"comparison": compare(RECORD, VIEW, STEADY).document()}))
    time = {**RUN["predicted"]["time"], "host_key": "../../outside"}
    run = RunRecord.of({**RUN, "predicted": {**RUN["predicted"], "time": time}})
    with pytest.raises(wb.UsageError):
        record_prediction_error(paths, run, [])
    assert paths.comparison.exists()
    assert not list(tmp_path.glob("outside*"))


def test_a_gpu_of_the_catalog_needs_no_calibration_its_cpu_does(store: Path) -> None:
    workload = asked(store).workload
    assert workload is not None
    gpus = replace(Cluster.rented("h100-sxm", gpus=2), cpu_cores=16)
    two = Strategy.parse("ddp", 2)
    found = predict(workload, two, gpus, "cuda", wb.Store(store))
    assert found is not None
    assert found[1].source == "catalog"
    assert predict(workload, two, gpus, "cpu", wb.Store(store)) is None


@pytest.mark.slow
def test_a_real_run_is_compared_kept_and_counted(
    store: Path, key: str, start: Callable[..., wb.Run]
) -> None:
    run = start("gpt", tuple(SMALL), processes=2)
    assert run.wait(240) == "succeeded"
    paths = RunPaths(run.directory)
    found = read_prediction_error(paths)
    assert found.final
    assert found.steady_steps > 40
    step = found.row("step")
    asked_for = run.document["predicted"]["time"]["step_seconds"]
    assert step.predicted == pytest.approx(asked_for, rel=1e-5)
    assert step.measured is not None
    causes = sum(row.measured or 0.0 for row in found.rows if row.group == "cause")
    assert causes == pytest.approx(step.measured, rel=0.5)  # medians of each
    assert found.explanation.startswith("Step ")
    assert json.loads(paths.comparison.read_text()) == run.summary()["comparison"]
    assert run.view()["comparison"]["final"]
    lines = calibrations.read_corrections(store, key)
    quiet = found.row("other processes").within is not False
    assert [one["what"] for one in lines] == (["step_seconds", "peak_bytes"] if quiet else [])
    assert "Predicted and measured" in paths.report.read_text()
    text = CliRunner().invoke(app, ["show", run.id, "--store", str(store)]).stdout
    assert " predicted (" in text
    assert "compared" in text
    assert wb.Store(store).ids() == [run.id]  # the calibrations are no run
    _corrects_the_next_of_another_size(run, quiet=quiet)


def _corrects_the_next_of_another_size(run: wb.Run, *, quiet: bool) -> None:
    store = run.directory.parent
    known = stack_calibrations.read(store)
    assert [one.name for one in known] == [run.id] * quiet
    if not quiet:  # nothing else is wrong with it
        record = read_run(RunPaths(run.directory))
        assert record is not None
        measurement = stack_measurement(record, read_prediction_error(RunPaths(run.directory)))
        assert measurement is not None
        stack_calibrations.keep(store, measurement)
        known = [measurement]
    how: dict[str, Any] = {"strategy": "ddp", "processes": 1, "cpu": True, "store": store}
    larger = [*SMALL, "--hidden", "128"]
    plain = wb.request("gpt", larger, calibration="none", **how)
    corrected = wb.request("gpt", larger, **how)
    for memory, step in ((plain.predicted, plain.predicted_time),):
        assert memory is not None
        assert step is not None
        assert "stack calibration" not in {*memory.parts, *step.parts}
    assert corrected.predicted is not None
    measured, predicted = known[0].peak_bytes, known[0].predicted_bytes
    assert measured is not None
    assert predicted is not None
    moved = corrected.predicted.parts["stack calibration"]
    assert 0.5 < moved / (measured - predicted) < 1.2
    assert f"from run {run.id}" in "; ".join(corrected.predicted.assumptions)
    if known[0].step_ratio is not None:
        assert corrected.predicted_time is not None
        assert plain.predicted_time is not None
        now = corrected.predicted_time.step_seconds / plain.predicted_time.step_seconds
        one = 1 / (1 + NOISE)  # what a single run weighs
        assert math.log(now) == pytest.approx(one * math.log(known[0].step_ratio))
        assert f"from run {run.id}" in str(corrected.predicted_basis)
