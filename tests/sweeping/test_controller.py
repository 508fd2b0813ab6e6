"""The controller is killed at any point: no trial is lost, none is trained twice."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra sweep is not installed")
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.sweeping.plans import plan, sweep_of_results
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.sweeping import Sweep, find
from workbench.sweeping.controller import Controller, serve
from workbench.sweeping.files import SweepFiles
from workbench.sweeping.host import RunNow
from workbench.sweeping.metric import MeasuredMetric
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.study import Trials


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that was written; only a loss of power does."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


class Killed(BaseException):
    """SIGKILL."""


class World:
    """Runs and their queue; they outlive every controller."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, str]] = {}
        self.state: dict[int, str] = {}  # made (not in the queue), queued, running, or an outcome
        self.begun: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.first_step: dict[int, int] = {}  # of the latest start
        self.stopped: dict[int, str] = {}
        self.refused: set[int] = set()
        self.at = lambda _step: None

    def exists(self, number: int) -> bool:
        return number in self.state

    def file(self, number: int, values: Mapping[str, str]) -> None:
        if number in self.refused:
            raise UsageError("no such script")
        if number not in self.state:
            self.values[number], self.state[number] = dict(values), "made"
            self.at("made")
        if self.state[number] == "made":
            self.state[number] = "queued"

    def now(self, number: int) -> RunNow:
        state = self.state[number]
        live = {"made": "starting"}.get(state, state)
        ended = live not in {"starting", "queued", "running"}
        return RunNow(
            state="ended" if ended else live,
            outcome=state if ended else None,
            message="",
            first_step=self.first_step.get(number, 0),
        )

    def measured(self, number: int) -> MeasuredMetric:
        steps = list(range(1, self.steps.get(number, 0) + 1))
        # The higher its number, the worse a trial.
        return MeasuredMetric(steps=steps, values=[number + 1 / step for step in steps])

    def stop(self, number: int, why: str) -> None:
        self.stopped[number] = why
        self.state[number] = "stopped"

    def resume(self, number: int) -> None:
        assert self.state[number] in {"interrupted", "preempted", "stopped"}
        self.state[number] = "running"
        self.first_step[number] = self.steps.get(number, 0)

    def room(self) -> int:
        return 2


class Machine(RuleBasedStateMachine):
    """Turns that are killed at a chosen step, journals cut off, runs that end or vanish."""

    plan: SweepPlan = plan()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World()
        self.results: dict[int, float] = {}
        self.controller: Controller | None = None
        self.trials = self.opened()

    def opened(self) -> Trials:
        return Trials(self.folder / "journal.jsonl", self.plan, writes=True)

    def teardown(self) -> None:
        try:
            self.let_everything_end()
        finally:
            shutil.rmtree(self.folder)

    @rule(dies_after=st.none() | st.integers(0, 8))
    def turn(self, dies_after: int | None) -> None:
        steps = 0

        def at(_step: str) -> None:
            nonlocal steps
            steps += 1
            if dies_after is not None and steps > dies_after:
                raise Killed

        self.world.at = at
        if self.controller is None:
            self.trials = self.opened()
            self.controller = Controller(
                self.plan,
                self.trials,
                self.world,
                at=lambda step: self.world.at(step),  # noqa: PLW0108
            )
        try:
            self.controller.turn()
        except Killed:
            self.controller = None

    @rule(torn=st.sampled_from([b"", b'{"op_code":4,"work']))
    def killed_while_it_draws(self, torn: bytes) -> None:
        """A trial that has no values yet; or half a line."""
        if not any(self.unfinished()) and len(self.trials.study.trials) < self.plan.trials:
            self.trials._enqueue(len(self.trials.study.trials))
            self.trials.study.ask()
        with (self.folder / "journal.jsonl").open("ab") as file:
            file.write(torn)
        self.controller, self.trials = None, self.opened()

    def unfinished(self) -> list[int]:
        return [one.number for one in self.trials.study.trials if len(one.params) < 2]

    @rule()
    def begin(self) -> None:
        for number, state in self.world.state.items():
            if state == "queued":
                self.world.state[number] = "running"
                self.world.begun[number] = self.world.begun.get(number, 0) + 1

    @rule(steps=st.integers(1, 40))
    def train(self, steps: int) -> None:
        for number, state in self.world.state.items():
            if state == "running":
                self.world.steps[number] = min(90, self.world.steps.get(number, 0) + steps)
                if self.world.steps[number] == 90:
                    self.world.state[number] = "succeeded"

    @rule()
    def kill_everything(self) -> None:
        for number, state in self.world.state.items():
            if state == "running":
                self.world.state[number] = "interrupted"
        self.controller = None

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert all(count == 1 for count in self.world.begun.values())

    @invariant()
    def a_result_stays(self) -> None:
        for one in self.trials.every():
            if one.state != "open":
                known = self.results.setdefault(one.number, one.value or 0.0)
                assert known == (one.value or 0.0)

    @invariant()
    def a_run_has_the_values_of_its_trial(self) -> None:
        kept = {one.number: one.values for one in self.trials.every()}
        assert all(values == kept[number] for number, values in self.world.values.items())

    def let_everything_end(self) -> None:
        """From here on nothing is killed."""
        for _ in range(40):
            self.turn(None)
            self.begin()
            self.train(30)
        every = self.trials.every()
        assert [one.number for one in every] == list(range(self.plan.trials))
        assert {one.state for one in every} <= {"finished", "pruned"}
        assert sorted(one.values["lr"] for one in every) == ["1e-4"] * 3 + ["3e-4"] * 3
        assert len({one.values["wd"] for one in every}) == self.plan.trials  # nothing drawn again
        assert self.world.values.keys() == {one.number for one in every}
        pruned = {one.number for one in every if one.state == "pruned"}
        assert pruned == self.world.stopped.keys()
        self.nothing_runs_twice()


