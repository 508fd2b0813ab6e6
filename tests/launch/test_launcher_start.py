"""What a supervisor hands on to the launcher; what it tells where none starts; its last hook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import allowed, until
from workbench.launching.start.launch_spec import LaunchSpec
from workbench.launching.start.start import prepare
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.recover.policy import Recovery
from workbench.storage.mirror_state import mirror_lock
from workbench.store import processes
from workbench.store.files import append_line, read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND
from workbench.store.taking_over import Place

Prepare = Callable[..., tuple[RunPaths, LaunchSpec]]
STOPPED_AT_ONCE = """
import sys
from workbench.launching.supervise import lifecycle

reopen = lifecycle._reopen

def reopen_and_stop(state):
    reopen(state)
    (state.paths.control / "stop").touch()

lifecycle._reopen = reopen_and_stop
lifecycle.supervise(sys.argv[1], sys.stdin.buffer.read(), adopting=False)
"""
HOW_IT_TAKES_SIGNALS = "import signal; print([signal.getsignal(n) for n in (1, 2, 15)])"


@pytest.fixture
def prepared(store: Path, tmp_path: Path) -> Prepare:
    """A run whose launcher is another program, or in another folder; nothing is started."""
    script = tmp_path / "train.py"
    script.write_text("print('no launcher of ours starts it')\n")

    def make(recovery: Recovery, **changes: Any) -> tuple[RunPaths, LaunchSpec]:
        request = wb.request(script, cpu=True, processes=1, store=store, recovery=recovery)
        paths, spec = prepare(request)
        made: Any = {**spec, "warm": None, **changes}
        return paths, made

    return make


def ended(paths: RunPaths, spec: LaunchSpec) -> wb.Run:
    """Start it and wait for its end."""
    spawn_supervisor(paths, spec)
    run = wb.Run(paths)
    until(lambda: run.state == "ended", 60, "the end")
    return run


def watched(paths: RunPaths) -> bool:
    """Whether its watcher is still there."""
    return paths.directory in processes.watched_directories()


def program(text: str) -> dict[str, Any]:
    """In place of a launcher and its script."""
    return {"launcher": [sys.executable, "-S", "-c", text], "arguments": []}


def test_a_folder_that_is_gone_is_told_and_tried_again(prepared: Prepare, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    recovery = Recovery(restarts=1, backoff_seconds=0.1)
    run = ended(*prepared(recovery, working_directory=gone))
    assert run.outcome == "failed"
    message = str(run.status.message)
    assert message.startswith("The launcher could not be started: [Errno 2] No such file")
    assert gone in message
    assert run.view()["attempt"] == 2, "the one restart that it had"


def test_the_script_takes_signals_as_from_a_shell(prepared: Prepare) -> None:
    """Weights & Biases, for one, ends a run by the interrupt that Ctrl-C would be."""
    run = ended(*prepared(Recovery(), **program(HOW_IT_TAKES_SIGNALS)))
    printed = run.logs()
    assert "SIG_IGN" not in printed
    assert "default_int_handler" in printed


def test_the_last_hook_comes_though_the_supervisor_is_killed_before_it(
    prepared: Prepare, tmp_path: Path
) -> None:
    """It may stop a machine that costs: it waits for the mirror's last copy, which takes long."""
    mark = tmp_path / "stopped"
    paths, spec = prepared(Recovery(on_end=("touch", str(mark))), **program(""))
    mirror = Place(mirror_lock(paths))
    ended(paths, spec)
    assert processes.send_signal((read_json(paths.state) or {})["supervisor"], 9)
    assert not mark.exists()
    mirror.leave()
    until(mark.exists, 60, "the hook")
    until(lambda: not watched(paths), 60, "the watcher's end")
    assert paths.supervisor_log.read_text().count("on_end: started") == 1


def test_a_stop_asked_for_as_soon_as_a_resumed_run_is_live_stands(prepared: Prepare) -> None:
    """The one of the attempt before is done with; this one must not be lost with it."""
    paths, spec = prepared(Recovery(), **program("import time; time.sleep(600)"))
    for event in ("start", "end"):
        append_line(paths.attempts, json.dumps({"attempt": 1, "event": event, "time": 1}).encode())
    write_json_atomic(paths.exit, {"outcome": "failed", "message": "It failed."})
    (paths.control / "stop-now").touch()
    resumed = {"step": 0, "checkpoint": None, "why": BY_HAND, "after": 1}
    subprocess.run(
        [sys.executable, "-c", STOPPED_AT_ONCE, str(paths.directory)],
        input=json.dumps({**spec, "resume": resumed}).encode(),
        check=True,
        timeout=allowed(120),
        capture_output=True,
    )
    assert wb.Run(paths).outcome == "stopped"
    assert not (paths.control / "stop-now").exists()
