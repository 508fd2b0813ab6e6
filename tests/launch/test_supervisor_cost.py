"""What a look of the supervisor reads and computes while nothing but steps happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from workbench.diagnose import diagnoser
from workbench.diagnose.out_of_memory import OomKills
from workbench.launching.supervise import run_state
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.restart import RestartController
from workbench.launching.supervise.run_state import RunState
from workbench.observe import log_tails
from workbench.observe.log_tails import LogTail
from workbench.observe.view_readers import ViewReaders
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

MARKER = "c0ffee" * 5
RANKS = 2
_opened: list[str] = []
_counting: list[int] = []  # the thread whose files count


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if threading.get_ident() in _counting and event in {"open", "os.listdir", "os.scandir"}:
        _opened.append(str(arguments[0]))


@cache
def _hook() -> None:
    """Once per process: there is no way to take it back, and a module's tests may come in parts."""
    sys.addaudithook(_note)


class Clock:
    """Time that passes only when it is told to: how long a look takes on this host is no matter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        for name in ("monotonic", "time"):
            start = getattr(time, name)()
            monkeypatch.setattr(time, name, lambda start=start: start + self.ahead)


class Watched:
    """A run of two living ranks, and what the supervisor's loop does once a second."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.paths = RunPaths(folder / "run")
        self.paths.directory.mkdir()
        self.paths.make_folders()
        document = {
            "run": "run",
            "name": "run",
            "marker": MARKER,
            "processes": RANKS,
            "device": "cpu",
            "capture": True,
            "strategy": {"name": "ddp", "dp_replicate": RANKS},
            "cluster": {"name": "here", "gpus": [], "cpu_cores": 2, "memory_bytes": 8 << 30},
        }
        run = RunRecord.of(document)
        environment = {**os.environ, processes.MARKER: MARKER}
        self.started = [subprocess.Popen(["sleep", "1000"], env=environment) for _ in range(RANKS)]
        for rank, process in enumerate(self.started):
            record = {"process": processes.identify(process.pid), "group_world_size": RANKS}
            self.paths.rank_start(rank).write_text(json.dumps(record))
            self.paths.rank_log(rank).write_text("a line\n" * 100)
        self.state = RunState.of(self.paths, run)
        self.state.attempts.begin(first_step=0, checkpoint=None, why=None)
        self.ranks = RankProcesses(self.state)
        self.ranks.find()
        self.monitor = RunMonitor(self.state, self.ranks, begins=True)
        self.restarts = RestartController(self.state)
        self.step = 0

    def second(self, steps: int = 40) -> None:
        """Steps of 25 ms, and then a look."""
        for rank in range(RANKS):
            with self.paths.rank_metrics(rank).open("a") as file:
                for step in range(self.step + 1, self.step + 1 + steps):
                    loss = 3.0 + (step * 7919 % 100) / 100
                    line = {"step": step, "time": time.time(), "step_seconds": 0.025, "loss": loss}
                    file.write(json.dumps(line) + "\n")
        self.step += steps
        self.clock.ahead += 1.0
        self.monitor.look()
        self.restarts.end_if_hung(self.monitor)
        self.state.write(self.monitor.phase)

    def end(self) -> None:
        self.monitor._sealer.stop()
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(run_state, "lower_oom_score", lambda: 0)
    run = Watched(tmp_path, Clock(monkeypatch))
    yield run
    run.end()


def opened(watched: Watched, seconds: int, steps: int = 40) -> list[str]:
    _hook()
    _opened.clear()
    _counting.append(threading.get_ident())
    try:
        for _ in range(seconds):
            watched.second(steps)
    finally:
        _counting.clear()
    return list(_opened)


def test_a_look_opens_few_files_and_none_of_other_processes(watched: Watched) -> None:
    below_us = processes.descendants(os.getpid())  # members, those of other tests too
    others = set(os.listdir("/proc")) - {str(process["pid"]) for process in below_us}
    for _ in range(12):
        watched.second()
    files = opened(watched, 20)
    assert watched.monitor.steps == 32 * 40
    of_processes = [path.split("/")[2] for path in files if path.startswith("/proc/")]
    read = {pid for pid in of_processes if pid.isdecimal()}
    assert not others & read, f"{len(read)} processes were read, {sorted(others & read)[:20]}"
    assert files.count("/proc") <= 5
    own = [path for path in files if not path.startswith("/proc/")]
    assert len(own) < 20 * 40, Counter(own).most_common(20)