def test_a_disk_that_was_full_for_a_moment_costs_no_result(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "journal.jsonl", plan(), writes=True)
    assert trials.ask()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"op_code":6,"worker_id":"a')  # as far as there was room
    trials.finish(0, 2.0)
    assert trials.ask()
    for again in (trials, Trials(tmp_path / "journal.jsonl", plan(), writes=True)):
        assert [(one.state, one.value) for one in again.every()] == [
            ("finished", 2.0),
            ("open", None),
        ]


class Stopping(Machine):
    """The same, with trials that are pruned."""

    plan = plan(stop="asha", first_look=10)


TestMachine = Machine.TestCase
TestStopping = Stopping.TestCase
TestMachine.settings = TestStopping.settings = settings(max_examples=4, stateful_step_count=15)


def controlled(folder: Path, world: World, **changes: object) -> Controller:
    chosen = plan(**changes)
    return Controller(chosen, Trials(folder / "journal.jsonl", chosen, writes=True), world)


def test_worse_trials_are_pruned_and_say_why(tmp_path: Path) -> None:
    world = World()
    controller = controlled(tmp_path, world, stop="asha", first_look=10, trials=2)
    controller.turn()
    world.state = dict.fromkeys(world.state, "running")
    world.steps = {0: 12, 1: 12}
    controller.turn()
    assert world.stopped == {
        1: "Pruned by the sweep lr: loss 1.1 at step 10 is not among the best third."
    }


def test_three_first_failures_end_it_with_the_reason(tmp_path: Path) -> None:
    world = World()
    world.refused = {0, 1, 2}
    controller = controlled(tmp_path, world)
    ended = next(filter(None, (controller.turn() for _ in range(4))))
    assert ended == ("failed", "The first 3 trials failed. The latest: no such script")
    assert len(world.state) <= 1


