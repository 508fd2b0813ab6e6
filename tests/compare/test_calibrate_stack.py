"""`workbench calibrate --from` and `--measured`: figures, refusals, what the next estimates do."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.cli.conftest import Command, command  # noqa: F401  (a fixture)
from tests.compare.made_runs import make_run
from tests.estimate.sample_stack import job, measured
from tests.widgets.sample_gap import MEMORY, RUN, STEADY, TIME, VIEW
from workbench.compare.calibration.figures import read_figures
from workbench.compare.calibration.stack import calibrate, calibrated
from workbench.estimate.stack_factor import NOISE
from workbench.observe.prediction_error.comparison import compare
from workbench.observe.prediction_error.corrections import record_prediction_error
from workbench.observe.prediction_error.stack import stack_measurement
from workbench.store import calibrations, stack_calibrations
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

GB = 10**9
PARTS = {"parameters": GB, "optimizer states": 2 * GB, "activations: blocks": 5 * GB}
RECORD = RunRecord.of(
    {
        **RUN,
        "workbench_version": wb.__version__,
        "script": "/home/me/train.py",
        "workload": {**RUN["workload"], "micro_batch": 2, "precision": "fp32"},
        "predicted": {
            "memory": {**MEMORY, "parts": {**PARTS, "framework context": 2 * GB}},
            "time": TIME,
        },
    }
)
WORDS = ("--model", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--strategy", "fsdp")
JOB = (*WORDS, "--seq-len", "4096", "--trainer", "torchtitan")


def of_record(record: RunRecord = RECORD) -> Any:
    return stack_measurement(record, compare(record, VIEW, STEADY))


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("tokens_per_second=9100,peak_gib=61.2", {"tokens_per_second": 9100, "peak_gib": 61.2}),
        ("tokens_per_second=9,100", {"tokens_per_second": 9100}),
        ("I=1", {"I": 1}),
        ("9,100 tokens/s, 61.2 GiB", {"tokens_per_second": 9100, "peak_gib": 61.2}),
        ("1.2 s/it", {"step_seconds": 1.2}),
        ("2.5 it/s", {"steps_per_second": 2.5}),
        ("870 tok/s/gpu, 40 GB", {"tokens_per_second_per_gpu": 870, "peak_gb": 40}),
    ],
)
def test_figures_are_read_as_people_write_them(text: str, figures: dict[str, float]) -> None:
    assert read_figures(text) == figures


@pytest.mark.parametrize(
    "text",
    [
        *("fast", "9100", "tokens_per_second=much", "mfu=", "3 apples"),
        *("1.234.567 tokens/s", "peak_gib=61..2", "peak_gib=."),
    ],
)
def test_what_is_not_a_figure_is_refused(text: str) -> None:
    with pytest.raises(wb.UsageError, match=r"is not a figure\. Give NAME=NUMBER"):
        read_figures(text)


def test_one_figure_in_any_form_is_the_same_measurement(tmp_path: Path) -> None:
    step = wb.step_time(job())
    assert step.mfu is not None
    ratios = [
        calibrate(job(), measured=figures, store=tmp_path).step_ratio
        for figures in (
            {"step_seconds": 1.2 * step.step_seconds},
            {"tokens_per_second": step.tokens_per_second / 1.2},
            {"tokens_per_second_per_gpu": step.tokens_per_second / 9.6},
            {"samples_per_second": 8 / (1.2 * step.step_seconds)},
            {"steps_per_second": 1 / (1.2 * step.step_seconds)},
            {"mfu": step.mfu / 1.2},
        )
    ]
    assert ratios == pytest.approx([1.2] * 6)
    (kept,) = stack_calibrations.read(tmp_path)  # the last of that name counts
    assert kept.name == "torchtitan-llama-3-8b-h100-sxm"
    plain = wb.step_time(job())
    known = wb.step_time(calibrated(job(seq_len=8192, micro_batch=4), store=tmp_path))
    larger = wb.step_time(job(seq_len=8192, micro_batch=4))
    assert known.step_seconds / larger.step_seconds == pytest.approx(1.2 ** (1 / (1 + NOISE)))
    again = calibrate(calibrated(job(), store=tmp_path), measured="1 s", store=tmp_path)
    assert again.step_ratio == pytest.approx(1 / plain.step_seconds)  # beside the plain prediction


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({}, "No figure is given"),
        ({"tokens": 1.0}, "Unknown figure 'tokens'"),
        ({"mfu": 41.0}, "41 % is mfu=0.41"),
        ({"mfu": -0.4}, "must be a number above 0"),
        ({"peak_gib": float("nan")}, "must be a number above 0"),
        ({"peak_gib": 90.0}, "is impossible: the card has 79.6 GiB"),
        ({"peak_gib": 0.5}, "times the predicted"),
        ({"peak_gib": 40.0, "reserved_gib": 41.0}, "measure the same"),
        ({"step_seconds": 60.0}, "times the predicted"),
        ({"tokens_per_second": 7000.0}, "there are 8 GPUs: it looks like one GPU's"),
        ({"tokens_per_second_per_gpu": 60_000.0}, "there are 8 GPUs: it looks like all GPUs'"),
    ],
)
def test_impossible_and_doubtful_figures_are_refused(
    tmp_path: Path, figures: dict[str, float], message: str
) -> None:
    with pytest.raises(wb.UsageError) as refused:
        calibrate(job(), measured=figures, store=tmp_path)
    assert message in str(refused.value)
    assert not stack_calibrations.read(tmp_path)


def test_a_cpu_s_step_is_not_stated(tmp_path: Path) -> None:
    with pytest.raises(wb.UsageError, match="needs a GPU of the catalog"):
        calibrate(job(gpu=None, cpu=True), measured="1 s", store=tmp_path)
    with pytest.raises(wb.UsageError, match="Give a run that has ended, or a job"):
        calibrate(job(), store=tmp_path)
    with pytest.raises(wb.UsageError, match="cannot name a measurement"):
        calibrate(job(), measured="1 s", name="none", store=tmp_path)


def test_a_run_says_how_it_compares_with_the_plain_prediction() -> None:
    plain = of_record()
    assert plain.step_ratio == pytest.approx(1.01)
    assert plain.figures == "step 1.01 s, peak 9.41 GiB"
    assert plain.stack == ("pytorch", "", "train.py", "cpu", "", "fp32", "full", False)
    assert (plain.predicted_bytes, plain.tensors_bytes, plain.states_bytes) == (
        *(10 * GB, 8 * GB, 3 * GB),
    )
    parts = {**TIME["parts"], "stack calibration": 0.2}
    memory = {**MEMORY, "total_bytes": 11 * GB}
    memory["parts"] = {**PARTS, "framework context": 2 * GB, "stack calibration": GB}
    corrected = {"factor": 1.25, "low": 1.0, "high": 1.5, "runs": 5}
    time = {**TIME, "step_seconds": 1.5, "parts": {**parts, "matmul": 0.75}}
    again = replace(RECORD, predicted={"memory": memory, "time": {**time, "correction": corrected}})
    known = of_record(again)
    assert known.step_ratio == pytest.approx(1.01 / (1.5 * 1.3 / 1.5 / 1.25))
    assert known.predicted_bytes == 10 * GB
    assert of_record(replace(RECORD, workload=None)) is None
    assert of_record(replace(RECORD, predicted=None)) is None


def test_a_finished_run_feeds_the_store_unless_something_was_wrong(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "sample")
    paths.directory.mkdir()
    final = {"comparison": compare(RECORD, VIEW, STEADY).document()}
    paths.view.write_text(json.dumps(final))
    for kind in ("thermal-throttling", "input-bound", "straggler"):
        finding = Finding(kind=kind, evidence="", cause="", next="", confidence=0.9)
        record_prediction_error(paths, RECORD, [finding])
    assert not stack_calibrations.read(tmp_path)
    record_prediction_error(paths, RECORD, [])
    assert stack_calibrations.read(tmp_path) == [replace(of_record(), name="sample")]


def test_what_is_kept_is_read_and_rubbish_is_not(tmp_path: Path) -> None:
    stack_calibrations.keep(tmp_path, measured("a"))
    stack_calibrations.keep(tmp_path, measured("b"))
    stack_calibrations.keep(tmp_path, measured("a", step_ratio=1.5))
    whole = asdict(measured("c"))
    for change in (
        {"facts": ["torchtitan"]},
        {"facts": "torchtitan"},
        {"step_ratio": "much"},
        {"step_ratio": 99.0},
        {"step_ratio": True},
        {"peak_bytes": 5.0},
        {"name": 7},
        {"name": "a\x1b[31m"},
        {"gpu": 7},
        {"measured_at": -1.0},
    ):
        calibrations.append_correction(tmp_path, stack_calibrations.KEY, {**whole, **change})
    known = stack_calibrations.read(tmp_path)
    assert known == [measured("b"), measured("a", step_ratio=1.5)]


def test_a_name_chooses_and_none_switches_off(tmp_path: Path) -> None:
    for name, ratio in (("run-one", 1.2), ("run-two", 1.6)):
        stack_calibrations.keep(tmp_path, measured(name, step_ratio=ratio))
    stack_calibrations.keep(tmp_path, measured("old", version="0.0.1"))
    plain = wb.step_time(job()).step_seconds

    def ratio(name: str) -> float:
        return wb.step_time(calibrated(job(), name, tmp_path)).step_seconds / plain

    assert ratio("none") == 1
    assert 1.2 < ratio("all") < 1.6
    assert ratio("run-one") == pytest.approx(1.2 ** (1 / (1 + NOISE)))
    for name, message in (
        ("run", "fits 2 measurements: run-one, run-two"),
        ("run-tow", "Unknown calibration 'run-tow'. Did you mean run-two"),
        ("old", "beside the predictions of version 0.0.1"),
    ):
        with pytest.raises(wb.UsageError, match=message):
            ratio(name)
    with pytest.raises(wb.UsageError, match="nothing was measured of a stack yet"):
        calibrated(job(), "run-one", tmp_path / "empty")


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"workload": None}, "does not say what was trained"),
        ({"workload": RECORD.workload, "steps": 3}, "steady steps, fewer than 20"),
        ({"workload": RECORD.workload}, "neither its step nor its memory was both"),
        ({"workload": RECORD.workload, "workbench_version": "0.0.1"}, "by version 0.0.1; this is"),
    ],
)
def test_a_run_that_says_nothing_is_refused(
    tmp_path: Path, about: dict[str, Any], message: str
) -> None:
    make_run(tmp_path, "a", **about)
    with pytest.raises(wb.UsageError, match=message):
        calibrate(run="a", store=tmp_path)


def test_an_unknown_a_running_and_a_foreign_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(wb.RunNotFoundError):
        calibrate(run="nothing", store=tmp_path)
    paths = make_run(tmp_path, "a", workload=RECORD.workload)
    paths.directory.chmod(0o777)
    with pytest.raises(wb.StoreError, match="cannot be used to calibrate"):
        calibrate(run="a", store=tmp_path)
    paths.directory.chmod(0o700)
    paths.exit.unlink()
    with pytest.raises(wb.UsageError, match="has not ended"):
        calibrate(run="a", store=tmp_path)


def test_a_finished_run_is_taken_by_hand_too(tmp_path: Path) -> None:
    predicted = {"time": {**TIME, "step_seconds": 0.4, "parts": {"matmul": 0.4}}}
    make_run(tmp_path, "a", workload=RECORD.workload, predicted=predicted)
    known = calibrate(run="last", store=tmp_path)
    assert (known.name, known.step_ratio) == ("a", pytest.approx(0.5 / 0.4))


def test_the_commands_correct_each_other(command: Command, tmp_path: Path) -> None:  # noqa: F811
    here = {"WORKBENCH_STORE": str(tmp_path)}
    figures = ("--measured", "tokens_per_second_per_gpu=6200,peak_gib=38")
    text = command("calibrate", *JOB, *figures, "--name", "monday", **here).out
    assert "monday (" in text
    assert "torchtitan on h100-sxm, bf16, full: tokens_per_second_per_gpu 6200" in text
    assert "--calibration none" in text
    for words in (
        ("memory", *JOB, "--micro-batch", "2"),
        ("cost", *JOB, "--tokens", "1B", "--gpus", "4"),
        ("plan", "--model", "llama-3-8b", "--trainer", "torchtitan", "--tokens", "1B"),
    ):
        more = ("--gpu", "h100", "--max-gpus", "8") if words[0] == "plan" else ()
        on = command(*words, *more, "--json", **here).out
        off = command(*words, *more, "--calibration", "none", "--json", **here).out
        assert "from stated figures monday" in on, words
        assert "stack calibration" not in off
    assert "from stated figures monday" in command("advise", *JOB, **here).err
    shown = command("calibrate", "--show", **here)
    assert "monday (" in shown.out
    assert shown.code == 0
    told = command("calibrate", "--show", "--json", **here)
    assert told.code == 0
    assert [stack["name"] for stack in json.loads(told.out)["stacks"]] == ["monday"]
    assert "Unknown calibration" in command("memory", *JOB, "--calibration", "x", **here).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "a", "--measured", "1 s"), "Give --from RUN or --measured FIGURES"),
        (("--from", "a", "--show"), "without --quick and --show"),
        (("--from", "a", "--model", "gpt2"), "--model describes a job whose figures are known"),
        (("--name", "x"), "--name describes a job"),
        (("--measured", "1 s"), "The model is missing"),
    ],
)
def test_options_that_contradict_are_refused(
    command: Command,  # noqa: F811
    tmp_path: Path,
    words: tuple[str, ...],
    message: str,
) -> None:
    seen = command("calibrate", *words, WORKBENCH_STORE=str(tmp_path))
    assert seen.code != 0
    assert message in seen.err
