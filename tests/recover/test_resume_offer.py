"""What `resumption` says of a run: refused, go on, or begin again. Nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.cli.conftest import Command, command  # noqa: F401  (a fixture)
from tests.compare.made_runs import make_run
from tests.storage.conftest import save
from workbench.launching.prepare.acceptance import accept
from workbench.launching.resume.resumable import resumption
from workbench.recipes import recipes
from workbench.store.layout import RunPaths
from workbench.store.status import Status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A recipe's run that was stopped, in a store and a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    paths = make_run(
        tmp_path / "runs",
        "gpt-2",
        steps=40,
        outcome="stopped",
        recipe="gpt",
        script=str(recipes()["gpt"].path),
        command=[sys.executable, "gpt.py"],
        environment={"WORKBENCH_RUN_DIR": str(tmp_path / "runs" / "gpt-2")},
        working_directory=str(tmp_path),
    )
    accept(paths)  # with the key of that home
    return paths


def test_a_run_that_saved_nothing_starts_again_from_the_beginning(run: RunPaths) -> None:
    again = "Start again from the beginning with: workbench resume gpt-2"
    assert resumption(run) == ("", again)
    assert resumption(run, {"outcome": "stopped"}) == ("", again), "as the supervisor asks"


def test_a_run_with_a_checkpoint_goes_on(run: RunPaths) -> None:
    save(run, 20, size=100)
    assert resumption(run) == ("", "Go on with: workbench resume gpt-2")


def test_a_run_that_has_finished_is_refused(run: RunPaths) -> None:
    offer = resumption(run, {"outcome": "succeeded", "message": "Finished after 40 steps."})
    assert offer.how == ""
    assert offer.why_not.startswith("gpt-2 has finished: Finished after 40 steps.")
    assert offer.why_not.endswith("To train again: workbench rerun gpt-2")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("p.add_argument('--resume')", "give it more: workbench resume own -- --steps N"),
        ("p.add_argument('--lr')", "To train again: workbench rerun own"),
    ],
)
def test_more_steps_are_offered_only_to_a_script_that_can_go_on(
    run: RunPaths, tmp_path: Path, source: str, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import argparse\np = argparse.ArgumentParser()\n{source}\n")
    own = make_run(
        tmp_path / "runs",
        "own",
        script=str(script),
        command=[sys.executable, str(script)],
        environment={"WORKBENCH_RUN_DIR": str(tmp_path / "runs" / "own")},
        working_directory=str(tmp_path),
    )
    accept(own)
    save(own, 20, size=100)
    why = resumption(own, {"outcome": "succeeded", "message": "Finished after 20 steps."}).why_not
    assert said in why


def test_a_living_run_tells_in_time_that_it_cannot_be_resumed(
    run: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,  # noqa: F811
) -> None:
    monkeypatch.setattr(wb.Run, "status", Status(state="running", outcome=None, message=None))
    save(run, 20, size=100)
    line = "once it has ended, resume with: workbench resume gpt-2"
    assert line in command("checkpoints", "gpt-2").out
    why = "train.py has no option"
    monkeypatch.setattr(wb.Run, "why_not_resumable", lambda _: why)
    said = command("checkpoints", "gpt-2").out
    assert why in said
    assert "resume with" not in said


def test_a_run_without_a_step_says_so(run: RunPaths, command: Command) -> None:  # noqa: F811
    for file in run.metrics.glob("*"):
        file.unlink()
    assert "gpt-2 has recorded no step yet." in command("metrics", "gpt-2").err


def test_whatever_is_wrong_is_an_answer(run: RunPaths) -> None:
    run.run.write_text("[]")
    offer = resumption(run)
    assert offer.how == ""
    assert offer.why_not
