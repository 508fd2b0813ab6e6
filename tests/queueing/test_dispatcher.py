"""The dispatcher is killed at any point: nothing is lost, nothing runs twice, no device twice."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workbench.errors import StoreError
from workbench.launching.start.queued import end_unstarted, has_begun, take_out
from workbench.queueing import dispatcher
from workbench.queueing.dispatcher import Dispatcher, serve
from workbench.queueing.order import DeviceRequest, Start, due
from workbench.store.detached import lock_file
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueEntry, QueueFiles
from workbench.store.run_record import RunRecord

DEVICES = ("0", "1", "2")


class Killed(BaseException):
    """SIGKILL."""


class World:
    """Runs, supervisors and devices; they outlive every dispatcher."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.counts: dict[str, int] = {}
        self.born: set[str] = set()  # supervisors that live and have not reported
        self.begun: dict[str, int] = {}
        self.at = lambda _step: None

    def paths(self, run: str) -> RunPaths:
        return RunPaths(self.store / run)

    def make(self, run: str, count: int) -> None:
        self.paths(run).directory.mkdir()
        record = RunRecord(run=run, processes=count, queued_at=1.0)
        self.paths(run).run.write_text(json.dumps(record.document()))
        self.counts[run] = count

    def held(self) -> list[str]:
        running = [run for run in self.counts if self.paths(run).state.exists()]
        alive = [run for run in running if not self.paths(run).exit.exists()]
        claimed = [one.run for one in QueueFiles(self.store).starting() if one.run not in alive]
        return [name for run in {*alive, *claimed} for name in self.given(run)]

    def due(self, runs: Sequence[str]) -> list[Start]:
        held = self.held()
        asked = [DeviceRequest(run=run, count=self.counts[run], allowed=DEVICES) for run in runs]
        return due(asked, {name: held.count(name) for name in DEVICES})

    def exists(self, run: str) -> bool:
        return run in self.counts

    def given(self, run: str) -> tuple[str, ...]:
        return tuple(json.loads(self.paths(run).run.read_text()).get("devices", []))

    def start(self, run: str, devices: tuple[str, ...]) -> None:
        document = json.loads(self.paths(run).run.read_text())
        self.paths(run).run.write_text(json.dumps({**document, "devices": list(devices)}))
        self.at("written")
        self.born.add(run)

    def has_begun(self, run: str) -> bool:
        return has_begun(self.paths(run))

    def is_beginning(self, run: str) -> bool:
        return run in self.born

    def fail(self, run: str, reason: str) -> None:
        end_unstarted(self.paths(run), reason, "failed")

    def report(self, run: str) -> None:
        """The supervisor gets to work; one that finds the attempt begun does nothing."""
        self.born.discard(run)
        if not has_begun(self.paths(run)):
            self.begun[run] = self.begun.get(run, 0) + 1
            self.paths(run).state.write_text("{}")


