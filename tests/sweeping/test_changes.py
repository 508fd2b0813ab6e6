"""A sweep that is resumed with an edited script says which trials that are."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the train extra is not installed")
pytest.importorskip("optuna", reason="Optuna is not installed")

from tests.cli.conftest import Command, command  # noqa: F401
from tests.sweeping.plans import sweep_of_results
from workbench.launching.prepare.options import LaunchOptions
from workbench.sweeping import find
from workbench.sweeping.changes import changed_for, tell_changes
from workbench.sweeping.plan import SweepOptions
from workbench.sweeping.prepared import make, prepare_sweep


def test_from_which_trial_on_the_script_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
    script.write_text(source)
    options = LaunchOptions(store=tmp_path / "runs", cpu=True, name="lr")
    files = make(prepare_sweep("train.py", (), SweepOptions(grid={"lr": "1,2"}), options))
    trials = find("lr", tmp_path / "runs").trials()
    assert tell_changes(files, trials) == []
    script.write_text(f"{source}print(1)\n")
    (note,) = tell_changes(files, trials)
    assert note.startswith("From trial 0 on: train.py has changed since the sweep began.")
    assert tell_changes(files, trials) == []  # told once
    assert find("lr", tmp_path / "runs").document()["notes"] == [note]
    assert changed_for(files.changes(), 3) == "train.py has changed"
    script.write_text(source)
    (note,) = tell_changes(files, trials)
    assert note == "From trial 0 on script and machine are again those that the sweep began with."
    assert changed_for(files.changes(), 3) == ""


def test_trials_before_a_change_are_not_marked(store: Path, command: Command) -> None:  # noqa: F811
    sweep_of_results(store)
    files = find("lr", store)._files
    files.tell_change({"trial": 5, "now": {"file a.py": "1"}, "words": ["a.py has changed"]})
    shown = " ".join(command("sweep", "show", "lr", "--store", str(store)).out.split())
    assert "From trial 5 on: a.py has changed since the sweep began." in shown
    assert "loss, mean of last tenth" in shown
    assert [bool(changed_for(files.changes(), trial)) for trial in (4, 5)] == [False, True]
