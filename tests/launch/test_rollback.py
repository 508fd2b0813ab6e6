"""Runs that go back by themselves, and runs that stop for what a series shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import SCRIPTS
from tests.diagnose.sample import Replay, row
from workbench.diagnose.instability import InstabilityWatch
from workbench.errors import UsageError
from workbench.launching.supervise.rollback_environment import rollback_environment
from workbench.recipes.skipped_data import data_step
from workbench.recover.policy import Recovery
from workbench.recover.stop_rule import StopWatch, stop_conditions
from workbench.store.layout import RunPaths
from workbench.store.starts import read_attempts

Start = Callable[..., wb.Run]
NAN = float("nan")


def data_of_steps(run: wb.Run) -> list[tuple[int, int]]:
    """Step and the step whose data it had, as rank 0 printed them, all attempts in their order."""
    found = re.findall(r"step (\d+) has the data of (\d+)", run.logs(0))
    return [(int(step), int(data)) for step, data in found]


@pytest.mark.slow
def test_a_run_goes_back_before_a_nan_and_leaves_out_the_data_seen_since(start: Start) -> None:
    pytest.importorskip("torch")
    arguments = ("--steps", "40", "--bad-step", "25", "--step-seconds", "0.1")
    recovery = Recovery(rollback_on=("nan",))
    run = start("bad_data.py", arguments, processes=2, recovery=recovery)
    assert run.wait(240) == "succeeded"
    attempts = read_attempts(RunPaths(run.directory))
    back = attempts[2]
    assert (back["event"], back["attempt"], back["first_step"]) == ("start", 2, 20)
    assert back["why"].startswith("Rolled back: The loss of every rank is NaN at step 25")
    last = back["rollback"]["last_step"]
    assert f"The data of steps 21 to {last} are left out." in back["why"]
    second = data_of_steps(run)[-20:]
    assert second[0] == (21, last + 1)
    assert second[-1] == (40, last + 20)
    view = json.loads((run.directory / "view.json").read_text())
    assert view["attempts"][2]["why"] == back["why"]
    assert "Rolled back" in (run.directory / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.full
def test_it_goes_on_with_half_the_rate_and_only_so_often(start: Start) -> None:
    arguments = ("--steps", "40", "--bad-step", "25", "--step-seconds", "0.1")
    recovery = Recovery(rollback_on=("nan",), rollback_then="lower-lr", max_rollbacks=1)
    run = start("bad_data.py", arguments, processes=2, recovery=recovery)
    assert run.wait(240) == "succeeded"  # the same data spoil it again: then it is left alone
    text = (run.directory / "logs" / "supervisor.log").read_text()
    assert "Not rolled back at step 25: all 1 rollbacks are used up" in text
    lines = (run.directory / "metrics" / "rank-0.jsonl").read_text().splitlines()
    rates = {row["step"]: row["lr"] for row in map(json.loads, lines)}
    assert (rates[20], rates[21]) == (0.01, 0.005)


@pytest.mark.slow
def test_a_run_stops_with_a_checkpoint_for_its_rule(start: Start) -> None:
    pytest.importorskip("torch")
    arguments = ("--steps", "2000", "--step-seconds", "0.1")
    run = start(
        "bad_data.py", arguments, processes=2, recovery=Recovery(stop_when="loss < 1000 for 12")
    )
    assert run.wait(240) == "stopped"
    end = json.loads((run.directory / "exit.json").read_text())
    assert "because loss was < 1000 12 times in a row (--stop-when)" in end["message"]
    assert any(one.name.startswith("step-000") for one in run.checkpoints())


def test_what_could_never_go_back_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('no way to resume')")
    back = Recovery(rollback_on=("spike",))
    for target, arguments, options, said in (
        (script, [], {}, "could not go back"),
        ("gpt", ["--steps", "20"], {}, "saves no checkpoint"),
        (SCRIPTS / "bad_data.py", [], {"capture": False}, "need the observed loss"),
    ):
        with pytest.raises(UsageError, match=said):
            wb.request(target, arguments, cpu=True, store=tmp_path, recovery=back, **options)
    wb.request("gpt", ["--checkpoint-every", "5"], cpu=True, store=tmp_path, recovery=back)
    unreadable: list[dict[str, Any]] = [
        {"rollback_on": ("nam",)},
        {"rollback_then": "pray"},
        {"max_rollbacks": 0},
    ]
    for wrong in unreadable:
        with pytest.raises(UsageError):
            Recovery(**wrong)


def test_each_step_has_the_data_after_what_was_left_out() -> None:
    def back(step: int, last_step: int, then: str = "skip-data") -> dict[str, object]:
        rollback = {"step": step, "last_step": last_step, "then": then, "loaders": []}
        return {"event": "start", "rollback": rollback}

    twice = rollback_environment([back(40, 60), back(50, 55)], 50)
    assert twice["WORKBENCH_SKIP_DATA"] == "40-60,70-75"
    ranges = [(40, 60), (70, 75)]
    assert [data_step(step, ranges) for step in (39, 40, 49, 50)] == [39, 60, 69, 75]
    lower = [back(40, 60, "lower-lr"), back(50, 55, "lower-lr")]
    assert rollback_environment(lower, 50) == {"WORKBENCH_LR_FACTOR": "0.25"}
    assert rollback_environment(lower, 45) == {"WORKBENCH_LR_FACTOR": "0.5"}
    assert rollback_environment([{"event": "start"}], 0) == {}


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([1.0] * 60 + [NAN] * 3, "nan"),
        ([1.0] * 60 + [NAN] * 2, None),
        ([1.0] * 60 + [NAN, 1.0, 1.0], None),
        ([1.0] * 60 + [NAN, *[1.0] * 5] * 4, None),
        ([1.0 + 0.01 * (n % 7) for n in range(60)] + [NAN, *[1.0] * 400, NAN], None),
        ([1.0 + 0.01 * (n % 7) for n in range(80)] + [9.0] * 45, "spike"),
        ([1.0 + 0.01 * (n % 7) for n in range(80)] + [9.0] * 12 + [1.05] * 40, None),
        ([3.0 * 0.99**n for n in range(200)], None),
    ],
)
def test_a_loss_is_gone_when_it_stays_so(
    tmp_path: Path, losses: list[float], kind: str | None
) -> None:
    watch, seen, replay = InstabilityWatch(), set[str](), Replay(tmp_path)
    for step, loss in enumerate(losses, 1):
        findings = replay.rows([row(step, loss)])
        found = watch.look(replay.diagnoser.evidence, findings)
        if found is not None:
            seen.add(found.kind)
    assert seen == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("rule", "values", "at"),
    [
        ("eval_loss no better for 3", [3, 2, 2.1, 2.2, 2.3, 1], 5),
        ("accuracy no better for 2", [0.5, 0.6, 0.6, 0.6], 4),
        ("x not lower for 2 by 0.5", [3, 2.8, 2.7], 3),
        ("eval_loss no better for 3", [3, 2, 1, 0.5], None),
        ("loss > 10 for 2", [11, 9, 11, 12], 4),
        ("loss < 0.5", [1, 0.4], 2),
        ("loss > 1e3 or loss < 1", [5, 0.9], 2),
        ("eval_loss no better for 2", [2, NAN, NAN], 3),
    ],
)
def test_a_rule_is_true_at_one_value(rule: str, values: list[float], at: int | None) -> None:
    conditions = stop_conditions(rule)
    watch = StopWatch(conditions)
    name = rule.split(maxsplit=1)[0]
    true = [
        n for n, value in enumerate(values, 1) if watch.take(name, value, n, 1.0) or watch.reason
    ]
    assert next(iter(true), None) == at
    assert watch.reason is None or watch.reason.startswith(f"Stopped at step {at} because {name}")


def test_what_was_logged_before_a_resume_counts_only_as_the_best() -> None:
    watch = StopWatch(stop_conditions("eval_loss no better for 2"), since=10.0)
    for step, time in enumerate([1.0, 2.0, 3.0, 11.0], 1):
        watch.take("eval_loss", 1.0 if step == 1 else 2.0, step, time)
    assert watch.reason is None
    watch.take("eval_loss", 2.0, 5, 12.0)
    assert "better than 1 (step 1) in 2 values" in str(watch.reason)


def test_data_that_two_rollbacks_leave_out_counts_once() -> None:
    ranges = [(40, 60), (30, 65)]
    assert [data_step(step, ranges) for step in (29, 30, 31)] == [29, 65, 66]
    assert [data_step(step, [(2, 4), (6, 7)]) for step in range(5)] == [0, 1, 4, 5, 7]


@pytest.mark.parametrize(
    "rule", ["eval_loss improves", "loss > ten", "tokens no better for 3", "loss no better for 0"]
)
def test_a_rule_that_cannot_be_read_says_how_it_is_written(rule: str) -> None:
    with pytest.raises(UsageError, match="--stop-when"):
        Recovery(stop_when=rule)


@pytest.mark.parametrize(
    ("rule", "values", "stops_at"),
    [
        ("accuracy >= 1", [0.5, 1.0], 2),
        ("accuracy > 1", [0.5, 1.0], None),
        ("loss <= 0", [0.1, 0.0], 2),
        ("loss < 0", [0.1, 0.0], None),
        ("loss<=0 for 2", [0.0, 0.0], 2),
    ],
)
def test_a_bound_with_or_is_met_where_it_is_reached(
    rule: str, values: list[float], stops_at: int | None
) -> None:
    conditions = stop_conditions(rule)
    watch = StopWatch(conditions)
    for step, value in enumerate(values, 1):
        watch.take(conditions[0].name, value, step, time=1.0)
    assert (watch.reason is None) == (stops_at is None)
