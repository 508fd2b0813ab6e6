"""Whether a process lives, and which processes a run has."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import until
from workbench.store import processes

FIRST_THREAD_ENDS = """\
import ctypes, fcntl, os, sys, threading, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def is_locked(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_process_lives_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """As in the moment after a kill: its first thread is a zombie, its locks are still held.

    Whoever takes such a supervisor for dead and asks for its lock is refused.
    """
    lock = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-S", "-c", FIRST_THREAD_ENDS, str(lock)])
    try:
        until(lambda: (processes.stat_fields(process.pid) or "?")[0] == "Z", 30, "the zombie")
        known = processes.identify(process.pid)
        assert is_locked(lock)
        assert processes.is_alive(known)
        assert processes.send_signal(known, signal.SIGKILL)  # type: ignore[arg-type]
        until(lambda: not processes.is_alive(known), 30, "its end")
        assert not is_locked(lock)
    finally:
        process.kill()
        process.wait()


def test_members_are_found_by_marker_by_keeper_and_by_descent() -> None:
    """A reaper is no part of the run itself, nor is what descends through the excluded."""
    marker = uuid.uuid4().hex
    child = "import subprocess; subprocess.run(['sleep', '1000'], env={})"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", child], env={**os.environ, **more})
        for more in (
            {processes.MARKER: marker},
            {processes.REAPER_MARKER: marker},
            {"UNRELATED": marker},
        )
    ]
    marked, reaper, helper = (process.pid for process in started)
    try:
        until(lambda: _names(marked, reaper, helper) == ["sleep"] * 3, 30, "the children")
        (of_reaper,) = (one["pid"] for one in processes.descendants(reaper))
        (of_helper,) = (one["pid"] for one in processes.descendants(helper))

        def members(*parents: int, excluded: tuple[int, ...] = ()) -> set[int]:
            return {one["pid"] for one in processes.members(marker, parents, excluded)}

        assert members() == {marked, of_reaper}
        assert members(helper) == {marked, of_reaper, of_helper}
        below_us = members(os.getpid(), excluded=(helper,))
        assert {marked, reaper, of_reaper} <= below_us
        assert not below_us & {helper, of_helper}
    finally:
        for process in processes.descendants(marked, reaper, helper):
            processes.send_signal(process, signal.SIGKILL)
        for process in started:
            process.kill()
            process.wait()


def _names(*parents: int) -> list[str]:
    """Of their descendants; a fork has its parent's until it starts its own program."""
    below = processes.descendants(*parents)
    return [Path(f"/proc/{one['pid']}/comm").read_text().strip() for one in below]


def test_members_reads_each_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor asks every few seconds, on machines with thousands of processes."""
    read, real = list[str](), processes._read

    def note(path: str, most: int) -> bytes:
        read.append(path)
        return real(path, most)

    monkeypatch.setattr(processes, "_read", note)
    # A parent without children: this process may still have some of other tests.
    with subprocess.Popen(["sleep", "60"]) as parent:
        found = processes.members(uuid.uuid4().hex, [parent.pid])
        parent.kill()
    assert found == []
    environments = [path for path in read if path.endswith("/environ")]
    assert environments
    assert len(environments) == len(set(environments))


def test_a_second_scan_reads_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones are read twice: the first time they may still have the environment of a fork."""
    marker, read, real = uuid.uuid4().hex, list[str](), processes._read

    def note(path: str, most: int) -> bytes:
        read.append(path)
        return real(path, most)

    with contextlib.ExitStack() as ended:
        parent = ended.enter_context(_sleeping({}))
        scan = processes.MemberScan(marker)
        assert scan.look([parent.pid]) == []
        scan.look([parent.pid])
        marked = ended.enter_context(_sleeping({processes.MARKER: marker}))
        monkeypatch.setattr(processes, "_read", note)
        for _ in range(4):
            assert {one["pid"] for one in scan.look([parent.pid])} == {marked.pid}
        assert read.count(f"/proc/{marked.pid}/environ") == 2
        assert f"/proc/{parent.pid}/environ" not in read
        below_us = processes.MemberScan(marker)
        assert {one["pid"] for one in below_us.look([os.getpid()], [parent.pid])} >= {marked.pid}
        marked.kill()
        marked.wait()
        assert scan.look([parent.pid]) == []


@contextlib.contextmanager
def _sleeping(variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **variables}) as process:
        try:
            environment = Path(f"/proc/{process.pid}/environ")
            while not environment.read_bytes():  # it is empty for a moment after the exec
                time.sleep(0.001)
            yield process
        finally:
            process.kill()


def test_what_a_copy_of_a_run_directory_names_is_no_process_of_it(tmp_path: Path) -> None:
    """The marker is copied with the directory: a stop of the copy may not end the original."""
    marker = uuid.uuid4().hex
    original, copy, moved = (tmp_path / name for name in ("original", "copy", "moved"))
    original.mkdir()
    copy.mkdir()
    shown = {processes.MARKER: marker, processes.DIRECTORY: str(original)}
    with _sleeping(shown) as process:
        found = processes.identify(process.pid)
        until(lambda: processes.is_marked(found, marker), 20, "the sleeper")
        assert [one["pid"] for one in processes.find_marked(marker, original)] == [process.pid]
        assert processes.is_marked(found, marker, original)
        assert processes.find_marked(marker, copy) == []
        assert processes.members(marker, directory=copy) == []
        assert not processes.is_marked(found, marker, copy)
        original.rename(moved)
        assert [one["pid"] for one in processes.members(marker, directory=moved)] == [process.pid]
