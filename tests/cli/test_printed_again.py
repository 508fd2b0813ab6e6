"""What commands print for people to type or to load is whole, and does what it says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import workbench as wb
from tests.cli.conftest import Command
from workbench.cli.measuring import commands
from workbench.cli.rehearse_values import RehearseOptions, rehearsed
from workbench.cli.run_commands import without_bars
from workbench.cli.sweep import _short, again
from workbench.measuring.measure import Measurement
from workbench.store.commands import command_in
from workbench.sweeping import Sweep

JOB = ("--model", "gpt2", "--gpu", "h100", "--gpus", "2", "--steps", "10")


def test_a_fix_with_brackets_is_whole(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = "pip install 'training-workbench[lab]'"
    check = {"name": "notebook", "ok": False, "found": "missing: [a]", "fix": fix}
    monkeypatch.setattr(wb, "doctor", lambda _: {"ok": False, "checks": [check]})
    out = command("doctor").out
    assert fix in out
    assert "missing: [a]" in out


def test_a_long_line_of_a_log_takes_no_time() -> None:
    long = "x" * 2_000_000
    assert without_bars(f"{long}\n1%\r2%\n") == f"{long}\n2%\n"
    assert without_bars("a\r\nb\r") == "a\r\nb\r"


def test_the_best_trial_is_trained_again_with_all_that_it_had(tmp_path: Path) -> None:
    """A rerun has its variables and folder, too, which a launch of its arguments would lack."""
    sweep = SimpleNamespace(root=tmp_path, run=lambda _: SimpleNamespace(id="lr-trial-001"))
    words = again(cast("Sweep", sweep), 1)
    assert words == ["workbench", "rerun", "lr-trial-001", "--store", str(tmp_path)]


def test_what_was_measured_is_named_as_it_was_started() -> None:
    about = SimpleNamespace(script="/w/pkg/train.py", arguments=("--hidden", "512"))
    made = cast("Measurement", about)
    memory, plan, launch = commands(made, "pkg.train", module=True)
    assert memory.startswith("workbench memory --like /w/pkg/train.py --gpu")
    assert plan.startswith("workbench plan --like /w/pkg/train.py --tokens")
    assert launch == "workbench launch -m pkg.train --dry-run -- --hidden 512"
    about.arguments = ()
    assert commands(made, "my train.py", module=False)[2] == (
        "workbench launch 'my train.py' --dry-run"
    )


def test_a_measurement_in_another_store_is_looked_for_there() -> None:
    made = cast("Measurement", SimpleNamespace(script="train.py", arguments=()))
    lines = commands(made, "train.py", module=False, root=Path("/my runs"))
    assert all(line.startswith("WORKBENCH_STORE='/my runs' workbench ") for line in lines)


def test_the_store_is_named_unless_it_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_STORE", raising=False)
    assert command_in(tmp_path / "runs", "stop", "a") == "workbench stop a"
    other = tmp_path / "my runs"
    assert shlex.split(command_in(other, "stop", "a"))[-2:] == ["--store", str(other)]


def test_whole_numbers_are_shown_whole() -> None:
    assert [_short(text) for text in ("20240101", "-20240101", "0.00031415926")] == [
        "20240101",
        "-20240101",
        "0.0003142",
    ]


@pytest.mark.parametrize("name", ["failure_gpu_hours", "restart_minutes", "idle_hours"])
def test_an_option_that_the_plan_has_itself_is_refused(name: str) -> None:
    given: dict[str, Any] = {name: 99.0}
    with pytest.raises(wb.UsageError, match=name):
        rehearsed(RehearseOptions(plan_file=Path("plans.json"), **given))


def test_what_a_rehearsal_is_given_is_refused_by_its_name() -> None:
    with pytest.raises(wb.UsageError, match="checkpoint_minutes must be above 0"):
        rehearsed(RehearseOptions(plan_file=Path("plans.json"), checkpoint_minutes=-1.0))


def test_a_rehearsal_in_the_background_fails_before_it_is_left(
    command: Command, tmp_path: Path
) -> None:
    words = ("rehearse", *JOB, "--store", str(tmp_path / "runs"), "--background")
    assert command(*words, "--json").code == 2
    refused = command(*words, "--fault", "nonsense")
    assert refused.code == 2
    assert "nonsense" in refused.err
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").write_text("a file stands where the store should be")
    refused = command(*words)
    assert refused.code == 2
    assert str(tmp_path / "runs") in refused.err
    assert "attach" not in refused.err


def test_a_runs_script_is_shown_as_it_is_typed(old_store: Path) -> None:
    place = old_store / "stopped" / "run.json"
    record = json.loads(place.read_text()) | {"arguments": ["--data", "my chats.jsonl"]}
    place.write_text(json.dumps(record))
    shown = wb.attach("stopped", old_store).summary()["script"]
    assert shlex.split(shown)[-2:] == ["--data", "my chats.jsonl"]
