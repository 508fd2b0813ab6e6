"""The command at the end may stop the machine: it comes after the mirror's last copy."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from workbench.launching.supervise import sidecars
from workbench.recover.policy import Recovery
from workbench.storage import mirror_state
from workbench.storage.mirror_state import MirrorState, mirror_lock, write_mirror
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.taking_over import Place


class Ended:
    """A run that has ended while its mirror sends the last checkpoint."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.started = RunPaths(folder), list[str]()
        self.paths.make_folders()
        run = RunRecord(run="r", mirror="s3://pods/runs")
        self.sidecars = sidecars.Sidecars(self.paths, run, Recovery(on_end=("runpodctl", "stop")))
        monkeypatch.setattr(self.sidecars, "_spawn", lambda what, *_: self.started.append(what))
        monkeypatch.setattr(mirror_state, "_LOOK_SECONDS", 0.01)
        self.mirror = Place(mirror_lock(self.paths))


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    return Ended(tmp_path, monkeypatch)


def test_the_machine_is_stopped_once_the_last_copy_is_made(ended: Ended) -> None:
    thread = threading.Thread(target=ended.sidecars.last_hook, daemon=True)
    thread.start()
    time.sleep(0.3)
    assert not ended.started
    ended.mirror.leave()
    thread.join(10)
    assert ended.started == ["on_end"]


def test_a_mirror_that_hangs_does_not_keep_the_machine(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mirror(ended.paths, MirrorState(url="s3://pods/runs", told_at=1.0))
    monkeypatch.setattr(mirror_state, "_HANGS_SECONDS", 0.1)
    ended.sidecars.last_hook()
    assert ended.started == ["on_end"]
    ended.mirror.leave()


@pytest.mark.parametrize("by", ["exit", "attempts"])
def test_the_machine_of_a_run_that_is_resumed_meanwhile_is_not_stopped(
    ended: Ended, by: str
) -> None:
    ended.paths.exit.write_text("{}")
    thread = threading.Thread(target=ended.sidecars.last_hook, daemon=True)
    thread.start()
    time.sleep(0.1)
    if by == "exit":
        ended.paths.exit.unlink()
    else:
        ended.paths.attempts.write_text('{"attempt": 2, "event": "start", "time": 1.0}\n')
    thread.join(10)
    assert not thread.is_alive()
    assert not ended.started
    ended.mirror.leave()
