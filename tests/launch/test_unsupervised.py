"""A run whose supervisor and watcher are gone: every face tells it at once, and what to type."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.conftest import until
from tests.widgets.test_page_state import NODE
from tests.widgets.test_page_state import run as run_script
from workbench.cli import live
from workbench.cli.entry import app
from workbench.launching.capture.pulse import FORWARD, Pulse
from workbench.store import processes
from workbench.store.commands import command_for
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER

MARK = "ab5e" * 8
ADOPT, STOP = "workbench adopt lost", "workbench stop lost"


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """What is left of the run: one process that bears its mark."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: MARK})
    until(lambda: processes.is_marked(processes.identify(process.pid), MARK), 20, "the process")
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def paths(tmp_path: Path, rank: subprocess.Popen[bytes]) -> RunPaths:
    """view.json stands at step 3, as the supervisor left it; the two ranks have made 7 and 8."""
    found = wb.Store(tmp_path / "runs").create("lost")
    write_json_atomic(
        found.run,
        {
            "run": "lost",
            "name": "lost",
            "marker": MARK,
            "created_at": 1.0,
            "processes": 2,
            "device": "cpu",
            "capture": True,
            "strategy_name": "ddp",
            "script": "train.py",
            "arguments": [],
        },
    )
    gone = {"pid": 1, "start_ticks": 0, "boot_id": processes.boot_id()}
    state = {"phase": "running", "supervisor": gone, "launcher": processes.identify(rank.pid)}
    began = {"started_at": time.time() - 500, "heartbeat": time.time() - 100}
    write_json_atomic(found.state, {**state, **began, "ranks": {}, "attempt": 1})
    view = {"seq": 9, "phase": "running", "run": "lost", "steps": 3, "loss_last": 9.0}
    written = {"elapsed_seconds": 400.0, "written_at": time.time() - 100}
    write_json_atomic(found.view, {**view, **written})
    for number, steps in ((0, 7), (1, 8)):
        rows = [
            {"step": step, "time": 2.0, "loss": step + number / 2} for step in range(1, steps + 1)
        ]
        found.rank_metrics(number).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


def command(paths: RunPaths, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--store", str(paths.directory.parent)])
    assert done.exit_code == 0, (done.output, done.exception)
    return " ".join(done.stdout.split())


def test_lists_and_tables_name_the_commands(paths: RunPaths) -> None:
    for words in (["runs"], ["show", "lost"], ["diagnose", "lost"], ["runs", "--json"]):
        told = command(paths, *words)
        assert ADOPT in told, words
        assert STOP in told, words
    assert ADOPT not in command(paths, "runs", "--where", "strategy=single")


def test_findings_are_the_same_in_every_face(paths: RunPaths) -> None:
    (diagnosed,) = json.loads(command(paths, "diagnose", "lost", "--json"))
    assert (diagnosed["kind"], diagnosed["next"].count(ADOPT)) == ("unsupervised", 1)
    adopt = command_for(paths.directory, "adopt")  # its store is not the usual one
    assert (diagnosed["id"], diagnosed["next_command"]) == ("unsupervised", adopt)
    assert adopt in diagnosed["next"]
    assert json.loads(command(paths, "show", "lost", "--json"))["findings"] == [diagnosed]
    assert not paths.findings.exists()  # derived, never kept: it is over as soon as one watches


def test_attach_says_it_before_it_waits(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live.time, "sleep", give_up)
    told = command(paths, "attach", "lost")
    assert ADOPT in told
    assert told.index(ADOPT) < told.index("step 8")


def test_the_ranks_files_are_followed(paths: RunPaths) -> None:
    """By their latest common step, in the mean over all ranks."""
    shown = json.loads(command(paths, "show", "lost", "--json"))
    assert (shown["steps"], shown["loss_last"]) == (8, 7.25)
    assert shown["elapsed_seconds"] == pytest.approx(500, abs=60)
    with paths.rank_metrics(0).open("a") as file:
        file.write(json.dumps({"step": 8, "time": 3.0, "loss": 1.5}) + "\n")
    view = wb.attach("lost", paths.directory.parent).view()
    assert (view["steps"], view["loss_last"]) == (8, 5.0)
    assert [row["step"] for row in json.loads(command(paths, "metrics", "lost", "--json"))][-1] == 8
    (listed,) = json.loads(command(paths, "runs", "--json"))
    assert listed["steps"] == 8


def test_what_ended_unwatched_has_all_its_steps_and_no_later_seconds(
    paths: RunPaths, rank: subprocess.Popen[bytes]
) -> None:
    pulse = Pulse(str(paths.rank_pulse(0)))
    pulse.beat(FORWARD, 9)
    pulse.flush()
    rank.kill()
    rank.wait()
    shown = json.loads(command(paths, "show", "lost", "--json"))
    assert (shown["state"], shown["steps"], shown["loss_last"]) == ("interrupted", 9, 7.25)
    assert shown["elapsed_seconds"] == pytest.approx(500, abs=60)
    view = wb.attach("lost", paths.directory.parent).view()
    assert view["steps"] == 9
    (listed,) = json.loads(command(paths, "runs", "--json"))
    assert listed["steps"] == 9
    paths.rank_pulse(0).unlink()  # no one knows when it ended: as the view was last written
    assert json.loads(command(paths, "show", "lost", "--json"))["elapsed_seconds"] == 400


def test_the_page_names_the_commands(paths: RunPaths, tmp_path: Path) -> None:
    from workbench_widgets import RunDashboard

    run = wb.attach("lost", paths.directory.parent)
    told = repr(RunDashboard(run))
    assert ADOPT in told
    assert "step 8" in told
    if NODE is None:
        pytest.skip("needs node, which runs the page's modules")
    status = {"state": run.state, "outcome": run.outcome, "message": run.status.message}
    sentence = run_script(
        tmp_path,
        f"""const {{ runState }} = await import("./state.js");
        const link = {{ transport: "http", kernel: "answers" }};
        const found = runState({{ run: "lost", phase: "running" }}, 100, link, {json.dumps(status)});
        console.log(JSON.stringify(found.sentence));
        """,
    )
    assert ADOPT in sentence
    assert STOP in sentence


def test_stop_ends_it(paths: RunPaths, rank: subprocess.Popen[bytes]) -> None:
    launcher = processes.identify(rank.pid)
    told = json.loads(command(paths, "stop", "lost", "--now", "--json"))
    assert told == {"run": "lost", "outcome": "stopped", "processes_left": 0}
    assert not processes.is_alive(launcher)
    assert (read_json(paths.exit) or {})["outcome"] == "stopped"
    assert ADOPT not in command(paths, "show", "lost")
    assert json.loads(command(paths, "show", "lost", "--json"))["steps"] == 8
