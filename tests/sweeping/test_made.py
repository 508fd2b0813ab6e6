"""What a sweep writes before its controller starts: nothing is started here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra sweep is not installed")

import workbench as wb
from tests.sweeping.plans import sweep_of_results
from workbench.cli.sweep import _show_prepared, list_sweeps
from workbench.errors import ForeignRunError, StoreError
from workbench.launching.prepare.options import LaunchOptions
from workbench.recover.policy import Recovery
from workbench.store.queue_files import QueueFiles
from workbench.store.runs import Store
from workbench.sweeping import damaged, find, sweeps
from workbench.sweeping.files import FOLDER, SweepFiles
from workbench.sweeping.host import Host
from workbench.sweeping.plan import SweepOptions
from workbench.sweeping.prepared import make, prepare_sweep

SCRIPT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
"""


def test_a_folder_of_sweeps_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    assert sweeps(tmp_path) == []
    (tmp_path / FOLDER).write_text("no folder")
    for read in (sweeps, damaged):
        with pytest.raises(StoreError, match=r"The sweeps in .* cannot be read"):
            read(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        find("last", tmp_path)


@pytest.fixture
def shared_umask() -> Iterator[None]:
    """That of a user who has a group of their own (Ubuntu, Fedora): the group may write."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_a_limit_is_said_to_be_of_one_trial(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text(SCRIPT)
    limited = LaunchOptions(cpu=True, processes=1, recovery=Recovery(max_hours=2))
    prepared = prepare_sweep(str(script), (), SweepOptions(grid={"lr": "0.1,0.2"}), limited)
    note = "--max-hours is the limit of each trial: 2 trials may take 4 h 00 min together."
    assert note in prepared.notes


def made(folder: Path, **options: object) -> SweepFiles:
    script = folder / "t.py"
    script.write_text(SCRIPT)
    given = {"store": Store(folder / "runs"), "cpu": True, "processes": 1, **options}
    chosen = SweepOptions(grid={"lr": "0.1,0.2"}, metric="acc", direction="higher")
    return make(prepare_sweep(str(script), (), chosen, LaunchOptions.from_keywords(given)))


@pytest.mark.usefixtures("shared_umask")
def test_an_umask_that_lets_the_group_write_makes_no_sweep_foreign(tmp_path: Path) -> None:
    files = made(tmp_path)
    files.check_own()
    assert files.journal.stat().st_mode & 0o777 == 0o600


def test_a_sweep_whose_folder_is_closed_is_ones_own(tmp_path: Path) -> None:
    files = made(tmp_path)
    files.journal.chmod(0o664)  # as earlier releases left it
    files.check_own()
    files.directory.chmod(0o755)
    with pytest.raises(ForeignRunError, match="others can write to journal"):
        files.check_own()


def test_trials_are_filed_with_the_priority_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = made(tmp_path, priority=7)
    queue = QueueFiles(files.root)
    with queue.locked():
        queue.set(paused=True)
    host = Host(files, files.plan())
    host.file(0, {"lr": "0.1"})
    assert [entry.priority for entry in queue.waiting()] == [7]
    (waiting,) = queue.waiting()
    queue.waits(waiting.run).unlink()  # its filing was cut off
    host.file(0, {"lr": "0.1"})
    assert [entry.priority for entry in queue.waiting()] == [7]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"parameters": 3}', '{"parameters": [], "name": 1}']
)
def test_a_damaged_sweep_hides_no_other(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_of_results(tmp_path)
    broken = tmp_path / FOLDER / "broken"
    broken.mkdir(mode=0o700)
    (broken / "sweep.json").write_text(content)
    assert [sweep.name for sweep in sweeps(tmp_path)] == ["lr"]
    assert find("last", tmp_path).name == "lr"
    assert "is not the plan of a sweep" in damaged(tmp_path)["broken"]
    with pytest.raises(StoreError, match="is not the plan of a sweep"):
        find("broken", tmp_path)
    (tmp_path / FOLDER / "lost").mkdir()
    plan = (tmp_path / FOLDER / "lr" / "sweep.json").read_text()
    (tmp_path / FOLDER / "lost" / "sweep.json").write_text(plan)  # and no journal
    list_sweeps(store=str(tmp_path), as_json=True)
    shown = capsys.readouterr()
    assert [sweep["sweep"] for sweep in json.loads(shown.out)] == ["lr"]
    assert "broken is left out" in shown.err
    assert "lost is left out" in shown.err
    assert not (tmp_path / FOLDER / "lost" / "journal.jsonl").exists(), "a reader writes nothing"


def test_a_dry_run_says_what_is_unknown_and_calls_no_example_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(SCRIPT)
    given = LaunchOptions.from_keywords({"store": Store(tmp_path), "cpu": True, "processes": 1})
    drawn = SweepOptions(random={"lr": "0.1:0.2"}, trials=3, metric="loss")
    prepared = prepare_sweep("t.py", (), drawn, given)
    _show_prepared(prepared)
    shown = capsys.readouterr().out
    assert "\na trial: " in shown
    how = f"workbench measure t.py --store {shlex.quote(str(tmp_path))} -- --lr 0."
    assert f"predicted: n/a; a trial's step time is not known: {how}" in shown
    measured = replace(prepared.first, predicted_time=wb.step_time(wb.Job.of("gpt2", gpu="h100")))
    _show_prepared(replace(prepared, first=measured))
    shown = capsys.readouterr().out
    assert "predicted: n/a; how many steps a trial takes is not known\n" in shown
    tried = SweepOptions(grid={"lr": "0.1,0.2"}, metric="loss")
    _show_prepared(prepare_sweep("t.py", (), tried, given))
    assert "\nfirst trial: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("saving", "noted"),
    [
        ("import torch\ntorch.save({}, 'best.pt')\n", True),
        ("from transformers import Trainer\nTrainer().train()\n", True),
        ("import os, torch\ntorch.save({}, os.environ['WORKBENCH_RUN_DIR'] + '/a.pt')\n", False),
        ("print('nothing is saved')\n", False),
    ],
)
def test_trials_that_may_overwrite_each_others_checkpoints_are_told_before(
    tmp_path: Path,
    saving: str,
    noted: bool,  # noqa: FBT001
) -> None:
    script = tmp_path / "t.py"
    script.write_text(SCRIPT + saving)
    given = {"store": Store(tmp_path / "runs"), "cpu": True, "processes": 1}
    chosen = SweepOptions(grid={"lr": "0.1,0.2"})
    prepared = prepare_sweep(str(script), (), chosen, LaunchOptions.from_keywords(given))
    assert any("t.py saves by itself" in note for note in prepared.notes) is noted
