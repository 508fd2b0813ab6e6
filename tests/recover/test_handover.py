"""A run that has just ended is resumed once, when its supervisor has let go of it."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import until
from tests.faults.lab import Lab
from workbench.launching.start.launch_spec import from_checkpoint, recorded_spec
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.recover.policy import Recovery
from workbench.store.layout import RunPaths
from workbench.store.record import read_record

pytestmark = pytest.mark.slow
HELD_SECONDS = 3.0  # a supervisor waits so long for its trackers


def test_resume_waits_for_the_supervisor_before_and_happens_once(store: Path) -> None:
    lab = Lab(store, "--steps", "60")
    assert lab.run.wait(240) == "succeeded", lab.run.logs(tail=20)
    paths = RunPaths(lab.run.directory)
    with paths.lock.open("rb+") as lock:
        until(lambda: _taken(lock), 10, "the lock")
        threading.Timer(HELD_SECONDS, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        began = time.monotonic()
        lab.run.resume("step-00000020")
        assert time.monotonic() - began > HELD_SECONDS / 2
    assert lab.run.wait(240) == "succeeded", lab.run.logs(tail=20)
    assert [line["first_step"] for line in lab.attempts("start")] == [0, 20]

    run, checkpoint = read_record(paths), lab.run.checkpoints()[0]
    late = from_checkpoint(recorded_spec(run), run, checkpoint, "a second click")
    late["resume"]["after"] = 1
    spawn_supervisor(paths, late)
    log = paths.supervisor_log
    until(lambda: "another process has resumed" in log.read_text(), 30, "the second to give up")
    assert lab.run.outcome == "succeeded"
    assert len(lab.attempts("start")) == 2


def _taken(lock: object) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@pytest.mark.full
def test_a_restart_that_cannot_be_started_is_an_end_like_any_other(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is gone: exit.json is written and the last hook runs all the same."""
    place, mark = tmp_path / "place", tmp_path / "ended"
    place.mkdir()
    monkeypatch.chdir(place)
    recovery = Recovery(restarts=3, backoff_seconds=0.5, on_end=("touch", str(mark)))
    lab = Lab(store, recovery=recovery).begun()
    monkeypatch.chdir(tmp_path)
    place.rmdir()
    lab.signal(1)
    until(lambda: not lab.run.status.live, 90, "the end")
    assert lab.run.outcome == "failed"
    assert "could not be started" in str(lab.run.status.message)
    until(mark.exists, 30, "the hook")
    assert lab.left() == []
