"""The table of a store as pages ask for it: which runs it shows, how old it may be, what may wait for what."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.sample_runs import SampleRun
from workbench.errors import StoreError
from workbench.pages import actions, run_rows
from workbench.pages.pauses import pause_seconds
from workbench.pages.run_rows import read_table
from workbench.pages.server import routes
from workbench.pages.server.routes import Routes


class Clock:
    """Stands for `time` in the module of the routes."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(routes, "time", made)
    return made


def rows_of(table: Routes) -> list[Any]:
    return json.loads(table.get("/api/runs", {}, acts=True).data)["rows"]


def test_one_slow_reading_does_not_hold_the_table_up(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold index, or a file system that hung for a moment."""
    durations = iter([44.0, 1.0, 1.0, 0.0])

    def read(_store: Path) -> run_rows.RunTable:
        clock.now += next(durations)
        return {"rows": [{"read_at": clock.now}], "of": 1}

    monkeypatch.setattr(routes, "read_table", read)
    table = Routes(tmp_path)
    assert rows_of(table) == [{"read_at": 44.0}]
    clock.now += 14.0
    assert rows_of(table) == [{"read_at": 44.0}]
    clock.now += 2.0
    assert rows_of(table) == [{"read_at": 61.0}]
    SampleRun(tmp_path, "one")
    table.post("/api/runs/one/act", {"type": "stop"}, acts=True)
    assert rows_of(table) == [{"read_at": 62.0}]  # who acted sees what came of it
    assert pause_seconds(0.1, 1.5) == 2.0
    assert pause_seconds(0.0, 1.5) == 1.5
    assert pause_seconds(30.0, 60.0) == 60.0


def test_a_store_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_store: Path) -> None:
        raise StoreError("The run store /runs cannot be read: stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(routes, "read_table", away)
        table = Routes(tmp_path)
        answer = table.get("/api/runs", {}, acts=True)
    assert answer.status == 503
    assert "cannot be read: stale" in json.loads(answer.data)["error"]
    clock.now += 2.0
    assert rows_of(table) == []
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError):
        read_table(file)


def test_a_live_run_is_shown_however_many_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest_first = [
        {"run": f"run-{number}", "state": "running" if number in (0, 299) else "ended"}
        for number in range(299, -1, -1)
    ]
    monkeypatch.setattr(run_rows.index, "table", lambda _store: newest_first)
    table = read_table(tmp_path)
    assert table["of"] == 300
    names = [row["run"] for row in table["rows"]]
    assert len(names) == 201
    assert (names[0], names[-1]) == ("run-299", "run-0")


def test_a_stop_waits_for_no_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run is resumed every byte of its checkpoint is read: minutes for a large one."""
    for name in ("one", "two"):
        SampleRun(tmp_path, name)
    begun, go_on = threading.Event(), threading.Event()

    def resume(run: Any, _checkpoint: str | None) -> actions.Message:
        begun.set()
        assert go_on.wait(60)
        return {"bad": False, "run": run.id, "text": "Resumed."}

    monkeypatch.setattr(actions, "resume", resume)
    monkeypatch.setattr(actions, "stop", lambda _run, *, now: None)
    table = Routes(tmp_path)
    said: list[Any] = []

    def act(run: str, kind: str) -> Any:
        return json.loads(table.post(f"/api/runs/{run}/act", {"type": kind}, acts=True).data)

    resuming = threading.Thread(target=lambda: said.extend(act("one", "resume")))
    resuming.start()
    assert begun.wait(60)
    stopping = threading.Thread(target=lambda: [act(run, "stop") for run in ("one", "two")])
    stopping.start()
    stopping.join(60)
    answered = not stopping.is_alive()
    again = act("one", "resume") if answered else []
    go_on.set()
    resuming.join(60)
    assert answered
    assert [one["text"] for one in again] == ["It is being resumed already."]
    assert [one["text"] for one in said] == ["Resumed."]


def test_the_table_tells_the_time_at_work_and_the_first_loss_that_was_none(tmp_path: Path) -> None:
    """A run that was resumed two days later trained for an hour."""
    run = SampleRun(tmp_path, "one")
    more = {"elapsed_seconds": 3600.0, "nonfinite_step": 90}
    run.write(120, phase="ended", outcome="failed", **more)
    (row,) = read_table(tmp_path)["rows"]
    assert (row["hours"], row["nonfinite_step"]) == (1.0, 90)
