"""Studies on real runs: what they measure, what they keep, and what a bad trial does to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the train extra is not installed")

import workbench as wb
from tests.conftest import SCRIPTS, until
from workbench.compare.scaling_study import scale
from workbench.compare.studies import bench as shared
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.study import Study, StudyStoppedError, studies
from workbench.compare.studies.trial import Trial, TrialResult
from workbench.compare.studies.tuning import Accumulate, BatchSize, Workers, batch_size, sweep
from workbench.errors import HostError
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.start.start import record_of
from workbench.provenance.differences import script_and_machine

pytestmark = [pytest.mark.slow, pytest.mark.full]

TINY = ("--layers", "1", "--hidden", "64", "--seq-len", "32", "--micro-batch", "4")
LOADER = str(SCRIPTS / "slow_loader.py")


@pytest.fixture(autouse=True)
def warm_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's steps are the subject here, not its start. `test_ctrl_c_…` starts cold."""
    build = shared.build_request
    monkeypatch.setattr(
        shared,
        "build_request",
        lambda target, arguments, options: build(target, arguments, replace(options, warm=True)),
    )


def bench(store: Path, target: str = "gpt", *arguments: str, **options: object) -> Bench:
    return Bench.of(target, arguments, LaunchOptions(store=store, cpu=True), **options)


