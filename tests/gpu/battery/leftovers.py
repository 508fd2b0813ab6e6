"""What a battery that was killed must not leave behind: lanes, cases, and what those started.

Forks die with their parent. Whatever a case starts (probes, torchrun, runs with their supervisors,
warm servers) bears a variable of its lane, by which it is found and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.launching.warm import client
from workbench.store import processes

_MARK = "GPU_BATTERY_LANE"
_PR_SET_PDEATHSIG = 1
_LOCK = "lock"


def die_with(parent: int, number: int) -> None:
    """In a fork: the signal `number` comes when `parent` is gone, also when it was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def mark(out: Path, lane: str) -> None:
    """What this process starts from now on bears the lane; its warm servers are its own."""
    os.environ[_MARK] = f"{out}:{lane}"
    os.environ[client.FOLDER] = tempfile.mkdtemp(prefix="battery-warm-")


def end_left(out: Path, lanes: Sequence[str]) -> None:
    """End all that cases of these lanes started."""
    marks = [f"{out}:{lane}" for lane in lanes]
    ended = [
        process
        for entry in os.listdir("/proc")
        if entry.isdecimal() and int(entry) != os.getpid()
        for mark_ in marks
        if processes.has_variable(int(entry), _MARK, mark_)
        and (process := processes.identify(int(entry))) is not None
    ]
    for process in ended:
        processes.send_signal(process, signal.SIGKILL)
    processes.wait_gone(ended, 10.0)


def finish(out: Path, lane: str) -> None:
    """The lane is over: nothing that it started lives on."""
    end_left(out, [lane])
    shutil.rmtree(os.environ[client.FOLDER], ignore_errors=True)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """One battery measures into a folder at a time; the forks of a killed one are waited for."""
    with (out / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another battery that measures into {out} …", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