class Machine(RuleBasedStateMachine):
    """Filing, dropping, turns that are killed at a chosen step, ends of runs, kills of all."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Path(tempfile.mkdtemp())
        self.files = QueueFiles(self.store)
        self.world = World(self.store)
        self.number = 0
        self.killed_supervisors: dict[str, int] = {}

    def teardown(self) -> None:
        try:
            self.let_everything_end()
        finally:
            shutil.rmtree(self.store)

    @rule(count=st.integers(1, 4), priority=st.integers(0, 2))
    def submit(self, count: int, priority: int) -> None:
        self.number += 1
        run = f"r{self.number}"
        with self.files.locked():
            self.world.make(run, count)
            entry = QueueEntry(run=run, priority=priority, order=float(self.number))
            self.files.write(self.files.waits(run), entry)

    @rule(dies_after=st.none() | st.integers(0, 8))
    def turn(self, dies_after: int | None) -> None:
        steps = 0

        def at(_step: str) -> None:
            nonlocal steps
            steps += 1
            if dies_after is not None and steps > dies_after:
                raise Killed

        self.world.at = at
        try:
            Dispatcher(self.files, self.world, at).turn()
        except Killed:
            return

    @precondition(lambda self: self.world.born)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.world.report(data.draw(st.sampled_from(sorted(self.world.born))))

    @rule()
    def kill_everything(self) -> None:
        for run in self.world.born:
            self.killed_supervisors[run] = self.killed_supervisors.get(run, 0) + 1
        self.world.born.clear()

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        paths = self.world.paths(f"r{data.draw(st.integers(1, self.number))}")
        if paths.state.exists():
            paths.exit.write_text('{"outcome": "succeeded"}')

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        run = f"r{data.draw(st.integers(1, self.number))}"
        begun = self.world.begun.get(run)
        if take_out(self.world.paths(run), "dropped"):
            assert begun is None
            assert run not in self.world.born

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert all(count == 1 for count in self.world.begun.values())

    @invariant()
    def no_device_is_given_twice(self) -> None:
        held = self.world.held()
        assert len(held) == len(set(held)), held

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = {one.run for one in self.files.waiting()}
        starting = {one.run for one in self.files.starting()}
        assert not waiting & starting
        for number in range(1, self.number + 1):
            run = f"r{number}"
            assert run in waiting | starting or has_begun(self.world.paths(run)), run

    def let_everything_end(self) -> None:
        """From here on nothing is killed: every run that was not dropped begins and ends."""
        for _ in range(4 * self.number + 4):
            self.turn(None)
            for run in list(self.world.born):
                self.world.report(run)
            for run in self.world.counts:
                if self.world.paths(run).state.exists():
                    self.world.paths(run).exit.write_text('{"outcome": "succeeded"}')
        assert not self.files.waiting()
        assert not self.files.starting()
        for run, count in self.world.counts.items():
            end = json.loads(self.world.paths(run).exit.read_text())["outcome"]
            tired = self.killed_supervisors.get(run, 0) >= 2
            assert end != "failed" or count > len(DEVICES) or tired, run
        self.nothing_runs_twice()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=30)


def test_a_second_dispatcher_leaves_at_once(tmp_path: Path) -> None:
    files, world = one_waits(tmp_path)
    first = lock_file(files.folder / "dispatcher.lock")
    assert first is not None
    serve(files, world, lambda: None)
    assert [one.run for one in files.waiting()] == ["r1"]


def one_waits(folder: Path) -> tuple[QueueFiles, World]:
    """A queue in which the run r1 waits for one device."""
    files, world = QueueFiles(folder), World(folder)
    with files.locked():
        world.make("r1", 1)
        files.write(files.waits("r1"), QueueEntry(run="r1"))
    return files, world


def test_it_leaves_when_nothing_waits_and_nobody_is_then_at_work(tmp_path: Path) -> None:
    files, world = one_waits(tmp_path)
    served: list[bool] = []

    def pause() -> None:
        served.append(files.is_served)
        for run in list(world.born):
            world.report(run)

    serve(files, world, pause)
    assert served
    assert all(served)
    assert not files.is_served
    assert not files.starting()
    assert world.begun == {"r1": 1}


def test_a_full_disk_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the queue's files nor the log can be written; then there is room again."""
    (files, world), pauses = one_waits(tmp_path), list[int]()
    due = world.due

    def refused(runs: Sequence[str]) -> list[Start]:
        if len(pauses) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return due(runs)

    monkeypatch.setattr(world, "due", refused)
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - closing it fails
    monkeypatch.setattr(sys, "stdout", full)

    def pause() -> None:
        pauses.append(len(pauses))
        for run in list(world.born):
            world.report(run)

    serve(files, world, pause)
    assert world.begun == {"r1": 1}
    with contextlib.suppress(OSError):
        full.close()


def test_a_disk_that_is_full_when_it_begins_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files, world), served = one_waits(tmp_path), list[bool]()
    write = dispatcher.write_json_atomic

    def refused(path: Path, document: object) -> int:
        if len(served) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, document)

    monkeypatch.setattr(dispatcher, "write_json_atomic", refused)

    def pause() -> None:
        served.append(files.is_served)
        for run in list(world.born):
            world.report(run)

    serve(files, world, pause)
    assert served == [False, False, True]
    assert world.begun == {"r1": 1}


def test_a_full_disk_fails_no_run_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files, world), tries = one_waits(tmp_path), list[str]()
    start = world.start

    def refused(run: str, devices: tuple[str, ...]) -> None:
        tries.append(run)
        if len(tries) < 6:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise StoreError(f"{run} cannot be written: {full}") from full
        start(run, devices)

    monkeypatch.setattr(world, "start", refused)

    def pause() -> None:
        for run in list(world.born):
            world.report(run)

    serve(files, world, pause)
    assert world.begun == {"r1": 1}
    assert not RunPaths(tmp_path / "r1").exit.exists()
