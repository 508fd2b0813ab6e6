"""What is asked of a live run: all ranks do it after the same step, or none does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.launch.ranks import Ranks
from workbench.errors import UsageError
from workbench.launching import steered, steering
from workbench.launching.capture import steering as asked_of
from workbench.launching.capture.overrides import STEERED, Override, Overrides, restore
from workbench.launching.resume.attempts import Attempts
from workbench.store.actions import read_actions, step_marks
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND

Start = Callable[..., wb.Run]
LIBRARIES = ("ddp", "fsdp", "zero2")


def optimizer(*rates: float, **more: float) -> Any:
    return SimpleNamespace(param_groups=[{"params": [], "lr": one, **more} for one in rates])


def used(overrides: Overrides, one: Any, step: int, name: str = "lr") -> list[float]:
    """What the groups have while the optimizer steps; their own again after it."""
    before = [group[name] for group in one.param_groups]
    replaced = overrides.apply(one, step, one)
    now = [group[name] for group in one.param_groups]
    restore(replaced)
    assert [group[name] for group in one.param_groups] == before
    return now


def test_a_schedule_goes_on_scaled_and_a_held_rate_stays() -> None:
    scaled, held = Overrides(), Overrides()
    scaled.add(Override(3, "lr", 0.5, hold=False))
    held.add(Override(3, "lr", 0.5, hold=True))
    for step, rate in enumerate((1.0, 1.0, 1.0, 0.8), start=1):
        one = optimizer(rate, rate / 10)
        assert used(scaled, one, step) == ([rate, rate / 10] if step < 3 else [rate / 2, rate / 20])
        wanted = [rate, rate / 10] if step < 3 else [0.5, 0.05]
        assert used(held, one, step) == pytest.approx(wanted)
    assert scaled.rate == 0.4  # of the first group, as it was used


def test_a_rate_of_zero_cannot_be_scaled_and_other_values_keep_their_zeros() -> None:
    overrides = Overrides()
    overrides.add(Override(1, "lr", 0.5, hold=False))
    overrides.add(Override(1, "weight_decay", 0.3, hold=True))
    one = optimizer(0.0, weight_decay=0.1)
    one.param_groups.append({"params": [], "lr": 0.0, "weight_decay": 0.0})
    assert used(overrides, one, 1) == [0.5, 0.5]
    assert used(overrides, one, 2, "weight_decay") == pytest.approx([0.3, 0.0])


def test_an_attempt_that_resumes_has_the_change_and_halves_it_by_a_rollback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Overrides()
    change = Override(3, "lr", 0.5, hold=False)
    first.add(change)
    used(first, optimizer(2.0), 3)
    monkeypatch.setenv(STEERED, json.dumps([change.document()]))
    again = Overrides.from_environment()
    assert again is not None
    assert used(again, optimizer(1.0), 9) == [0.25]
    monkeypatch.setenv("WORKBENCH_LR_FACTOR", "0.5")
    lowered = Overrides.from_environment()
    assert lowered is not None
    assert used(lowered, optimizer(1.0), 9) == [0.125]
    monkeypatch.setenv(STEERED, "[]")
    monkeypatch.setenv("WORKBENCH_LR_FACTOR", "1")
    assert Overrides.from_environment() is None


def requested(folder: Path, rank: int, ranks: int = 2) -> asked_of.RankRequest:
    document = {"action": "look", "at": 10, "ranks": ranks}
    return asked_of.RankRequest(str(folder), rank, document)


def test_all_ranks_decide_alike_and_only_when_all_heard_in_time(tmp_path: Path) -> None:
    for name, second, begins in (
        ("in-time", asked_of.IN_TIME, asked_of.GO),
        ("late", asked_of.LATE, asked_of.LATE),
    ):
        folder = tmp_path / name
        folder.mkdir()
        ranks = [requested(folder, rank) for rank in (0, 1)]
        decided: list[str] = []
        ranks[0].answer(asked_of.IN_TIME)
        waiting = threading.Thread(target=lambda: decided.append(ranks[0].decision()))  # noqa: B023
        waiting.start()
        ranks[1].answer(second)
        ranks[1].answer("something else")  # only the first counts
        decided.append(ranks[1].decision())
        waiting.join(20)
        assert len(set(decided)) == 1
        assert decided[0].startswith(begins)


def test_a_rank_that_never_answers_has_it_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_of, "_PATIENCE_SECONDS", 0.05)
    first, second = (requested(tmp_path, rank) for rank in (0, 1))
    first.answer(asked_of.IN_TIME)
    assert first.decision() == "rank 1 did not answer"
    second.answer(asked_of.IN_TIME)  # too late: it is decided
    assert second.decision() == "rank 1 did not answer"


def test_names_of_requests_cannot_leave_their_folder(tmp_path: Path) -> None:
    recorder = SimpleNamespace(folder=str(tmp_path), rank=0, steps=0)
    heard = asked_of.Steering(recorder)
    heard.hear("../../etc /tmp/x 17-set 123456-set\n1234567-set")
    assert heard._seen_names == {"123456-set", "1234567-set"}


def test_a_damaged_record_of_changes_starts_no_other_attempt_wrongly(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    change = {"first": 5, "name": "lr", "value": 0.1, "hold": False, "factor": 2.0, "own": 0.05}
    for number, changes in enumerate(
        ([change], [7], "x", [{"first": "a"}], [{**change, "first": 50}])
    ):
        folder = paths.steering / f"100000{number}-set"
        folder.mkdir(parents=True)
        (folder / "decision").write_text("go")
        (folder / "result-0.json").write_text(json.dumps({"done": True, "changes": changes}))
    kept = steered.steered(paths, 20)
    assert [(one["first"], one["factor"]) for one in kept] == [(5, 2.0), (50, None)]


def test_an_argument_of_a_resume_stands_in_the_place_of_what_was_set(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    document = {"first": 100, "hold": False, "factor": 10.0, "own": 1e-3}
    rate, decay = ({**document, "name": name, "value": 1e-2} for name in ("lr", "weight_decay"))
    folder = paths.steering / "1795820000000000-set"
    folder.mkdir(parents=True)
    paths.make_folders()
    (folder / "decision").write_text("go")
    (folder / "result-0.json").write_text(json.dumps({"done": True, "changes": [rate, decay]}))
    attempts = Attempts(paths)
    attempts.begin(first_step=0, checkpoint=None, why=None)
    for words in (["--lr", "1e-4"], ["--learning-rate=1e-4"], ["optimizer.lr=1e-4"]):
        assert steered.replaced_by(paths, words) == [[folder.name, "lr"]]
    assert steered.replaced_by(paths, ["--min-lr", "1e-5", "--steps", "9"]) == []
    told, kept = steered.still_counts(paths, ["--lr", "1e-4"], 200)
    assert told == "The arguments replace what was set while r trained: lr=0.01 at step 100."
    assert "still counts: weight_decay=0.01 at step 100." in kept
    assert steered.still_counts(paths, [], 200) == ()
    unset = steered.replaced_by(paths, ["--lr", "1e-4"])
    attempts.begin(first_step=200, checkpoint="/c", why=BY_HAND, arguments=["x"], unset=unset)
    attempts.begin(first_step=300, checkpoint="/d", why="restart")
    assert [change["name"] for change in steered.steered(paths, 300)] == ["weight_decay"]
    back = {"last_step": 9, "step": 5, "reason": "nan", "then": "lower-lr", "loaders": []}
    attempts.begin(first_step=5, checkpoint="/b", why="back", rollback=back)  # type: ignore[arg-type]
    assert "0.5 times what is given" in steered.still_counts(paths, ["--lr", "1"], 5)[-1]


def rows(run: wb.Run, rank: int) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in run.metrics(rank)}


def rates(run: wb.Run) -> list[dict[int, float]]:
    return [{step: row["lr"] for step, row in rows(run, rank).items()} for rank in (0, 1)]


def steer_and_compare(start: Start, strategy: str, how: str, tmp_path: Path) -> None:
    """A run whose rate was changed trains as one that was launched with that schedule."""
    common = ["--how", how, "--steps", "60", "--output", str(tmp_path / "out")]
    slowly = [*common, "--step-seconds", "0.3"]  # four requests, also on a busy machine
    run = start("steered.py", slowly, processes=2, strategy=strategy)
    run.wait(240, steps=2)
    answer = run.set(lr=0.002)
    assert answer.done, answer.why
    change = answer.ranks[0]["changes"][0]
    assert [one["changes"] for one in answer.ranks] == [[change]] * 2
    look = run.look("0" if how == "accelerate" else "model.layers.0.mlp")
    assert look.done, look.why
    kinds = {one["kind"] for result in look.ranks for one in result["tensors"]}
    assert kinds == {"weights", "gradients", "activations"}
    assert all(one["nonfinite"] == 0 for one in look.ranks[0]["tensors"] if one["count"])
    saved = run.ask("checkpoint")
    assert saved.done, saved.why
    assert Path(saved.ranks[0]["path"]).is_dir()
    evaluated = run.ask("evaluate")
    assert evaluated.done is (how == "trainer"), evaluated.why
    assert run.wait(240) == "succeeded"

    both = rates(run)
    assert both[0] == both[1]
    first = change["first"]
    own = {step: 0.01 * (1 - (step - 1) / 200) for step in both[0]}
    wanted = {step: one * (change["factor"] if step >= first else 1) for step, one in own.items()}
    assert both[0] == pytest.approx(wanted)
    assert both[0][first] == pytest.approx(0.002)
    done = step_marks(RunPaths(run.directory))
    assert done[0]["text"] == "set lr=0.002"
    assert done[0]["step"] == first - 1
    assert run.view()["actions"] == done

    times = ["--times", f"{first}:{change['factor']!r}"]
    other = start(
        "steered.py", [*common, *times], processes=2, strategy=strategy, name="as-launched"
    )
    assert other.wait(240) == "succeeded"
    for rank in (0, 1):
        losses = [[row["loss"] for row in rows(one, rank).values()] for one in (run, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("strategy", LIBRARIES)
def test_a_script_with_an_accelerator(start: Start, strategy: str, tmp_path: Path) -> None:
    steer_and_compare(start, strategy, "accelerate", tmp_path)


@pytest.mark.slow
@pytest.mark.full
def test_a_script_with_transformers_trainer(start: Start, tmp_path: Path) -> None:
    steer_and_compare(start, "ddp", "trainer", tmp_path)


@pytest.mark.slow
@pytest.mark.full
def test_a_change_survives_a_resume_and_is_told_where_it_does_not(start: Start) -> None:
    arguments = ["--steps", "70", "--step-seconds", "0.15"]
    run = start("steered.py", arguments, processes=2)
    run.wait(240, steps=2)
    change = run.set(lr=0.002).ranks[0]["changes"][0]
    saved = run.ask("checkpoint")
    run.stop(now=True)
    run.resume(arguments=["--resume", "{checkpoint}"])
    assert run.wait(240) == "succeeded"
    first = rates(run)[0]
    last = 0.01 * (1 - 69 / 200) * change["factor"]
    assert first[70] == pytest.approx(last)
    assert first[saved.at + 1] == pytest.approx(0.01 * (1 - saved.at / 200) * change["factor"])
    notes = steered.dropped_note(RunPaths(run.directory))
    assert "lr=0.002" in notes[0]


@pytest.mark.slow
def test_ranks_hear_it_from_files_alone(begin: Callable[..., Ranks]) -> None:
    ranks = begin("steered.py", "--steps", "60", "--step-seconds", "0.1", ranks=2)
    until(lambda: len(ranks.lines()) >= 2, 120, "two steps")
    (ranks.folder / "run.json").write_text("{}")
    for name, document in (
        ("1000001-set", {"action": "set", "values": {"lr": 0.5}, "hold": True}),
        ("1000002-set", {"action": "set", "values": {"speed": 3}}),
        ("1000003-look", {"action": "look", "module": "1x"}),
    ):
        folder = ranks.folder / "steering" / name
        folder.mkdir(parents=True)
        about = {"at": ranks.lines()[-1]["step"] + 20, "ranks": 2, "words": [name], "by": "test"}
        (folder / "request.json").write_text(json.dumps({**document, **about}))
        with (ranks.folder / "control" / "steer").open("a") as bell:
            bell.write(f"{name}\n")
        time.sleep(0.01)
    assert ranks.wait() == [0, 0]
    results = [
        [
            json.loads((ranks.folder / "steering" / name / f"result-{rank}.json").read_text())
            for rank in (0, 1)
        ]
        for name in ("1000001-set", "1000002-set", "1000003-look")
    ]
    changed = results[0][0]["changes"][0]
    assert all(one["done"] for one in results[0])
    for rank in (0, 1):
        used_rates = {line["step"]: line["lr"] for line in ranks.lines(rank)}
        assert {used_rates[step] for step in used_rates if step >= changed["first"]} == {0.5}
        assert used_rates[changed["first"] - 1] < 0.011
    assert "no value 'speed'. It has eps, lr, weight_decay" in results[1][0]["why"]
    assert "no module '1x'" in results[2][1]["why"]
    lines = read_actions(RunPaths(ranks.folder))
    assert {tuple(one["arguments"]): one["done"] for one in lines} == {
        ("1000001-set",): True,
        ("1000002-set",): False,
        ("1000003-look",): False,
    }


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("recipe", "module"), [("gpt", "head"), ("recsys", "top.0")])
def test_recipes_evaluate_save_and_show_their_tensors(
    start: Start, recipe: str, module: str
) -> None:
    arguments = ["--steps", "100000", *(["--size", "1"] if recipe == "gpt" else [])]
    run = start(recipe, arguments, processes=2, strategy="ddp")
    run.wait(240, steps=2)
    evaluated, saved = run.ask("evaluate"), run.ask("checkpoint")
    assert (evaluated.done, saved.done) == (True, True)
    listed = run.look()
    assert module in {name for name, _ in listed.ranks[0]["modules"]}
    assert run.look(module).done
    until(lambda: "eval_loss" in run.series(), 30, "the loss")
    until(lambda: evaluated.at in run.series("eval_loss")["eval_loss"].step, 30, "its step")
    assert [one.step for one in run.checkpoints()] == [saved.at]
    run.stop(now=True)


@pytest.fixture
def ended(start: Start) -> wb.Run:
    run = start("no_steps.py", processes=1)
    run.wait(120)
    return run


@pytest.mark.slow
def test_a_run_that_has_ended_is_refused(ended: wb.Run) -> None:
    for ask in (lambda: ended.set(lr=1e-4), ended.look, lambda: ended.ask("checkpoint")):
        with pytest.raises(UsageError, match="has ended"):
            ask()
    with pytest.raises(UsageError, match="finite"):
        steering.set_values(RunPaths(ended.directory), {"lr": float("nan")})
    with pytest.raises(UsageError, match="choose from weights"):
        ended.look("x", ["momenta"])
