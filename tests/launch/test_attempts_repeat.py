"""What an attempt repeats of the one before it, and what it counts: as files, nothing is started."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.entry import app
from workbench.cli.tables import _arguments
from workbench.compare.differences import configuration
from workbench.errors import UsageError
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare.own_decisions import check_own_decisions
from workbench.launching.prepare.recorded_environment import recorded_value, with_hook
from workbench.launching.resume.attempts import Attempts
from workbench.launching.resume.resumable import latest_words
from workbench.launching.resume.resume import next_spec, prepared, with_described
from workbench.launching.start.start import prepare
from workbench.launching.supervise import outcome, rollback, run_state
from workbench.launching.supervise import supervisor as supervisor_module
from workbench.launching.supervise.direct_stop import _end_document
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.restart import restarts_made
from workbench.launching.supervise.run_state import RunState, StopRequest
from workbench.launching.supervise.supervisor import Supervisor
from workbench.recover.policy import Recovery
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import BY_HAND
from workbench.store.starts import PORT_TAKEN, read_attempts

LAUNCHER = ["accelerate", "launch", "--main_process_port", "0", "train.py"]


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    """A run that no one has started yet."""
    document: dict[str, Any] = {
        "run": "one",
        "marker": "m" * 32,
        "created_at": 1.0,
        "processes": 2,
        "strategy": wb.Strategy.parse("ddp", 2).options(),
        "device": "cpu",
        "script": "train.py",
        "command": [*LAUNCHER, "--steps", "100"],
        "arguments": ["--steps", "100"],
        "working_directory": str(tmp_path),
    }
    paths = RunPaths(tmp_path / "one")
    paths.directory.mkdir()
    paths.make_folders()
    write_json_atomic(paths.run, document)
    return RunState.of(paths, RunRecord.of(document))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that a supervisor starts, none of which is."""
    commands: list[list[str]] = []

    def start(command: list[str], **_: object) -> object:
        commands.append(command)
        return SimpleNamespace(pid=os.getpid(), warm=False, why_cold=None)

    monkeypatch.setattr(supervisor_module.launcher_process, "start", start)
    monkeypatch.setattr(supervisor_module, "set_oom_score", lambda *_: None)
    return commands


def resumed(arguments: list[str], given: list[str]) -> Any:
    return {
        "launcher": LAUNCHER,
        "arguments": arguments,
        "environment": {},
        "working_directory": "/",
        "warm": None,
        "resume": {
            "step": 50,
            "checkpoint": "/c/50",
            "why": BY_HAND,
            "told": True,
            "arguments": given,
        },
    }


def test_the_words_of_a_resume_are_kept_without_the_checkpoint_of_that_time(
    state: RunState, started: list[list[str]]
) -> None:
    words = ["--steps", "200", "--from", "{checkpoint}/model.pt"]
    Supervisor(state).start(resumed(words, ["--steps", "200", "--from", "/c/50/model.pt"]))
    assert started[0][-1] == "/c/50/model.pt"
    assert latest_words(state.paths, state.run) == words


def test_a_resume_without_arguments_is_repeated_without_them(state: RunState) -> None:
    state.attempts.begin(first_step=0, checkpoint=None, why=None)
    state.attempts.begin(first_step=50, checkpoint="/c", why=BY_HAND, arguments=[])
    assert latest_words(state.paths, state.run) == []
    state.attempts.begin(first_step=60, checkpoint="/d", why="restart")  # no one gave it any
    assert latest_words(state.paths, state.run) == []
    assert RunState.of(state.paths, state.run).base_spec()["arguments"] == []
    lines = [line for line in read_attempts(state.paths) if line["event"] == "start"]
    told = configuration(state.run.document(), lines)
    assert not any(name.startswith("argument ") for name in told)
    assert _arguments({"attempts": lines}) == "from attempt 2 on: none"