def test_the_view_is_written_each_second_while_somebody_reads_it(watched: Watched) -> None:
    def seq() -> int:
        view = os.open(watched.paths.view, os.O_RDONLY | os.O_NOATIME)  # as no one reads
        with os.fdopen(view, "rb") as file:
            return json.load(file)["seq"]

    def writes(seconds: int, *, read: bool = False) -> int:
        before = seq()
        for _ in range(seconds):
            watched.second()
            if read:
                time.sleep(0.01)  # the kernel's times of files are 4 ms apart
                watched.paths.view.read_bytes()
        return seq() - before

    watched.second()
    if not watched.monitor._readers._has_access_times:
        pytest.skip("this disk keeps no times of access")
    writes(14)
    assert writes(12) == 4
    assert writes(6, read=True) >= 4  # from the look after the first reading on
    assert writes(8) == 8  # who read a moment ago may look again
    writes(6)
    watched.state.message = "something has happened"
    assert writes(1) == 1


def test_where_no_reading_is_told_the_view_is_written_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = ViewReaders(tmp_path / "view.json")
    monkeypatch.setattr(ViewReaders, "_is_read", lambda _: False)
    (tmp_path / "view.json").write_text("{}")
    for _ in range(3):
        assert readers.due("same")
        readers.written("same")


def test_the_end_tells_of_the_ranks_group_and_not_what_was_said_last(watched: Watched) -> None:
    state = watched.state
    state.world_size, state.group, state.message = 1, "1 rank was formed.", "Stopping."
    watched.monitor.finish(0, Verdict(outcome="stopped", message="Stopped as asked."), 0)
    message = (read_json(watched.paths.exit) or {})["message"]
    assert message.endswith("1 rank was formed.")
    assert "Stopping." not in message


def test_ends_of_ranks_are_read_only_when_one_keeps_the_run_from_ending(watched: Watched) -> None:
    watched.second()
    assert not [path for path in opened(watched, 5) if path.endswith(".end.json")]


def test_rules_over_many_steps_are_asked_every_third_second(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    ask = diagnoser.Diagnoser._ask

    def noted(self: diagnoser.Diagnoser, rule: Any) -> Any:
        asked[rule.__qualname__] += 1
        return ask(self, rule)

    monkeypatch.setattr(diagnoser.Diagnoser, "_ask", noted)
    for _ in range(30):
        watched.second()
    slow = {rule.__qualname__ for rule in diagnoser.SLOW_RULES}
    assert {"straggler", "plateau", "communication_bound"} <= slow
    assert max(asked[name] for name in slow) <= 11
    assert asked["HangWatch.rule"] == asked["nan_loss"] == 30
    assert watched.monitor.diagnoser.problems == {}


def test_a_log_that_has_not_grown_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank-0.log"
    read: list[int] = []
    real = log_tails.read_tail
    monkeypatch.setattr(log_tails, "read_tail", lambda *of: read.append(1) or real(*of))
    log = LogTail(path)
    assert log.lines(100) == []
    path.write_text("one\n10%\r20%\n")
    assert [log.lines(100) for _ in range(3)] == [["one", "20%"]] * 3
    assert len(read) == 1
    path.write_text("one\n10%\r30%\n\x1b[31mred\x1b[0m\n")
    assert log.lines(100) == ["one", "30%", "red"]
    path.unlink()
    assert log.lines(100) == []


def test_the_groups_of_a_rank_are_looked_up_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    looked: list[str] = []
    monkeypatch.setattr(OomKills, "_read", lambda _self, pid: looked.append(pid))
    kills = OomKills(paths)
    for second in range(10):
        kills.watch([7, 8] if second else [7], now=100.0 + second)
    assert looked == ["self", "7", "8", "7", "8"]
