"""Rehearsed runs as every face reads them: right hours and dollars, and never a measurement."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from workbench_widgets import Checkpoints

import workbench as wb
from tests.conftest import until
from tests.rehearsing.__main__ import inside, one, planned
from tests.rehearsing.recount import recount
from workbench.cli.cost_values import CostAnswer
from workbench.cli.rehearse import _rehearsed, _say, _watched
from workbench.compare.calibration.stack import calibrate
from workbench.compare.runs import compare as set_beside
from workbench.observe.devices import read_devices
from workbench.pages.run_rows import read_table
from workbench.rehearsing import Rehearsal, rehearse
from workbench.rehearsing.driver import library
from workbench.rehearsing.player import Player
from workbench.rehearsing.rehearse import prepare
from workbench.store.layout import RunPaths


@pytest.fixture(scope="module")
def plan() -> CostAnswer:
    """A day on two of the machines."""
    return planned("1B", nodes=2)


@pytest.fixture(scope="module")
def rehearsed(plan: CostAnswer, tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """With an overheated and a lost GPU."""
    faults = ("throttle@2h:3", "gpu-lost@5h:1")
    how = Rehearsal(seed=4, faults=faults, name="spot run")
    return rehearse(plan.job, plan.cost, how, store=str(tmp_path_factory.mktemp("runs")))


def test_it_ends_as_its_journals_say(plan: CostAnswer, rehearsed: RunPaths) -> None:
    run, found = wb.Run(rehearsed), recount(rehearsed.directory)
    view = run.view()
    assert run.outcome == "succeeded"
    assert view["steps"] == view["steps_total"] == plan.cost.job.steps
    assert found.hours == pytest.approx(view["elapsed_seconds"] / 3600, rel=1e-4)
    assert found.usd == pytest.approx(view["usd_so_far"], abs=0.02)
    assert found.interruptions == view["restarts"] >= 1
    rows = run.metrics()
    assert {row["step"] for row in rows if row["step"] > plan.cost.job.steps} == set()
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})


def test_its_findings_are_those_of_its_faults(rehearsed: RunPaths) -> None:
    kinds = {found.kind for found in wb.Run(rehearsed).findings()}
    assert (
        {"thermal-throttling", "gpu-lost"}
        <= kinds
        <= {*("thermal-throttling", "gpu-lost", "slow-clock", "low-utilisation")}
    )


def test_a_hot_card_is_a_finding_as_long_as_it_is_hot(rehearsed: RunPaths) -> None:
    (hot,) = (one for one in wb.Run(rehearsed).findings() if one.kind == "thermal-throttling")
    assert hot.cleared_at is not None
    assert 1500 <= hot.cleared_at - hot.seen_at <= 1860  # of half an hour


def test_faults_of_another_machine_are_found_there(plan: CostAnswer, tmp_path: Path) -> None:
    faults = ("throttle@2h:1:3", "gpu-lost@5h:1:6")
    how = Rehearsal(seed=4, faults=faults)
    found = wb.Run(rehearse(plan.job, plan.cost, how, store=str(tmp_path))).findings()
    named = {(one.kind, one.node, one.gpu, one.rank) for one in found if one.node is not None}
    assert {("thermal-throttling", 1, 3, 11), ("gpu-lost", 1, 6, 14)} <= named
    (lost,) = (one for one in found if one.kind == "gpu-lost" and one.gpu == 6)
    assert lost.evidence.startswith("gpu6 of node 1 returned no reading")


def test_it_is_the_same_again(plan: CostAnswer, rehearsed: RunPaths, tmp_path: Path) -> None:
    faults = ("throttle@2h:3", "gpu-lost@5h:1")
    again = rehearse(plan.job, plan.cost, Rehearsal(seed=4, faults=faults), store=str(tmp_path))
    found, before = (astuple(recount(one.directory)) for one in (again, rehearsed))
    assert found == pytest.approx(before, rel=1e-5)


def test_every_face_says_that_it_is_a_rehearsal(rehearsed: RunPaths) -> None:
    run, store = wb.Run(rehearsed), wb.Store(rehearsed.directory.parent)
    assert run.view()["rehearsal"] is True
    assert run.summary()["rehearsal"] is True
    assert json.loads(rehearsed.state.read_text())["rehearsal"] is True
    assert "Rehearsal: nothing was trained" in run.status.message
    assert "rehearsal: nothing was trained" in rehearsed.report.read_text()
    assert [row["rehearsal"] for row in wb.runs(store.root)] == [True]
    assert [row["rehearsal"] for row in read_table(store.root)["rows"]] == [True]
    assert [one["text"] for one in run.view()["grid"]["outliers"]] == []


def test_its_checkpoints_are_shown_as_not_written(rehearsed: RunPaths) -> None:
    lines = [json.loads(line) for line in rehearsed.rehearsal.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["event"] == "saved"]
    shown = wb.Run(rehearsed).view()["checkpoints"]
    assert steps
    assert [one["step"] for one in shown] == steps[::-1][:20]
    assert "rehearsed, not written" in rehearsed.report.read_text()
    assert "rehearsed, not written" in repr(Checkpoints(wb.Run(rehearsed)))


def test_a_fault_after_the_end_is_told(plan: CostAnswer, tmp_path: Path) -> None:
    how = Rehearsal(faults=("spot@1h", "gpu-lost@900d:1"))
    (told,) = prepare(plan.job, plan.cost, how, store=str(tmp_path)).journal.run.warnings
    assert told.startswith("--fault gpu-lost@900d:1 does not happen: the run ends after ")


def test_its_last_line_can_be_typed(
    rehearsed: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run = wb.Run(rehearsed)
    _say(run, {**run.summary(), **_rehearsed(run.document)})
    folder = rehearsed.directory.parent
    assert f"workbench show spot-run --store {folder}" in capsys.readouterr().out


def test_a_full_disk_ends_one_that_is_watched(rehearsed: RunPaths) -> None:
    def play() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        _watched(wb.Run(rehearsed), cast("Player", SimpleNamespace(play=play)))


def test_it_is_no_measurement(rehearsed: RunPaths, tmp_path: Path) -> None:
    run, store = wb.Run(rehearsed), rehearsed.directory.parent
    summary = run.summary()
    assert summary["comparison"]["rows"] == []
    assert summary["predicted"] == {}
    assert not [one for one in summary["peak_memory_bytes"] if one is not None]
    with pytest.raises(wb.UsageError, match="is a rehearsal"):
        calibrate(run=run.id, store=str(store))
    for act in (run.resume, run.rerun, run.fork):
        with pytest.raises(wb.UsageError, match="is a rehearsal"):
            act()
    with pytest.raises(wb.UsageError, match="is a rehearsal"):
        wb.export(run, "slurm")
    assert not list(store.glob(".*calibration*"))


def test_beside_a_run_that_trained_it_is_named(
    plan: CostAnswer, rehearsed: RunPaths, tmp_path: Path
) -> None:
    from tests.compare.made_runs import make_run

    make_run(tmp_path, "real", steps=20)
    rehearse(plan.job, plan.cost, Rehearsal(seed=5), store=str(tmp_path))
    beside = set_beside(wb.Store(tmp_path), ["real", "rehearsal"])
    row = next(row for row in beside.results if row["what"] == "rehearsal")
    assert row["values"] == {"real": "trained", "rehearsal": "rehearsal: nothing was trained"}


def test_a_stop_ends_it_where_it_is(plan: CostAnswer, tmp_path: Path) -> None:
    player = prepare(plan.job, plan.cost, Rehearsal(speed=900.0), store=str(tmp_path))
    thread = threading.Thread(target=player.play)
    thread.start()
    run = wb.Run(player.journal.paths)
    until(lambda: run.state == "running" and run.view().get("steps", 0) > 3)
    assert all(not device.holders for device in read_devices(tmp_path, cuda=False))
    run.stop()
    thread.join()
    assert run.outcome == "stopped"
    assert recount(run.directory).usd <= plan.cost.usd


@pytest.mark.parametrize("seed", range(4))
def test_traces_that_the_planner_did_not_see(plan: CostAnswer, tmp_path: Path, seed: int) -> None:
    _, found = one(plan, seed, tmp_path)
    fits = inside(plan.cost, found)
    assert fits["hours"]
    assert fits["dollars"]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)  # two CPU seconds each
def test_most_rehearsals_of_a_long_run_end_inside_its_range(tmp_path: Path) -> None:
    """Of 25; ``python -m tests.rehearsing`` plays a hundred."""
    long = planned()
    held: dict[str, int] = {}
    for seed in range(25):
        _, found = one(long, seed, tmp_path)
        for what, fits in inside(long.cost, found).items():
            held[what] = held.get(what, 0) + fits
    assert min(held.values()) >= 20, held


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "fault"), [(1, "ecc@30m:2"), (2, "ecc@30m:1:2")])
def test_the_driver_tells_of_memory_errors(tmp_path: Path, nodes: int, fault: str) -> None:
    """Of the first machine by itself, of another one as its agent would."""
    if library.compiler() is None:
        pytest.skip("no C compiler (cc)")
    words = ["--model", "llama-3.2-1b", "--gpu", "h100", "--gpus", "4", "--strategy", "ddp"]
    words += ["--tokens", "5B", "--usd-per-hour", "10", "--fault", fault, "--json"]
    words += ["--nodes", str(nodes)]
    made = subprocess.run(
        [sys.executable, "-m", "workbench.cli", "rehearse", *words, "--store", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    summary: dict[str, Any] = json.loads(made.stdout)
    assert summary["rehearsal_of"]["driver"] is True
    assert {"xid-48", "ecc-errors"} <= {one["kind"] for one in summary["findings"]}
    assert {one["rank"] for one in summary["findings"]} == {4 * (nodes - 1) + 2}
    assert {one["node"] for one in summary["findings"]} == {nodes - 1}
