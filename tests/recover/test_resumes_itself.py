"""A script that loads its own latest checkpoint, untold, after an automatic restart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS
from workbench.recover.policy import Recovery
from workbench.recover.script_checkpoints import states_of_script
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths
from workbench.store.starts import read_starts

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
ALL = list(range(1, 21))


def launch(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> wb.Run:
    monkeypatch.chdir(tmp_path)
    recovery = Recovery(restarts=4, backoff_seconds=0.2)
    run = wb.launch(
        SCRIPTS / "resumes_itself.py",
        [*words, "--out", "out"],
        cpu=True,
        processes=2,
        store=store,
        recovery=recovery,
        warm=True,
    )
    assert run.wait(120) == "succeeded", (run.status, run.logs(tail=30))
    return run


def steps_of(path: Path) -> list[int]:
    return [line["step"] for line in LineReader(path).read()]


@pytest.mark.parametrize(
    ("victim", "optimizer"), [("rank", "adamw"), ("launcher", "sgd"), ("all", "adamw")]
)
def test_its_attempt_begins_at_the_checkpoint_that_it_loaded(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, optimizer: str
) -> None:
    """Each step is in the record, once; ranks whose launcher is killed go on for a moment."""
    words = ("--victim", victim, "--dies-at", "10", "15", "--optimizer", optimizer)
    run = launch(store, tmp_path, monkeypatch, *words)
    paths = RunPaths(run.directory)
    text = (paths.logs / "rank-0.log").read_text()
    passes = [re.findall(r"^step (\d+)", part, re.MULTILINE) for part in text.split("--- attempt")]
    kept = [int(steps[0]) - 1 for steps in passes]
    assert kept[1] in {6, 12}
    assert [line["first_step"] for line in read_starts(paths)] == kept
    told = [line for line in run.view()["attempts"] if line["event"] == "start"]
    assert [line["first_step"] for line in told] == kept
    for rank in range(2):
        assert steps_of(paths.rank_metrics(rank)) == ALL
        for attempt, step in enumerate(kept[1:], 1):  # its last lines may not have been written
            lost = steps_of(paths.metrics / f"rank-{rank}.lost.{attempt}")
            assert min(lost, default=step + 1) == step + 1
    assert [(saved.step, saved.abandoned) for saved in states_of_script(paths)] == [(18, False)]


def test_a_script_that_loads_nothing_begins_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--dies-at", "10", "--from-the-beginning")
    paths = RunPaths(launch(store, tmp_path, monkeypatch, *words).directory)
    assert [line["first_step"] for line in read_starts(paths)] == [0, 0]
    assert steps_of(paths.rank_metrics(0)) == ALL
    assert steps_of(paths.metrics / "rank-0.lost.1")[:6] == ALL[:6]
