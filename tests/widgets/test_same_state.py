"""The page says of every run what the command line says: as it goes on, and whatever died."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.widgets.test_page_state import run as run_module
from workbench.cli.entry import app
from workbench.launching.start.start import _first_view
from workbench.launching.supervise import direct_stop, lifecycle, monitor, restart
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.run_state import RunState
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord
from workbench.store.schema import Outcome, ProcessDoc
from workbench.store.status import HEARTBEAT_FRESH_SECONDS, read_status

MARK = "mark-of-the-run"
TEXTS = {
    **{one: one.capitalize() for one in ("starting", "running", "stopping")},
    **{one: one.capitalize() for one in get_args(Outcome)},
    "no-steps": "No steps",
    "unsupervised": "Not supervised",
    "unreadable": "Unreadable",
}
"""What the page writes for what the command line says."""
# Up to four seconds the page shows what the view says; then it asks the kernel.
AGES = (0.5, 5.0, 15.0, HEARTBEAT_FRESH_SECONDS + 15)


@pytest.fixture(scope="module")
def rank() -> Iterator[ProcessDoc]:
    """A process that bears the run's marker."""
    environment = {**os.environ, MARKER: MARK}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        identity = processes.identify(process.pid)
        assert identity is not None
        yield identity
        process.kill()


class Life:
    """A run as its supervisor writes it, without processes; a copy of it at each moment."""

    def __init__(self, store: Path, rank: ProcessDoc) -> None:
        self.store, self.rank = store, rank
        self.paths = wb.Store(store).create("life")
        record = replace(
            RunRecord(),
            run="life",
            name="life",
            marker=MARK,
            created_at=time.time(),
            processes=1,
            device="cpu",
            capture=True,
            recovery={"restarts": 2},
        )
        write_json_atomic(self.paths.run, record.document())
        self.record = read_record(self.paths, ())
        self.moments: list[RunPaths] = []

    def keep(self, name: str) -> None:
        """What a reader finds at this moment."""
        copy = RunPaths(self.store / f"{len(self.moments):02}-{name}")
        shutil.copytree(self.paths.directory, copy.directory)
        document = {**(read_json(copy.run) or {}), "run": copy.directory.name}
        write_json_atomic(copy.run, document)
        self.moments.append(copy)

    def watch(self) -> monitor.RunMonitor:
        """What begins an attempt, from the first launch or from the one before."""
        state = self.state = RunState.of(self.paths, self.record)
        state.attempts.begin(first_step=0, checkpoint=None, why=None)
        state.write("starting")
        return monitor.RunMonitor(state, RankProcesses(state), begins=True)

    def step(self, watch: monitor.RunMonitor, number: int) -> None:
        """A rank makes a step, and the supervisor looks."""
        line = {"step": number, "time": time.time(), "loss": 1.0, "step_seconds": 0.5}
        with self.paths.rank_metrics(0).open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.state.ranks = {0: self.rank}
        self.look(watch)

    def look(self, watch: monitor.RunMonitor) -> None:
        """As the supervisor's loop does it."""
        watch.look()
        self.state.write(watch.phase)


@contextmanager
def kept_before(name: str, life: Life, patch: pytest.MonkeyPatch, moment: str) -> Iterator[None]:
    """Keep what a reader finds when the monitor comes to that call."""
    with patch.context() as inner:
        inner.setattr(monitor.RunMonitor, name, lambda *_: life.keep(moment))
        yield


def moments(store: Path, rank: ProcessDoc, patch: pytest.MonkeyPatch) -> list[RunPaths]:
    """Each state of a run's life, written by what writes it in a real one."""
    life = Life(store, rank)
    write_json_atomic(life.paths.view, _first_view(life.record))
    life.keep("before-its-supervisor")
    watch = life.watch()
    life.look(watch)
    life.keep("starting")
    life.step(watch, 1)
    life.keep("running")
    restarts = restart.RestartController(life.state)
    restarts._wait(watch, 0.01)
    life.keep("waiting-for-its-restart")
    watch.close(Verdict(outcome="failed", message="Rank 0 ended."))
    life.state.begin_attempt()
    life.state.write("starting")
    life.keep("next-attempt")
    watch = life.watch()
    life.step(watch, 2)
    life.state.ladder.request(now=False, steps=2, step_seconds=0.5, reason="stopped")
    life.look(watch)
    life.keep("stopping")
    running = life.moments[2]
    with kept_before("_write_report", life, patch, "about-to-end"):
        watch.finish(1, Verdict(outcome="failed", message="It failed.", failed_rank=0), 0)
    lifecycle._reopen(life.state)
    life.keep("resumed")
    patch.setattr(monitor.RunMonitor, "_write_report", lambda *_: None)
    for outcome in get_args(Outcome):
        watch.finish(1, Verdict(outcome=outcome, message=f"It is {outcome}."), 0)
        life.keep(outcome)
    stopped = RunPaths(store / "98-stopped-without-a-supervisor")
    shutil.copytree(running.directory, stopped.directory)
    direct_stop._tell_end(stopped, life.record, "stopped", 0)
    torn = RunPaths(store / "99-torn-end")
    shutil.copytree(running.directory, torn.directory)
    torn.exit.write_text('{"outcome": "succ')
    return [*life.moments, stopped, torn]


