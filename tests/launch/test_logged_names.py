"""What real scripts log by name, from the rank to every face that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.launch.ranks import Ranks
from workbench.cli.entry import app

pytestmark = pytest.mark.slow
NAMES = ["accuracy", "margin", "lr_seen", "eval/loss", "eval/accuracy", "board/norm"]


def cli(store: Path, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def logged(start: Callable[..., wb.Run]) -> wb.Run:
    pytest.importorskip("tensorboard")
    run = start("logs_names.py", ("40",), processes=2)
    assert run.wait(300) == "succeeded", run.status
    return run


def test_every_name_of_a_two_rank_run_is_seen_in_every_face(logged: wb.Run, store: Path) -> None:
    series = logged.series()
    assert set(series) == set(NAMES)
    assert (series["eval/loss"].last, series["eval/loss"].best_step) == (0.05, 40)
    assert series["eval/loss"].is_validation_loss
    assert series["eval/accuracy"].mean == (0.5, None, 0.5, 0.5)
    assert series["eval/accuracy"].nonfinite_step == 20
    assert series["board/norm"].last == 20.0
    assert logged.series("eval/*").keys() == {"eval/loss", "eval/accuracy"}
    shown = {one["name"] for one in logged.view()["logged"]["series"]}
    assert shown == set(NAMES)

    rows = json.loads(cli(store, "metrics", logged.id, "--keys", "eval/*,loss", "--json"))
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert [row["eval/loss"] for row in rows if row["eval/loss"] is not None] == [
        *(0.2, 0.1, 2 / 30, 0.05)
    ]
    listed = json.loads(cli(store, "metrics", logged.id, "--list", "--json"))
    assert {one["name"] for one in listed} == set(NAMES)
    text = cli(store, "show", logged.id)
    assert "1 NaN or infinite, first at step 20" in text
    report = (logged.directory / "report.html").read_text()
    assert "eval/loss" in report
    assert "board/norm" in report


@pytest.mark.full
def test_trainers_evaluation_is_recorded_once(begin: Callable[..., Ranks]) -> None:
    """Also where Trainer hands the same values to TensorBoard under other names."""
    pytest.importorskip("transformers")
    ranks = begin(
        "hf_trainer.py", "--steps", "6", "--eval-every", "2", "--report-to", "tensorboard"
    )
    assert ranks.wait() == [0], ranks.log()
    lines = [json.loads(line) for line in said(ranks)]
    values = {(line["step"], name) for line in lines for name in line["values"]}
    assert {step for step, name in values if name == "eval_loss"} == {2, 4, 6}
    names = {name for _, name in values}
    assert not any("/" in name for name in names), names
    assert "loss" not in names  # every step has its own


def said(ranks: Ranks) -> list[str]:
    return (ranks.folder / "metrics" / "rank-0.said.jsonl").read_text().splitlines()