def test_a_supervisor_that_takes_over_repeats_the_words_of_the_resume(state: RunState) -> None:
    assert state.base_spec()["arguments"] == ["--steps", "100"]
    words = ["--steps", "200"]
    state.attempts.begin(first_step=0, checkpoint=None, why=None)
    state.attempts.begin(first_step=50, checkpoint="/c", why=BY_HAND, arguments=words)
    again = RunState.of(state.paths, state.run)
    assert again.base_spec()["arguments"] == words
    assert again.base_spec()["launcher"] == LAUNCHER


def test_a_stop_of_a_run_that_comes_out_of_the_queue_just_now_stands(state: RunState) -> None:
    stop = state.paths.control / "stop"
    stop.touch()
    state.attempts.begin(first_step=0, checkpoint=None, why="its turn in the queue")
    assert stop.exists()
    Attempts(state.paths).begin(first_step=0, checkpoint=None, why=BY_HAND)
    assert not stop.exists(), "it was asked of another attempt"


def test_only_automatic_restarts_since_the_last_start_by_hand_are_counted(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(why: str | None, **more: Any) -> None:
        state.attempts.begin(first_step=0, checkpoint=None, why=why, **more)

    for why in (None, "Rank 0 failed.", BY_HAND, BY_HAND):
        begin(why)
    assert restarts_made(Attempts(state.paths).lines) == 0
    begin("Rank 1 failed.")
    begin(PORT_TAKEN)
    begin("Rolled back.", rollback={"step": 1, "last_step": 2, "reason": "nan", "then": "lower-lr"})
    assert restarts_made(Attempts(state.paths).lines) == 1
    supervisor = Supervisor(RunState.of(state.paths, state.run))
    supervisor.adopt()
    assert supervisor._restarts_before == 1


def test_a_taken_port_is_retried_in_a_later_attempt_too(
    state: RunState, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "address_was_taken", lambda *_: True)
    for why in (None, BY_HAND, BY_HAND):
        state.attempts.begin(first_step=0, checkpoint=None, why=why)
    supervisor = Supervisor(state)
    state.spec = resumed([], [])
    monitor: Any = SimpleNamespace(read=lambda: None, stepping=False, steps=0)
    monkeypatch.setattr(supervisor, "_end_leftovers", lambda _: 0)
    assert [supervisor._retry_port(monitor) for _ in range(3)] == [True, True, False]
    assert len(started) == 2


def test_the_hook_stays_before_a_path_that_a_resume_gives() -> None:
    assert with_hook({"A": "1"}) == {"A": "1"}
    value = with_hook({"PYTHONPATH": "/mine"})["PYTHONPATH"]
    assert value == f"{SITE_FOLDER}{os.pathsep}/mine"


def test_a_resume_that_gives_a_path_keeps_the_hook_for_good(old_store: Path) -> None:
    adopted = CliRunner().invoke(app, ["adopt", "stopped", "--store", str(old_store)])
    assert adopted.exit_code == 0, adopted.exception
    paths = RunPaths(old_store / "stopped")
    asked = prepared(paths, None, ["--steps", 20], (), {"environment": {"PYTHONPATH": "/mine"}})  # type: ignore[list-item]
    words = asked.words
    assert words[words.index("--steps") + 1] == "20"
    again, spec = next_spec(asked)
    hooked = f"{SITE_FOLDER}{os.pathsep}/mine"
    assert spec["environment"]["PYTHONPATH"] == hooked
    assert recorded_value(again, "PYTHONPATH", again.environment["PYTHONPATH"]) == hooked
    assert recorded_value(again, "PYTHONPATH", "/mine") == "/mine"


@pytest.mark.parametrize(
    ("where", "absolute"),
    [
        (None, None),
        ("aws", "aws"),
        ("http://here/notice", "http://here/notice"),
        ("./notice", "/w/notice"),
        ("/there/notice", "/there/notice"),
    ],
)
def test_notices_are_looked_for_from_the_runs_folder(
    where: str | None, absolute: str | None
) -> None:
    assert Recovery(preemption=where).notices_from("/w") == absolute


def test_a_recorded_place_that_gives_no_notice_does_not_end_the_supervisor(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state.signal, "signal", lambda *_: None)
    request = StopRequest(state.paths.control, "file:///tmp/notice")
    request.listen()
    assert request.reason is None
    request.stop_listening()


@pytest.mark.parametrize("where", ["file:///tmp/notice", "ftp://host/x"])
def test_a_place_that_gives_no_notice_is_refused_before_the_start(
    where: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with pytest.raises(UsageError, match="aws, gcp"):
        wb.request(script, cpu=True, store=tmp_path, recovery=Recovery(preemption=where))


def test_a_notice_that_is_there_before_the_run_is_refused(tmp_path: Path) -> None:
    """On a shared volume it outlives the machine that it was about."""
    script, store = tmp_path / "train.py", tmp_path / "runs"
    script.write_text("print('never started')\n")
    notice = tmp_path / "preempted"
    recovery = Recovery(preemption=str(notice))
    paths, _ = prepare(wb.request(script, cpu=True, processes=1, store=store, recovery=recovery))
    write_json_atomic(paths.exit, {"outcome": "preempted", "message": "Pre-empted."})
    assert next_spec(prepared(paths, None, None, (), {}))
    notice.touch()
    said = f"{notice} is there already"
    with pytest.raises(UsageError, match=said):
        next_spec(prepared(paths, None, None, (), {}))
    with pytest.raises(UsageError, match=said):
        wb.launch(script, cpu=True, processes=1, store=store, recovery=recovery)
    assert len(wb.Store(store).ids()) == 1


def test_what_could_never_happen_is_refused_of_a_resume_as_of_a_launch() -> None:
    def check(recovery: Recovery, **changed: Any) -> None:
        given: dict[str, Any] = {
            "capture": True,
            "nodes": 1,
            "recipe": "gpt",
            "script": wb.recipes.find("gpt").path,
            "arguments": ["--checkpoint-every", "5"],
        }
        check_own_decisions(recovery, **given | changed)

    back = Recovery(rollback_on=("nan",))
    check(back)
    for recovery, changed, says in (
        (back, {"nodes": 2}, "one machine, not 2"),
        (back, {"capture": False}, "--no-capture"),
        (Recovery(stop_when="loss > 9"), {"capture": False}, "--no-capture"),
        (back, {"arguments": ["--steps", "5"]}, "saves no checkpoint"),
    ):
        with pytest.raises(UsageError, match=says):
            check(recovery, **changed)


def test_a_fork_trains_the_job_that_it_is_given(tmp_path: Path) -> None:
    job = wb.request("gpt", ["--seq-len", "64"], cpu=True, processes=2, store=tmp_path).job
    assert job is not None
    run = RunRecord(recipe="gpt")
    words = with_described(run, ["--steps", 5], {"job": job})  # type: ignore[list-item]
    assert words is not None
    assert words[-2:] == ["--steps", "5"]
    assert words[words.index("--seq-len") + 1] == "64"
    assert with_described(run, None, {}) is None
    assert with_described(RunRecord(), [], {"job": job}) == []


def test_a_checkpoint_is_read_beside_the_heartbeat(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> tuple[None, list[str]]:
        time.sleep(0.3)
        return None, ["passed"]

    beats: list[str] = []
    monkeypatch.setattr(rollback, "newest_intact", slow)
    monkeypatch.setattr(rollback, "_BEAT_SECONDS", 0.02)
    monkeypatch.setattr(RunState, "write", lambda _, phase: beats.append(phase))
    assert rollback.Rollbacks(state)._newest_of([]) == (None, ["passed"])
    assert set(beats) == {"running"}


def test_why_a_run_is_stopped_is_told_where_no_one_watches(state: RunState) -> None:
    control = state.paths.control
    ended = Verdict(outcome="stopped", message="Stopped as asked.")
    (control / "stop-now").write_text("Out of money.")
    assert StopRequest(control, None).why == "Out of money."
    (control / "stop").write_text("Pruned.")
    assert _end_document(state.paths, ended, 0)["message"].startswith("Pruned. Stopped as asked.")
    failed = Verdict(outcome="failed", message="Rank 0 failed.")
    assert _end_document(state.paths, failed, 0)["message"] == "Rank 0 failed."