@dataclass(frozen=True)
class Death:
    """Who of the run lives."""

    supervisor: bool
    ranks: bool
    elsewhere: bool = False
    watcher: bool = False


DEATHS = {
    "nobody": Death(supervisor=True, ranks=True),
    "supervisor": Death(supervisor=False, ranks=True),
    "everybody": Death(supervisor=False, ranks=False),
    "all but the watcher": Death(supervisor=False, ranks=False, watcher=True),
    "on another machine": Death(supervisor=False, ranks=False, elsewhere=True),
}


def die(paths: RunPaths, death: Death, age: float) -> None:
    """As if those had died, and nothing was written since `age` seconds."""
    here = processes.identify(os.getpid())
    assert here is not None
    gone = {**here, "start_ticks": here["start_ticks"] + 1}
    written = time.time() - age
    state = read_json(paths.state)
    if state is not None:
        if death.elsewhere:
            state["supervisor"] = {**state["supervisor"], "boot_id": "another"}
        elif not death.supervisor:
            state["supervisor"] = gone
        if not death.ranks:
            state["ranks"] = dict.fromkeys(state["ranks"], gone)
        state["watcher"] = here if death.watcher else gone
        write_json_atomic(paths.state, {**state, "heartbeat": written})
    run, view = read_json(paths.run) or {}, read_json(paths.view) or {}
    write_json_atomic(paths.run, {**run, "created_at": written})
    if view.get("written_at") is not None:
        write_json_atomic(paths.view, {**view, "written_at": written})


def as_the_command_says(paths: RunPaths) -> str:
    words = ["show", paths.directory.name, "--store", str(paths.directory.parent), "--json"]
    shown = json.loads(CliRunner().invoke(app, words).stdout)
    assert shown["outcome"] is None or shown["state"] in {"ended", "interrupted"}
    return shown["outcome"] or shown["state"]


def case(paths: RunPaths, age: float) -> dict[str, Any]:
    """What the page knows: the view, and what the kernel said when it was asked."""
    view = read_json(paths.view) or {}
    known = age if view.get("written_at") else None
    answer = {**asdict(read_status(paths)), "ageSeconds": 0.3}
    return {"view": view, "age": known, "answer": answer}


def pages(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return run_module(
        folder,
        f"""const {{ late, runState }} = await import("./state.js");
        const link = {{ transport: "http", kernel: "answers" }};
        console.log(JSON.stringify({json.dumps(cases)}.map(({{ view, age, answer }}) =>
          runState(view, age, link, late(view, age) ? answer : null))));""",
    )


def cases_of(moment: RunPaths) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, the command's answer and what the page knows, for each death and age of the view."""
    files = [moment.run, moment.state, moment.view]
    before = {path: path.read_bytes() for path in files if path.exists()}
    for who, death in DEATHS.items():
        for age in AGES if who == "nobody" else AGES[1::2]:
            die(moment, death, age)
            name = f"{moment.directory.name}, dead: {who}, {age} s"
            yield name, as_the_command_says(moment), case(moment, age)
            for path, content in before.items():
                path.write_bytes(content)


def test_the_page_and_the_command_say_the_same(
    tmp_path: Path, rank: ProcessDoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = moments(tmp_path / "lives", rank, monkeypatch)
    table = [one for moment in lived for one in cases_of(moment)]
    (tmp_path / "js").mkdir()
    shown = pages(tmp_path / "js", [known for *_, known in table])
    differ = [
        f"{name}: the command says {state}, the page {page['badge']['text']}"
        for (name, state, _), page in zip(table, shown, strict=True)
        if page["badge"]["text"] != TEXTS[state]
    ]
    assert not differ, "\n".join(differ)
    assert {state for _, state, _ in table} == TEXTS.keys() - {"unreadable"}


def test_a_row_of_a_table_says_what_the_command_says(tmp_path: Path) -> None:
    """An unreadable run was "Waiting" there."""
    rows = [
        {"phase": "ended", "outcome": name} if name in get_args(Outcome) else {"phase": name}
        for name in TEXTS
    ]
    shown = run_module(
        tmp_path,
        f"""const {{ badge }} = await import("./state.js");
        console.log(JSON.stringify({json.dumps(rows)}.map((row) => badge(row).text)));""",
    )
    assert shown == list(TEXTS.values())


def test_a_run_that_gets_another_supervisor_is_not_over(
    tmp_path: Path, rank: ProcessDoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launch --wait` took it for interrupted, and ended."""
    running = moments(tmp_path / "lives", rank, monkeypatch)[2]
    die(running, DEATHS["all but the watcher"], 1.0)
    status = read_status(running)
    assert status.live
    assert status.state == "running"
    assert "its watcher starts another one" in str(status.message)


def test_no_fault_of_ours_costs_the_run_its_end(
    tmp_path: Path, rank: ProcessDoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a package that is replaced while the run is at work."""
    life = Life(tmp_path, rank)
    watch = life.watch()
    life.step(watch, 1)
    for where, name in (
        ("workbench.launching.resume.resumable", "why_not_resumable"),
        ("workbench.observe.rows", "keep_row"),
        ("workbench.observe.report", "write_report"),
    ):
        monkeypatch.delattr(f"{where}.{name}")
    watch.finish(0, Verdict(outcome="succeeded", message="Done."), 0)
    assert read_status(life.paths).outcome == "succeeded"
