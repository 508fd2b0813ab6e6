"""Real runs through a real queue: its dispatcher is killed, dropped runs never start, others do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from workbench.launching.launch import launch
from workbench.queueing import Queue
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.starts import read_attempts

TINY = ("--steps", "3", "--size", "2")


@pytest.fixture
def queue(store: Path) -> Iterator[Queue]:
    """A queue of one slot that is paused; whatever happens, its dispatcher ends with the test."""
    one = Queue(store)
    one.set_slots(1)
    one.pause()
    yield one
    one.pause()
    until(lambda: not QueueFiles(store).is_served, what="the dispatcher leaves a paused queue")


def file(store: Path, name: str, **options: object) -> wb.Run:
    more = {"processes": 1, "cpu": True, "warm": True, **options}
    return launch("gpt", ["--steps", "3"], store=store, name=name, queue=True, **more)


def kill_dispatcher(store: Path) -> None:
    document = json.loads(QueueFiles(store).dispatcher.read_text())
    processes.send_signal(document, signal.SIGKILL)
    until(lambda: not processes.is_alive(document))


def test_a_filed_run_waits_and_a_dropped_one_never_starts(store: Path, queue: Queue) -> None:
    first, second, third = (file(store, name) for name in ("a", "b", "c"))
    urgent = file(store, "urgent", priority=7)
    assert [one.run for one in queue.jobs()] == ["urgent", "a", "b", "c"]
    assert {one.state for one in (first, second, third, urgent)} == {"queued"}
    assert queue.state == "paused"
    queue.move("c", 2)
    assert [one.run for one in queue.jobs()] == ["urgent", "c", "a", "b"]
    queue.move("a", priority=9)
    assert [one.run for one in queue.jobs()] == ["a", "urgent", "c", "b"]
    queue.drop("b")
    assert (second.state, second.outcome) == ("ended", "stopped")
    assert third.stop()["outcome"] == "stopped"
    assert [one.run for one in queue.jobs()] == ["a", "urgent"]
    with pytest.raises(wb.UsageError, match="b does not wait in the queue"):
        queue.drop("b")
    with pytest.raises(wb.UsageError, match="a waits in the queue"):
        first.resume()
    assert not any(RunPaths(one.directory).state.exists() for one in (first, second, third))


def test_what_cannot_wait_is_refused_when_it_is_filed(store: Path, queue: Queue) -> None:
    with pytest.raises(wb.UsageError, match="keep no secret"):
        file(
            store,
            "secret",
            environment={"WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567"},
        )
    with pytest.raises(wb.UsageError, match="no slot of cores '7'"):
        file(store, "much", devices=("7",), processes=None)
    with pytest.raises(wb.UsageError, match="on this machine, not on 2"):
        file(store, "many", nodes=2, address="10.0.0.1", warm=False)
    assert not queue.jobs()


def test_a_queue_that_others_can_write_to_is_refused(store: Path, queue: Queue) -> None:
    file(store, "a")
    (store / ".queue" / "waiting").chmod(0o777)
    queue.pause()  # no one else gets that far
    (store / ".queue").chmod(0o755)
    with pytest.raises(wb.WorkbenchError, match="others can write to waiting"):
        queue.start()
    (store / ".queue" / "waiting").chmod(0o700)


@pytest.mark.slow
def test_killed_at_any_time_the_queue_runs_each_once_and_in_order(
    store: Path, queue: Queue, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.py"
    gone.write_text("print('never')\n")
    runs = [file(store, name) for name in ("a", "b")]
    lost = launch(gone, store=store, name="lost", queue=True, processes=1, cpu=True)
    runs.append(file(store, "c", priority=1))
    gone.unlink()
    queue.start()
    for run in runs[:2]:  # killed while one runs, and while the next is started
        until(lambda: QueueFiles(store).is_served, what="a dispatcher")
        kill_dispatcher(store)
        queue.start()
        until(lambda run=run: run.state not in {"queued", "starting"}, 120, f"{run.id} starts")
    for run in runs:
        assert run.wait(300) == "succeeded"
    until(lambda: lost.outcome == "failed")
    assert "gone.py is gone" in (lost.status.message or "")
    begun = {run.id: [one["time"] for one in read_attempts(RunPaths(run.directory))
                      if one["event"] == "start"] for run in runs}  # fmt: skip
    assert all(len(times) == 1 for times in begun.values()), begun
    assert sorted(begun, key=lambda run: begun[run]) == ["c", "a", "b"]
    assert all(run.document["devices"] == ["0"] for run in runs)
    until(lambda: not QueueFiles(store).is_served, what="it ends by itself")
    assert queue.state == "empty"


def test_a_queue_is_served_as_soon_as_a_run_is_filed(store: Path, queue: Queue) -> None:
    run, files = file(store, "a"), QueueFiles(store)
    try:
        queue.start()
        assert files.is_served
        assert not files.stands_still
    finally:
        run.stop(now=True)
        until(lambda: not files.is_served, what="it ends by itself")


def test_the_next_command_says_that_a_queue_waits(
    store: Path, queue: Queue, run_command: Callable[..., object]
) -> None:
    file(store, "a")
    files = QueueFiles(store)
    with files.locked():
        files.set(paused=False)  # as after a reboot: not paused, no one at work
    told = run_command("runs")
    assert "1 run waits in the queue and nothing starts them" in told.stderr
    listed = run_command("queue", "list")
    assert "workbench queue start" in listed.stdout
    assert "It waits in the queue" in run_command("logs", "a").stderr
    assert not files.is_served


@pytest.fixture
def run_command(store: Path) -> Callable[..., object]:
    def run(*words: str) -> object:
        command = [sys.executable, "-m", "workbench.cli", *words, "--store", str(store)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ}
        )

    return run