def test_failures_before_a_resume_do_not_end_it_again(tmp_path: Path) -> None:
    world = World()
    world.refused = {0, 1, 2}
    first = controlled(tmp_path, world)
    assert any(first.turn() for _ in range(4))
    again = controlled(tmp_path, world)
    again.forgive(again.failed())
    assert [again.turn() for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("text", ['{"trials": 3}', '{"trials": [[0], "1"]}', "[1]", "{"])
def test_a_damaged_list_of_forgiven_trials_does_not_end_it(tmp_path: Path, text: str) -> None:
    sweep_of_results(tmp_path, trials=1)
    files, world = SweepFiles(tmp_path, "lr"), World()
    world.refused = {0, 1, 2}
    opened = lambda: controlled(tmp_path, world)  # noqa: E731
    assert serve(files, opened, lambda: None) == "failed"
    files.end.unlink()
    files.forgiven.write_text(text)

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        serve(files, opened, kill)


def test_a_resume_after_three_failures_goes_on_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_of_results(tmp_path, trials=1)
    sweep = find("lr", tmp_path)
    files, world, started = SweepFiles(tmp_path, "lr"), World(), list[object]()
    world.refused = {0, 1, 2}
    sweeping = sys.modules[Sweep.__module__]
    monkeypatch.setattr(sweeping, "spawn_controller", lambda *about: started.append(about))
    monkeypatch.setattr(sweeping, "startable_record", lambda _template: None)
    opened = lambda: controlled(tmp_path, world)  # noqa: E731
    assert serve(files, opened, lambda: None) == "failed"
    sweep.resume()
    assert started

    def kill() -> None:
        raise Killed

    for _ in range(2):  # the second finds no end.json any more
        with pytest.raises(Killed):
            serve(files, opened, kill)
        assert sweep.state == "interrupted"
    assert {"queued"} <= set(world.state.values())


def test_a_stop_does_not_wait_for_a_controller_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_of_results(tmp_path, trials=1)
    sweep, started = find("lr", tmp_path), list[object]()
    sweeping = sys.modules[Sweep.__module__]
    monkeypatch.setattr(sweeping, "spawn_controller", lambda *about: started.append(about))
    monkeypatch.setattr(sweeping, "_GONE_SECONDS", 0.05)
    with pytest.raises(WorkbenchError, match=r"ends each time, see .*controller\.log"):
        sweep.stop(timeout=20)
    assert len(started) == 3


def test_a_full_disk_fails_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    controller, full = controlled(tmp_path, world), StoreError("No run can be kept in /data.")
    controller.turn()
    world.state[0] = "interrupted"

    def refused(*_: object) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(world, "resume", refused)
        assert [controller.turn() for _ in range(5)] == [None] * 5
        world.state[1], world.steps[1] = "succeeded", 90
        patched.setattr(world, "file", refused)
        assert [controller.turn() for _ in range(5)] == [None] * 5
    drawn = controller._trials.every()
    assert [one.state for one in drawn] == ["open", "finished", "open", "open"]
    controller.turn()
    assert world.state == {0: "running", 1: "succeeded", 2: "queued", 3: "queued"}


def test_one_run_that_cannot_be_stopped_keeps_no_other_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = World(), list[bool]()
    controller = controlled(tmp_path, world)
    controller.turn()
    stop = world.stop

    def refused(number: int, why: str) -> None:
        if number == 0:
            raise StoreError("trial-000 cannot be stopped.")
        stop(number, why)

    monkeypatch.setattr(world, "stop", refused)
    monkeypatch.setattr(controller, "_stop_asked", lambda: asked.append(True) or True)
    assert controller.turn() is None
    assert world.state == {0: "queued", 1: "stopped"}


def test_a_full_disk_at_its_end_does_not_keep_it_from_telling_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_of_results(tmp_path, trials=1)
    files, world, refused = SweepFiles(tmp_path, "lr"), World(), [OSError(28, "full")] * 2
    world.refused = {0, 1, 2}
    tell, full = SweepFiles.tell_end, open("/dev/full", "w")  # noqa: PTH123, SIM115 - see below

    def told(files: SweepFiles, outcome: str, message: str, at: float) -> None:
        if refused:
            raise refused.pop()
        tell(files, outcome, message, at)

    monkeypatch.setattr(SweepFiles, "tell_end", told)
    monkeypatch.setattr(sys, "stdout", full)  # where its log is
    assert serve(files, lambda: controlled(tmp_path, world), lambda: None) == "failed"
    assert (files.ended() or {}).get("outcome") == "failed"
    assert not refused
    with contextlib.suppress(OSError):
        full.close()


def test_a_trial_that_gets_further_is_resumed_as_often_as_it_takes(tmp_path: Path) -> None:
    world = World()
    controlled(tmp_path, world).turn()
    for night in range(1, 9):  # stopped each morning by its user, resumed each evening
        world.state, world.steps[0] = dict.fromkeys(world.state, "stopped"), 10 * night
        controlled(tmp_path, world).turn()
        assert world.state == dict.fromkeys(world.state, "running")


def test_a_trial_that_never_gets_further_fails(tmp_path: Path) -> None:
    world = World()
    controller = controlled(tmp_path, world)
    controller.turn()
    for _ in range(3):
        world.state[0] = "interrupted"
        controller.turn()
        assert world.state[0] == "running"
    world.steps[0], world.state[0] = 5, "interrupted"  # a step that no checkpoint has
    controller.turn()
    failed = next(one for one in controller._trials.every() if one.number == 0)
    assert failed.why.startswith("It was resumed 3 times from step 0.")


def test_a_failed_trial_does_not_end_it(tmp_path: Path) -> None:
    world, ended = World(), None
    controller = controlled(tmp_path, world)
    controller.turn()
    world.state[0] = "failed"
    while ended is None:
        ended = controller.turn()
        for number in (one for one in world.state if one):
            world.state[number], world.steps[number] = "succeeded", 90
    assert ended == ("finished", "1 failed, 5 finished")


def test_a_metric_that_is_not_recorded_ends_it_at_once(tmp_path: Path) -> None:
    world = World()
    controller = controlled(tmp_path, world)
    controller.turn()
    world.state = dict.fromkeys(world.state, "succeeded")
    outcome, why = controller.turn() or ("", "")
    assert (outcome, "It recorded no loss. It logged: nothing by name." in why) == ("failed", True)
