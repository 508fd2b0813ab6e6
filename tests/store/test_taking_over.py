"""Of two processes of a kind beside a run the newest stays: the mirror, the messages."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import until
from workbench.notifying import __main__ as messages
from workbench.notifying.targets import Target, write_targets
from workbench.storage import __main__ as mirroring
from workbench.store import taking_over
from workbench.store.layout import RunPaths
from workbench.store.taking_over import Place


def waiting(path: Path) -> tuple[threading.Thread, list[Place]]:
    """Another process of that kind, which waits for its place."""
    got = list[Place]()
    thread = threading.Thread(target=lambda: got.append(Place(path)), daemon=True)
    thread.start()
    return thread, got


def test_the_one_before_is_asked_to_leave(tmp_path: Path) -> None:
    path = tmp_path / "mirror.lock"
    first = Place(path)
    assert not first.is_wanted
    thread, got = waiting(path)
    until(lambda: first.is_wanted, 5, "the second asks")
    assert not got
    first.leave()
    thread.join(5)
    assert not got[0].is_wanted
    got[0].leave()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_keeps_no_one_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    Place(tmp_path / "lock").leave()
    monkeypatch.setattr(os, "pwrite", full)
    place = Place(tmp_path / "lock")
    assert not place.is_wanted
    place.leave()


class Endless:
    """A mirror, or messages, of a run that goes on."""

    begun, handed_over = 0, 0

    def __init__(self, *_: object) -> None:
        Endless.begun += 1

    def look(self, *_: float, **__: bool) -> bool:
        return True

    def hand_over(self, *_: str) -> None:
        Endless.handed_over += 1


@pytest.mark.parametrize("kind", ["mirror", "notify"])
def test_a_resumed_run_has_the_processes_of_its_latest_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the start before have its addresses and credentials."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_targets({"phone": Target(name="phone", url="json://localhost")})
    paths = RunPaths(tmp_path / "r")
    paths.directory.mkdir(mode=0o700)
    paths.make_folders()
    paths.run.write_text(json.dumps({"run": "r"}))
    module: Any = {"mirror": mirroring, "notify": messages}[kind]
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(taking_over, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, {"mirror": "Mirror", "notify": "Follower"}[kind], Endless)
    monkeypatch.setattr(sys, "argv", ["x", str(paths.directory), "--to", "phone"])
    Endless.begun = Endless.handed_over = 0
    processes = [threading.Thread(target=module.main, daemon=True) for _ in range(2)]
    for number, process in enumerate(processes, 1):
        process.start()
        until(lambda number=number: Endless.begun == number, 5, "it is at work")
    processes[0].join(5)
    assert not processes[0].is_alive()
    place = Place(paths.logs / f"{kind}.lock")
    place.leave()
    processes[1].join(5)
    assert Endless.handed_over == (2 if kind == "notify" else 0)
