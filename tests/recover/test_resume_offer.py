"""What `resumption` says of a run: refused, go on, or begin again. Nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.compare.made_runs import make_run
from tests.storage.conftest import save
from workbench.launching.prepare.acceptance import accept
from workbench.launching.resume.resumable import resumption
from workbench.recipes import recipes
from workbench.store.layout import RunPaths


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


def test_whatever_is_wrong_is_an_answer(run: RunPaths) -> None:
    run.run.write_text("[]")
    offer = resumption(run)
    assert offer.how == ""
    assert offer.why_not