def test_a_scaling_study_measures_keeps_and_goes_on(store: Path) -> None:
    told = []
    first = scale(
        "gpt", TINY, sizes=(1, 2), steps=12, cpu=True, store=store, on_progress=told.append
    )
    points = first.curve("weak").points
    assert [(one.ranks, one.measured) for one in points] == [(1, True), (2, True)]
    assert points[1].parts["communication"] >= 0
    assert points[1].efficiency + sum(points[1].lost.values()) == pytest.approx(1)
    assert {one.label for one in told} == {"weak 1", "weak 2"}
    assert told[-1].of == 2
    runs = wb.Store(store).ids()
    command = [sys.executable, "-m", "workbench.cli", "scale", "gpt", "--cpu", "--sizes", "1,2"]
    command += ["--steps", "12", "--to", "4,8", "--gpu", "h100-sxm", "--nodes-to", "8,64"]
    command += ["--resume", "last", "--json", "--store", str(store), "--", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    again = json.loads(done.stdout)  # one JSON value and nothing else
    assert wb.Store(store).ids() == runs  # nothing was repeated
    assert again["study"] == first.study
    shown = again["curves"][0]["points"]
    assert [point["run"] in runs for point in shown] == [True, True, False, False]
    for was, now in zip(points, shown, strict=False):
        assert now["step_seconds"] == pytest.approx(was.step_seconds, rel=1e-3)
    four = shown[2]
    assert (four["ranks"], four["measured"]) == (4, False)
    assert four["low_seconds"] < four["step_seconds"] < four["high_seconds"]
    assert [point["gpus"] for point in again["rented"]] == [8, 64]
    assert all(point["measured_ratio"] is None for point in again["rented"])
    kept = json.loads((store / "studies" / f"{first.study}.json").read_text())
    assert kept["found"]["curves"] == again["curves"]
    assert "studies" not in [run["run"] for run in wb.runs(store)]


def test_strong_scaling_divides_the_batch(store: Path) -> None:
    found = scale("gpt", TINY, sizes=(1, 2), mode="strong", steps=10, cpu=True, store=store)
    batches = [
        wb.attach(one.run, store).document["workload"]["micro_batch"] for one in found.results
    ]
    assert batches == [4, 2]
    assert all(
        wb.attach(run, store).document["part_of"] == "study" for run in wb.Store(store).ids()
    )
    assert len({one.tokens_per_step for one in found.results}) == 1


def test_any_script_stops_after_its_steps(store: Path) -> None:
    script = SCRIPTS / "raw_ddp.py"
    arguments = ("--steps", "100000", "--step-seconds", "0.02")
    found = scale(script, arguments, sizes=(2,), steps=10, to=(4,), cpu=True, store=store)
    (one,) = found.curve("weak").points
    assert one.step_seconds >= 0.02
    assert wb.attach(found.results[0].run, store).outcome == "stopped"
    assert any("One weak size alone" in note for note in found.notes)


def test_a_trial_that_fails_is_a_result_and_is_tried_again(store: Path) -> None:
    study = Study(bench(store, str(SCRIPTS / "raw_ddp.py")), "scale")
    broken = Trial(label="broken", processes=2, arguments=("--raise-at", "2"))
    result = study.run(broken)
    assert result.outcome == "failed"
    assert "boom at step 2" in (result.problem or "")
    again = Study(replace(study.bench, resume=study.id), "scale")
    assert [one.outcome for one in again.results] == ["failed"]
    assert again.run(broken).run != result.run
    assert len(again.results) == 1


def test_the_batch_stops_growing_at_the_memory_limit(store: Path) -> None:
    arguments = ("--batch", "{value}", "--hog-mb", "64", "--sample-seconds", "0.002")
    limited = bench(store, LOADER, *arguments, memory_limit_bytes=1100 << 20)
    found = batch_size(limited, BatchSize(start=2, gain=-1.0, steps=8))  # memory alone decides
    by_value = {one.value: one.outcome for one in found.results}
    assert by_value[2] == "good"
    assert "memory" in by_value.values()
    fits = [value for value, outcome in by_value.items() if outcome == "good"]
    over = [value for value, outcome in by_value.items() if outcome == "memory"]
    assert max(fits) < min(over) <= max(1.25 * max(fits), max(fits) + 1)  # closed in on
    assert found.best in fits
    assert "out of memory (limit 1.07 GiB per rank)" in found.why


def test_workers_are_worth_it_while_data_is_waited_for(store: Path) -> None:
    loader = bench(store, LOADER, "--workers", "{value}", "--batch", "16")
    found = sweep(loader, Workers(values=(0, 3), steps=8))
    assert found.best == 3
    none, three = found.results
    assert none.step_seconds > 0.16  # 16 samples of 10 ms
    waits = [
        sorted(split.data for split in one.splits)[len(one.splits) // 2] for one in (none, three)
    ]
    assert waits[1] < 0.6 * waits[0]


def test_stopping_ends_the_run_and_keeps_what_is_done(store: Path) -> None:
    stop = threading.Event()

    def told(now: object) -> None:
        if now.label == "weak 2" and now.steps >= 2:
            stop.set()

    with pytest.raises(StudyStoppedError, match="finished trials are kept"):
        scale(
            SCRIPTS / "raw_ddp.py",
            ("--steps", "100000", "--step-seconds", "0.02"),
            sizes=(1, 2),
            steps=40,
            cpu=True,
            store=store,
            on_progress=told,
            stop=stop,
        )
    (kept,) = studies(wb.Store(store), "scale")
    assert [(one["label"], one["outcome"]) for one in kept["trials"]] == [("weak 1", "good")]
    assert not [run for run in wb.runs(store) if run["state"] == "running"]


def test_ctrl_c_leaves_no_process_and_a_sentence(store: Path) -> None:
    command = [sys.executable, "-m", "workbench.cli", "scale", str(SCRIPTS / "raw_ddp.py")]
    command += ["--cpu", "--sizes", "2", "--steps", "5000", "--store", str(store), "--"]
    command += ["--steps", "100000", "--step-seconds", "0.02"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: [one for one in wb.runs(store) if (one["steps"] or 0) > 2], 120, "steps")
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "--resume last" in said
    assert [one["outcome"] for one in wb.runs(store)] == ["stopped"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": (2, 1)}, "increasing numbers of ranks"),
        ({"steps": 3}, "Use at least 8"),
        ({"mode": "both ways"}, "Did you mean both"),
        ({"to": (1000,)}, "Extrapolate to 128 at most"),
        ({"sizes": (1, 3), "mode": "strong"}, "cannot be spread over 3"),
        ({"resume": "last"}, "does not hold a scale study"),
        ({"global_batch": 64}, "is for scripts"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(store, options, said) -> None:
    with pytest.raises(wb.UsageError, match=said):
        scale("gpt", TINY, cpu=True, store=store, **options)
    assert not wb.runs(store)


def test_a_script_says_where_its_number_goes(store: Path) -> None:
    with pytest.raises(wb.UsageError, match=r"put \{value\} in its arguments"):
        sweep(bench(store, LOADER), Accumulate(values=(1, 2)))
    with pytest.raises(wb.UsageError, match="without loader workers"):
        sweep(bench(store), Workers(values=(0, 2)))
    with pytest.raises(wb.UsageError, match=r"--global-batch N and use \{micro_batch\}"):
        scale(LOADER, mode="strong", cpu=True, store=store)


def test_a_trial_of_an_edited_script_is_measured_again_and_that_of_another_host_is_told(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, trial = tmp_path / "train.py", Trial(label="weak 1", processes=1)
    script.write_text("print(1)\n")
    first = Study(bench(store, str(script)), "scale")
    made_of = script_and_machine(record_of(first.bench.request(trial)))
    assert {"host", "CPU", "file train.py"} <= set(made_of)
    about = {"label": "weak 1", "key": first.bench.key(trial), "processes": 1, "value": None}
    monkeypatch.setattr(Study, "_start", lambda *_: (_ for _ in ()).throw(HostError("tried")))

    def resumed(made_of: dict[str, object]) -> str:
        first.results = [
            TrialResult(**about, run=None, outcome="good", problem=None, made_of=made_of)
        ]
        first.save()
        return Study(bench(store, str(script), resume=first.id), "scale").run(trial).outcome

    assert resumed(made_of) == resumed({}) == "good"
    with pytest.warns(UserWarning, match="weak 1 of scale-1 was measured on other, which has"):
        assert resumed({**made_of, "host": "other"}) == "good"
    with pytest.warns(UserWarning, match=r"is measured again: the CPU is .*, not x\."):
        assert resumed({**made_of, "CPU": "x"}) == "refused"
    script.write_text("print(2)\n")
    with pytest.warns(UserWarning, match=r"is measured again: train\.py has changed\."):
        assert resumed(made_of) == "refused"


@pytest.mark.parametrize("broken", [None, [], {"label": "x"}, {"splits": [[1, 2]]}, "text"])
def test_a_damaged_trial_is_run_again(broken: object) -> None:
    assert TrialResult.read(broken) is None


@pytest.mark.parametrize("damage", [{"trials": None}, {"created_at": "x"}, {"study": 5}])
def test_a_damaged_study_is_continued_with_what_is_left(store: Path, damage: object) -> None:
    first = Study(bench(store), "scale")
    document = json.loads(first.path.read_text())
    first.path.write_text(json.dumps({**document, **damage}))
    (store / "studies" / "torn.json").write_text('{"kind": "scale"}')
    assert Study(bench(store, resume=first.id), "scale").results == []


@pytest.mark.parametrize(("limit_gib", "again"), [(1, False), (4, True), (None, True)])
def test_a_trial_over_the_memory_limit_is_tried_again_under_a_higher_one(
    store: Path, monkeypatch: pytest.MonkeyPatch, limit_gib: int | None, *, again: bool
) -> None:
    trial = Trial(label="a", processes=1)
    first = Study(bench(store, memory_limit_bytes=1 << 30), "batch-size")
    over = {"outcome": "memory", "problem": "a rank exceeded the memory limit", "value": 8}
    about = {"label": "a", "key": first.bench.key(trial), "processes": 1, "run": "x"}
    first.results = [TrialResult(**over, **about, peak_memory_bytes=2 << 30)]
    first.save()
    monkeypatch.setattr(Study, "_start", lambda *_: (_ for _ in ()).throw(HostError("tried")))
    limit = None if limit_gib is None else limit_gib << 30
    resumed = Study(bench(store, resume=first.id, memory_limit_bytes=limit), "batch-size")
    assert (resumed.run(trial).problem == "tried") == again


def test_a_refused_trial_is_asked_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(why: str) -> None:
        def refuse(*_: object) -> None:
            raise HostError(why)

        monkeypatch.setattr(Study, "_start", refuse)

    first, trial = Study(bench(store), "scale"), Trial(label="a", processes=1)
    refused("pip install x")
    assert first.run(trial).problem == "pip install x"
    refused("something else")
    again = Study(replace(bench(store), resume=first.id), "scale")
    assert again.run(trial).problem == "something else"
