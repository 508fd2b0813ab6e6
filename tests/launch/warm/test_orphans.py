"""Whoever is killed on whichever rung of a stop, nothing of a run is left.

Each training has a child that bears no marker: it is found by descent alone, and descent changes
with every death. A cold run's orphans come to its watcher, a warm one's to its reaper.
"""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from workbench.store import processes
from workbench.store.files import read_json

pytestmark = pytest.mark.slow
Start = Callable[..., wb.Run]


class Orphaning:
    """A run of leaves_orphans.py whose child is known."""

    def __init__(self, start: Start, folder: Path, *words: str, cold: bool = False) -> None:
        child = folder / "child"
        self.run = start(
            "leaves_orphans.py", (str(child), *words), cold=cold, strategy="single", processes=1
        )
        until(lambda: self.run.view()["steps"], 60, lambda: self.run.logs(tail=20))
        self.child = processes.identify(int(child.read_text()))
        assert processes.is_alive(self.child)

    def state(self) -> dict[str, Any]:
        return read_json(self.run.directory / "state.json") or {}

    def kill(self, *victims: str) -> None:
        """SIGKILL to processes of state.json, or the supervisor's parent, in this order."""
        state = self.state()
        pids = {victim: state[victim]["pid"] for victim in victims if victim != "watcher"}
        if "watcher" in victims:  # while the supervisor lives, which tells its parent
            pids["watcher"] = int((processes.stat_fields(state["supervisor"]["pid"]) or [])[1])
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)

    def log(self, text: str) -> bool:
        return text in (self.run.directory / "logs" / "supervisor.log").read_text()

    def ended(self) -> str | None:
        """Its outcome, once that is written: with all dead at once it is unwatched for a moment."""
        until((self.run.directory / "exit.json").exists, 90, "the end is told")
        return self.run.outcome

    def nothing_left(self) -> None:
        assert not processes.is_alive(self.child)
        assert processes.members(self.run.document["marker"]) == []


@pytest.mark.parametrize(
    "victims", [("launcher",), ("supervisor", "launcher"), ("launcher", "supervisor")]
)
def test_killed_while_it_trains(start: Start, tmp_path: Path, victims: tuple[str, ...]) -> None:
    made = Orphaning(start, tmp_path)
    assert made.state()["warm"] is True
    made.kill(*victims)
    assert made.ended() == ("interrupted" if "supervisor" in victims else "failed")
    made.nothing_left()


@pytest.mark.parametrize(
    "cold",
    [pytest.param(False, id="warm"), pytest.param(True, id="cold", marks=pytest.mark.full)],
)
def test_a_second_supervisor_stops_all_of_it(start: Start, tmp_path: Path, *, cold: bool) -> None:
    made = Orphaning(start, tmp_path, cold=cold)
    first = made.state()["supervisor"]
    made.kill("supervisor")
    until(lambda: made.state()["supervisor"] != first, 30, "another supervisor")
    assert made.state()["warm"] is not cold  # as it was before
    assert made.run.stop(timeout=90)["processes_left"] == 0
    made.nothing_left()


@pytest.mark.parametrize("victim", ["supervisor", "launcher"])
def test_killed_while_it_stops_at_a_step(start: Start, tmp_path: Path, victim: str) -> None:
    made = Orphaning(start, tmp_path)
    made.run.request_stop()
    until(lambda: made.log("Stopping at step"), 30, "the stop is announced")
    made.kill(victim)
    made.ended()
    made.nothing_left()


@pytest.mark.parametrize("victims", [("supervisor",), ("launcher",), ("supervisor", "launcher")])
def test_killed_when_sigterm_was_ignored(
    start: Start, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    made = Orphaning(start, tmp_path, "--deaf")
    terminating = made.run.directory / "control" / "terminating"
    launcher = made.state()["launcher"]
    os.kill(launcher["pid"], signal.SIGSTOP)  # so that it does not end by the first SIGTERM
    made.run.request_stop()
    until(lambda: made.log("Stopping at step"), 30, "the stop is announced")
    made.run.request_stop(now=True)
    until(terminating.exists, 30, "the ladder has begun to end processes")
    made.kill(*(victim for victim in victims if processes.is_alive(made.state()[victim])))
    made.ended()
    made.nothing_left()


def test_nobody_watches_it_any_more(start: Start, tmp_path: Path) -> None:
    made = Orphaning(start, tmp_path)
    made.kill("watcher", "supervisor")
    until(lambda: made.run.state == "unsupervised", 30, "the loss of both to show")
    made.kill("launcher")
    until(lambda: not processes.is_alive(made.state()["launcher"]), 10, "its end")
    assert made.run.stop(now=True, timeout=60)["processes_left"] == 0
    made.nothing_left()


@pytest.mark.full
def test_ranks_that_start_cold_are_not_called_warm(start: Start, tmp_path: Path) -> None:
    """A warm launcher decides for each rank; the run tells what was decided, and why."""
    script = tmp_path / "train.py"
    shutil.copy(SCRIPTS / "leaves_orphans.py", script)
    library = Path(sysconfig.get_paths()["purelib"], "typing_extensions.py")
    shutil.copy(library, tmp_path)  # a cold rank takes this one
    run = start(str(script), (str(tmp_path / "child"),), strategy="single", processes=1)
    until(lambda: run.view()["steps"], 120, lambda: run.logs(tail=20))
    state = read_json(run.directory / "state.json") or {}
    assert state["warm"] is False
    assert "The ranks were started cold:" in state["message"]
    assert "typing_extensions" in state["message"]
    assert run.stop(now=True)["processes_left"] == 0
