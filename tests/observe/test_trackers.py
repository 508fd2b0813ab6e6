"""Trackers: what the real packages read back is what the run's files say, once and in order."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.observe.tracker_readers import READERS, Kept
from tests.observe.wandb_file import records
from workbench.errors import UsageError, WorkbenchError
from workbench.observe import trackers
from workbench.observe.trackers import feeding, places
from workbench.store import processes
from workbench.store.cut_lines import cut_after
from workbench.store.files import LineReader, read_json, write_json_atomic
from workbench.store.layout import RunPaths

pytestmark = [pytest.mark.slow, pytest.mark.full]
ALL = sorted(READERS)
RANKS = 2


def make_run(folder: Path, created_at: float | None = None) -> RunPaths:
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    paths.make_folders()
    document = {
        "run": folder.name,
        "name": "a <b>run</b>",
        "marker": f"marker/of {folder.name}",
        "created_at": created_at or time.time(),
        "script": "train.py",
        "arguments": ["--lr", "3e-4", "--token", "<redacted>"],
        "strategy_name": "ddp",
        "strategy": {"dp_replicate": 2, "tp": 1},
        "processes": RANKS,
        "device": "cpu",
        "tokens_per_step": 4096,
        "recipe": None,
    }
    write_json_atomic(paths.run, document)
    watched_by_us = {"phase": "running", "supervisor": processes.identify(os.getpid())}
    write_json_atomic(paths.state, watched_by_us)
    return paths


def append(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def step_line(step: int, rank: int, attempt: int, base: float) -> dict[str, Any]:
    return {
        "step": step,
        "time": base + step,
        "step_seconds": 0.5,
        "backward_at": base + step - 0.25,
        "data_seconds": 0.125,
        "loss": math.nan if step == 7 else attempt + rank / 2 + 1 / 2 ** (step % 8),
        "lr": 0.25 / step,
        "grad_norm": 1.5,
        "memory_bytes": 1_000_000 * (1 + step // 10) + rank,
    }


def train(paths: RunPaths, steps: range, attempt: int = 1) -> None:
    base = read_json(paths.run)["created_at"]
    for rank in range(RANKS):
        append(paths.rank_metrics(rank), (step_line(s, rank, attempt, base) for s in steps))


def sample(paths: RunPaths, numbers: range) -> None:
    base = read_json(paths.run)["created_at"]
    gpu = {"index": 0, "util": 97.0, "memory_bytes": 2**33, "temperature_c": None, "power_w": 650.5}
    append(
        paths.system,
        (
            {"time": base + n, "cpu_percent": n / 2, "net_bytes_per_second": None, "gpus": [gpu]}
            for n in numbers
        ),
    )


def finding(kind: str, step: int) -> dict[str, Any]:
    told = {"evidence": "late by 30 ms.", "cause": "Rank 1 is slow.", "next": "Look at rank 1."}
    place = {"rank": 1, "step": step, "seen_at": 1.7e9 + step, "cleared_at": None}
    return {"kind": kind, **told, "confidence": 0.9, "severity": "warning", **place}


def end(paths: RunPaths, outcome: str = "succeeded") -> None:
    document = {"outcome": outcome, "message": "60 steps.", "ended_at": time.time()}
    write_json_atomic(paths.exit, document)


def feed(paths: RunPaths, name: str, *options: str, check: bool = True) -> dict[str, Any]:
    command = [sys.executable, "-m", "workbench.observe.trackers", str(paths.directory)]
    done = subprocess.run(
        [*command, "--to", name, *options], capture_output=True, text=True, check=False
    )
    if not check:
        return {"rc": done.returncode, "error": done.stderr}
    assert done.returncode == 0, done.stderr
    return {} if "--follow" in options else json.loads(done.stdout.splitlines()[-1])


def read(paths: RunPaths, name: str) -> Kept:
    with warnings.catch_warnings():  # of the packages among themselves
        warnings.simplefilter("ignore")
        return READERS[name](trackers.default_folder(paths, name), paths.directory.name)


def expected(paths: RunPaths) -> dict[str, list[tuple[int, float, float]]]:
    """The series, worked out from the files line by line."""
    lines = [list(iter_lines(paths.rank_metrics(rank))) for rank in range(RANKS)]
    series: dict[str, list[tuple[int, float, float]]] = {}

    def add(name: str, step: int, value: float, at: float) -> None:
        series.setdefault(name, []).append((step, value, at))

    peaks: dict[int, int] = {}
    for both in zip(*lines, strict=True):
        step, at = both[0]["step"], both[0]["time"]
        add("loss", step, sum(line["loss"] for line in both) / RANKS, at)
        for name in ("lr", "grad_norm", "step_seconds"):
            add(name, step, both[0][name], at)
        add("tokens_per_second", step, 8192.0, at)
        add("data_share", step, 0.25, at)
        for rank, line in enumerate(both):
            if peaks.get(rank) != line["memory_bytes"]:
                peaks[rank] = line["memory_bytes"]
                add(f"memory_bytes/rank-{rank}", step, peaks[rank], at)
    for number, line in enumerate(iter_lines(paths.system), start=1):
        add("system/cpu_percent", number, line["cpu_percent"], line["time"])
        for name in ("util", "memory_bytes", "power_w"):
            add(f"system/gpu0/{name}", number, line["gpus"][0][name], line["time"])
    for rank in range(RANKS):
        tail = f"/rank-{rank}" if rank else ""
        for line in iter_lines(paths.rank_said(rank)):
            add(f"said/accuracy{tail}", line["step"], line["accuracy"], line["time"])
    return series


def iter_lines(path: Path) -> list[dict[str, Any]]:
    return LineReader(path).read()


def assert_same(kept: Kept, paths: RunPaths) -> None:
    wanted = expected(paths)
    assert set(kept.series) == set(wanted)
    for name, points in wanted.items():
        found = kept.series[name]
        assert [point[0] for point in found] == [point[0] for point in points], name
        for (step, value, at), (_, wanted_value, wanted_at) in zip(found, points, strict=True):
            number = float(value)  # Trackio keeps NaN as text
            same = math.isclose(number, wanted_value, rel_tol=1e-7)  # float32 in TensorBoard
            assert same or (math.isnan(number) and math.isnan(wanted_value)), (name, step)
            assert at == pytest.approx(wanted_at, abs=0.002), (name, step)


@pytest.mark.parametrize("name", ALL)
def test_late_attach_then_going_on_then_a_cut_back(tmp_path: Path, name: str) -> None:
    paths = make_run(tmp_path / "run-1")
    train(paths, range(1, 31))
    sample(paths, range(1, 6))
    base = read_json(paths.run)["created_at"]
    for rank in range(RANKS):
        said = [{"step": step, "time": base + step, "accuracy": step / 64} for step in (5, 10, 25)]
        append(paths.rank_said(rank), [line | {"note": "text", "best": True} for line in said])
    write_json_atomic(paths.findings, {"findings": [finding("straggler", 12)]})

    told = feed(paths, name)  # late: everything is filled in from step 1
    assert (told["steps"], told["samples"], told["notes"]) == (30, 5, 1)
    assert not told["ended"]
    kept = read(paths, name)
    assert_same(kept, paths)
    assert len(kept.notes) == 1
    assert "straggler on rank 1" in kept.notes[0]
    assert "Look at rank 1." in kept.notes[0]

    train(paths, range(31, 41))  # it continues, is cut back to step 20, and continues differently
    sample(paths, range(6, 9))
    feed(paths, name)  # a second time: the new steps, and nothing twice
    kept = read(paths, name)
    assert_same(kept, paths)
    assert len(kept.notes) == 1
    for rank in range(RANKS):
        cut_after(paths.rank_metrics(rank), 20, tmp_path / "lost")
        cut_after(paths.rank_said(rank), 20, tmp_path / "lost-said")
    began = base + 100
    append(
        paths.attempts,
        [
            {"attempt": 1, "event": "start", "time": base, "first_step": 0},
            {"attempt": 1, "event": "end", "time": base + 99, "last_step": 40},
            {"attempt": 2, "event": "start", "time": began, "first_step": 20},
        ],
    )
    train(paths, range(21, 61), attempt=2)
    for rank in range(RANKS):
        append(paths.rank_said(rank), [{"step": 22, "time": began + 1, "accuracy": 0.75}])
    end(paths)
    told = feed(paths, name)
    assert told["ended"]
    assert told["steps"] == 60
    kept = read(paths, name)
    assert_same(kept, paths)
    assert any("run succeeded" in note and "60 steps." in note for note in kept.notes)
    if name == "tensorboard":
        assert "| strategy.dp_replicate | `2` |" in kept.parameter_text
        assert "| arguments | `--lr 3e-4 --token <redacted>` |" in kept.parameter_text
    else:
        assert kept.parameters["strategy.dp_replicate"] == "2"
        assert kept.parameters["arguments"] == "--lr 3e-4 --token <redacted>"

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    feed(paths, name)  # an ended run that was fed to its end is left alone
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {str(path) for path in before.keys() ^ after.keys()} == set()
    (paths.directory / "trackers" / f"{name}.json").unlink()  # lost: all is fed again, once
    feed(paths, name)
    assert_same(read(paths, name), paths)


@pytest.mark.parametrize("name", ALL)
def test_names_in_any_script_stay_apart(tmp_path: Path, name: str) -> None:
    paths = make_run(tmp_path / "run-1")
    train(paths, range(1, 4))
    line = {"step": 3, "time": read_json(paths.run)["created_at"] + 3.1}
    append(paths.rank_said(0), [line | {"损失/训练": 1.0, "损失/验证": 2.0}])
    end(paths)
    feed(paths, name)
    series = read(paths, name).series
    told = [[value for _, value, _ in series[f"said/损失/{part}"]] for part in ("训练", "验证")]
    assert told == [[1.0], [2.0]]


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])  # taken back; all fed again
def test_of_steps_that_the_script_does_again_the_last_pass_is_kept(
    tmp_path: Path, name: str
) -> None:
    paths = make_run(tmp_path / "run-1")
    base = read_json(paths.run)["created_at"]

    def say(rank: int, begun: float, *steps: int) -> None:
        said = ({"step": step, "time": begun + step + 0.1, "accuracy": begun} for step in steps)
        append(paths.rank_said(rank), said)

    train(paths, range(1, 31))
    for rank in range(RANKS):
        say(rank, base, 10, 22, 30)
    feed(paths, name)
    for rank in range(RANKS):  # from step 30 back to step 20
        lines = [step_line(step, rank, 2, base + 100) for step in range(21, 41)]
        lines[0]["rewound_from"] = 30
        append(paths.rank_rewinds(rank), [lines[0]])
        append(paths.rank_metrics(rank), lines)
        say(rank, base + 100, 22, 40)
    end(paths)
    feed(paths, name)
    again = read(paths, name)
    (paths.directory / "trackers" / f"{name}.json").unlink()
    feed(paths, name)  # as if it had been fed at the end alone
    for kept in (again, read(paths, name)):
        losses = {step: value for step, value, _ in kept.series["loss"]}
        assert len(kept.series["loss"]) == len(losses) == 40
        assert losses[20] < 2 < losses[21]  # the second pass has higher ones
        told = [(step, at) for step, _, at in kept.series["said/accuracy"]]
        assert [step for step, _ in told] == [10, 22, 40]
        assert told[1][1] == pytest.approx(base + 122.1, abs=0.002)


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])  # MLflow: see the lost state above
def test_a_feeder_that_is_killed_leaves_no_doubles(tmp_path: Path, name: str) -> None:
    paths = make_run(tmp_path / "run-1")
    steps = 5_000
    train(paths, range(1, steps))
    state = paths.directory / "trackers" / f"{name}.json"
    process = subprocess.Popen(trackers.follow_command(paths, name))
    until(state.exists, 60, "the first part was fed")
    train(paths, range(steps, 2 * steps))
    time.sleep(1.5)  # into the writing of the second part
    process.kill()
    process.wait()
    end(paths)
    assert feed(paths, name)["steps"] == 2 * steps - 1
    kept = read(paths, name)
    assert [step for step, *_ in kept.series["loss"]] == list(range(1, 2 * steps))


def test_a_living_run_is_followed_to_its_end(store: Path) -> None:
    run = wb.launch(
        "gpt",
        ["--steps", "100000", "--size", "1", "--seq-len", "32"],
        processes=2,
        cpu=True,
        store=store,
        warm=True,
    )
    paths = RunPaths(run.directory)
    with contextlib.ExitStack() as started:
        feeders = [
            started.enter_context(subprocess.Popen(trackers.follow_command(paths, name)))
            for name in ("tensorboard", "wandb")
        ]
        started.callback(run.stop, now=True)  # then they end, too
        until((paths.directory / "trackers" / "tensorboard.json").exists, 60)
        busy = feed(paths, "tensorboard", check=False)
        assert busy["rc"] == 2
        assert "Another process feeds" in busy["error"]
        run.wait(steps=40)
        run.stop()
        assert [feeder.wait(240) for feeder in feeders] == [0, 0]
    losses = [(row["step"], row["loss"]) for row in run.metrics()]
    assert len(losses) >= 40
    for name in ("tensorboard", "wandb"):
        kept = read(paths, name)
        assert [step for step, *_ in kept.series["loss"]] == [step for step, _ in losses]
        values = [value for _, value, _ in kept.series["loss"]]
        assert values == pytest.approx([loss for _, loss in losses], rel=1e-6)
        assert any("run stopped" in note for note in kept.notes)
        assert len(kept.series["system/cpu_percent"]) == pytest.approx(
            len(iter_lines(paths.system)),
            abs=1,  # the first sample has no rate yet
        )


@pytest.mark.parametrize(("outcome", "is_preempted"), [("preempted", True), ("failed", False)])
def test_wandb_tells_a_preempted_run_from_a_failed_one(
    outcome: str, *, is_preempted: bool, tmp_path: Path
) -> None:
    paths = make_run(tmp_path / "run-1")
    train(paths, range(1, 4))
    end(paths, outcome)
    feed(paths, "wandb")
    (file,) = trackers.default_folder(paths, "wandb").rglob("*.wandb")
    kinds = dict(records(file))
    assert ("preempting" in kinds) is is_preempted
    assert kinds["exit"].exit_code == 1


def test_a_tracker_that_fails_is_logged_and_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run(tmp_path / "run-1")
    train(paths, range(1, 11))
    end(paths)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file stands where the folder should be")
    monkeypatch.setattr(feeding, "_RETRY_SECONDS", (0.01, 0.01))
    with pytest.raises(WorkbenchError, match="failed 2 times") as caught:
        trackers.feed(paths, "tensorboard", folder=blocked)
    typed = f"workbench track {paths.directory} --to tensorboard --folder {blocked}"
    assert str(caught.value).endswith(typed)
    assert "NotADirectoryError" in trackers.log_path(paths, "tensorboard").read_text()
    blocked.unlink()
    trackers.feed(paths, "tensorboard", folder=blocked)  # another folder: kept apart by run
    found = READERS["tensorboard"](blocked / "run-1", "run-1")
    assert [step for step, *_ in found.series["loss"]] == list(range(1, 11))


def test_names_are_checked_and_a_missing_package_says_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trackers.names() == tuple(ALL)
    for name in ALL:
        trackers.check(name)
    with pytest.raises(UsageError, match="Did you mean tensorboard"):
        trackers.check("tensorbord")
    monkeypatch.setattr(places, "find_spec", lambda module: None)
    with pytest.raises(UsageError, match="-m pip install mlflow-skinny sqlalchemy alembic"):
        trackers.check("mlflow")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="is not a run directory"):
        trackers.feed(RunPaths(tmp_path), "tensorboard")


def test_broken_files_neither_stop_nor_mislead_a_feeder(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run-1")
    train(paths, range(1, 6))
    for path in (paths.rank_metrics(0), paths.system, paths.rank_said(0), paths.attempts):
        with path.open("ab") as file:
            file.write(b'\x00broken\n[1, 2]\n{"step": "x", "time": null, "loss": {}}\n{"step": 9')
    paths.findings.write_text('{"findings": [3, {"kind": null, "step": "x", "seen_at": "y"}]}')
    (paths.directory / "trackers").mkdir()
    (paths.directory / "trackers" / "tensorboard.json").write_text('{"schema": 1, "step": "x"}')
    end(paths)
    trackers.feed(paths, "tensorboard")
    kept = read(paths, "tensorboard")
    assert [step for step, *_ in kept.series["loss"]] == [1, 2, 3, 4, 5]
    assert os.listdir(paths.directory / "trackers" / "tensorboard")
