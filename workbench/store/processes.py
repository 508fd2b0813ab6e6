"""Processes: who they are, which belong to a run, and signalling only those.

A pid alone names a stranger after a reboot or a wrap-around; pid + start time + boot id does not.
The processes of a run are found by the marker in their environment, because torchrun puts every
worker into a session of its own and a killed launcher leaves them behind (``killpg`` misses them).
A copy of a run directory has the same marker: where a function takes the run's `directory`, a
process that was started for another directory that exists is no part of the run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from workbench.store.schema import ProcessDoc

MARKER = "WORKBENCH_RUN_ID"
DIRECTORY = "WORKBENCH_RUN_DIR"
"""In the environment of all processes of a run: its directory."""
REAPER_MARKER = "WORKBENCH_KEEPER_OF"
"""In the environment of a warm launcher's parent, which is no part of the run; what descends from
it is."""
SAFE_PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))
"""Python that puts no working directory on its module path; 3.10 has no such option: where it
matters the working directory of its processes is one that only root can write to."""
WATCHER = "workbench.launching.supervise.watcher"
"""The module of the process beside a supervisor; the run directory stands behind it."""
_PROC = "/proc"
_SCAN_AGAIN_SECONDS = 60.0
_MAX_ENVIRONMENT = 4 << 20  # the kernel's own bound for one exec is about 2 MiB


@cache
def boot_id() -> str:
    """This boot's id; "unknown" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def stat_fields(pid: int) -> list[str] | None:
    """Fields 3.. of ``/proc/PID/stat`` (state first); None when there is no such process."""
    data = _read(f"/proc/{pid}/stat", 2048)
    if not data:
        return None
    return data[data.rindex(b")") + 2 :].decode("ascii", errors="replace").split()


def _read(path: str, size: int) -> bytes:
    """Up to `size` bytes of a /proc file, b"" when it cannot be read; many calls a second."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, size)
    except OSError:
        return b""
    finally:
        os.close(handle)


def identify(pid: int) -> ProcessDoc | None:
    """Identity of the living process `pid`; None when it is gone."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    return _identity(pid, fields)


def _identity(pid: int, fields: list[str]) -> ProcessDoc:
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot_id()}


def name(pid: int) -> str:
    """The program's name, 15 letters at most; "" when it is gone."""
    return _read(f"/proc/{pid}/comm", 64).decode(errors="replace").strip()


def waits_in(pid: int) -> str:
    """The kernel's function in which its first thread waits; "" where the kernel does not tell."""
    return _read(f"/proc/{pid}/wchan", 64).decode(errors="replace").strip()


def moved_bytes(process: ProcessDoc) -> int:
    """Bytes that the process has read and written so far, pipes included; 0 when unknown."""
    lines = _read(f"/proc/{process['pid']}/io", 2048).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


def is_alive(process: ProcessDoc | None) -> bool:
    """Whether that very process lives; a zombie or a new owner of its pid does not count.

    One whose first thread has ended lives as long as another thread does: what was killed a moment
    ago still holds its files, and so its locks, until the last thread is gone.
    """
    if process is None or process["boot_id"] != boot_id():
        return False
    fields = stat_fields(process["pid"])
    return (
        fields is not None and not has_ended(fields) and int(fields[19]) == process["start_ticks"]
    )


def has_ended(fields: list[str]) -> bool:
    """Whether these `stat_fields` are those of a process without a living thread."""
    return fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)


def is_marked(process: ProcessDoc | None, marker: str, directory: Path | None = None) -> bool:
    """Whether that very process lives and bears the run's marker.

    What a file of a run directory names as its process is signalled only if this holds: anyone who
    can write there can name any process.
    """
    if process is None or not marker or not is_alive(process):
        return False
    return MARKER in _markers_of(process["pid"], marker, directory)


def may_be_marked(process: ProcessDoc | None, marker: str, directory: Path | None = None) -> bool:
    """Like `is_marked`, for looking only: true, too, where its environment is not ours to read."""
    if not is_alive(process) or process is None:
        return False
    readable = os.access(f"/proc/{process['pid']}/environ", os.R_OK)
    return is_marked(process, marker, directory) or not readable


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with that variable; False where it is not ours to read."""
    return f"{name}={value}".encode() in _read_environment(pid).split(b"\0")


def variable(pid: int, name: str) -> str | None:
    """A variable that the process was started with; None where it has none, or is not ours."""
    value = _value(_read_environment(pid).split(b"\0"), name)
    return None if value is None else value.decode(errors="replace")


def command_lines(word: str) -> list[list[str]]:
    """Command lines of this user's living processes that hold the word."""
    commands = list[list[str]]()
    for pid in _all_pids():
        line = _read(f"/proc/{pid}/cmdline", _MAX_ENVIRONMENT).split(b"\0")
        if word.encode() in line and _is_own(pid) and _living([pid]):
            commands.append([part.decode(errors="replace") for part in line[:-1]])
    return commands


def watched_directories() -> set[Path]:
    """Directories of this user's runs that a process watches on this host, of whatever store."""
    lines = command_lines(WATCHER)
    return {Path(line[line.index(WATCHER) + 1]) for line in lines if line[-1] != WATCHER}


def _is_own(pid: int) -> bool:
    try:
        return Path(_PROC, str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def _read_environment(pid: int) -> bytes:
    return _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT)


def _value(lines: list[bytes], name: str) -> bytes | None:
    start = f"{name}=".encode()
    return next((line[len(start) :] for line in lines if line.startswith(start)), None)


def _markers_of(pid: int, marker: str, directory: Path | None) -> list[str]:
    """Which of `MARKER` and `REAPER_MARKER` the process was started with, with that value."""
    environment = _read_environment(pid)
    if marker.encode() not in environment:
        return []
    lines = environment.split(b"\0")
    bears = [name for name in (MARKER, REAPER_MARKER) if f"{name}={marker}".encode() in lines]
    return bears if bears and not _is_of_a_copy(_value(lines, DIRECTORY), directory) else []


def _is_of_a_copy(recorded: bytes | None, directory: Path | None) -> bool:
    """Whether `recorded` is another directory than the run's; one that was moved is the same."""
    if recorded is None or directory is None or recorded == os.fsencode(directory):
        return False
    return not _is_same(recorded, directory)


def _is_same(recorded: bytes, directory: Path) -> bool:
    """Also when one of the two is not there: it was moved."""
    try:
        return Path(os.fsdecode(recorded)).samefile(directory)
    except OSError:
        return True


def is_alive_for(process: ProcessDoc | None, directory: Path) -> bool:
    """Whether that very process lives, and no other existing run directory is its argument.

    Of a supervisor or watcher as state.json names it: in a copy it names the original's.
    """
    if process is None or not is_alive(process):
        return False
    words = _read(f"/proc/{process['pid']}/cmdline", _MAX_ENVIRONMENT).split(b"\0")
    runs = [
        word
        for word in words
        if word.startswith(b"/") and Path(os.fsdecode(word), "run.json").is_file()
    ]
    return all(_is_same(word, directory) for word in runs)


def find_marked(marker: str, directory: Path | None = None) -> list[ProcessDoc]:
    """All living processes whose environment holds this run's marker, except the caller's own."""
    other_pids = [pid for pid in _all_pids() if pid != os.getpid()] if marker else []
    return _living(pid for pid in other_pids if MARKER in _markers_of(pid, marker, directory))


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdecimal()]


def _living(pids: Iterable[int]) -> list[ProcessDoc]:
    identified = [process for pid in pids if (process := identify(pid)) is not None]
    return [process for process in identified if is_alive(process)]


def descendants(*roots: int, excluded: Collection[int] = ()) -> list[ProcessDoc]:
    """Children of `roots`, theirs, and so on, in whatever session, without the `excluded`."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        if (fields := stat_fields(pid)) is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    pids = dict[int, None]()
    queue = [pid for root in roots for pid in children.get(root, [])]
    while queue:
        pid = queue.pop()
        if pid not in excluded and pid not in pids:
            pids[pid] = None
            queue += children.get(pid, [])
    return _living(pids)


def zombies(parent: int) -> list[int]:
    """Children of `parent` that have ended and wait to be collected."""
    ended = list[int]()
    for entry in os.listdir(_PROC):
        fields = stat_fields(int(entry)) if entry.isdecimal() else None
        if fields is not None and fields[0] == "Z" and int(fields[1]) == parent:
            ended.append(int(entry))
    return ended


def members(
    marker: str,
    parents: Collection[int] = (),
    excluded: Collection[int] = (),
    *,
    directory: Path | None = None,
) -> list[ProcessDoc]:
    """Processes of a run: those with its marker, and all that descend from one of `parents`.

    The parents of a warm launcher are found by themselves. What descends only through one of
    `excluded` (a tracker, a hook) is no part of the run.
    """
    return MemberScan(marker, directory).look(parents, excluded)


class MemberScan:
    """`members`, for who looks again and again: reads what is new since the look before.

    A machine has thousands of other processes, and hardly any new one in a few seconds. What was
    new is read twice, since a child has its parent's environment until it starts its own program.
    Now and then all are read: a number may have gone to another process.
    """

    def __init__(self, marker: str, directory: Path | None = None) -> None:
        self._marker = marker
        self._directory = directory
        self._forget()

    def _forget(self) -> None:
        self._forget_at = time.monotonic() + _SCAN_AGAIN_SECONDS
        self._seen, self._new = set[int](), set[int]()
        self._marked = dict[int, ProcessDoc]()
        self._below = dict[int, ProcessDoc]()
        self._reapers = set[int]()

    def look(
        self, parents: Collection[int] = (), excluded: Collection[int] = ()
    ) -> list[ProcessDoc]:
        """The members at this moment; the arguments are those of `members`."""
        if time.monotonic() >= self._forget_at:
            self._forget()
        pids = set(_all_pids())
        unread = (pids - self._seen) | (self._new & pids)
        self._new, self._seen = pids - self._seen, pids
        children: dict[int, list[ProcessDoc]] = {}
        for pid in unread:
            fields = stat_fields(pid)
            if fields is None or has_ended(fields):
                continue
            process = _identity(pid, fields)
            children.setdefault(int(fields[1]), []).append(process)
            self._read_markers(process)
        queue = [
            child
            for root in (*parents, *self._reapers, *self._below)
            for child in children.get(root, ())
        ]
        while queue:
            process = queue.pop()
            pid = process["pid"]
            if pid not in excluded and self._below.get(pid) != process:
                self._below[pid] = process
                queue += children.get(pid, ())
        self._reapers &= pids
        self._marked = {pid: process for pid, process in self._marked.items() if pid in pids}
        self._below = {pid: process for pid, process in self._below.items() if pid in pids}
        return list((self._marked | self._below).values())

    def _read_markers(self, process: ProcessDoc) -> None:
        pid = process["pid"]
        if not self._marker or pid == os.getpid():
            return
        names = _markers_of(pid, self._marker, self._directory)
        if MARKER in names:
            self._marked[pid] = process
        if REAPER_MARKER in names:
            self._reapers.add(pid)


def send_signal(process: ProcessDoc, number: int) -> bool:
    """Signal that very process; False when it is gone, a stranger has its pid, or we may not."""
    if not is_alive(process):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process["pid"], number)
        return True
    return False


def is_stopped(process: ProcessDoc) -> bool:
    """Whether the process is stopped (state T): SIGTERM would never reach it."""
    fields = stat_fields(process["pid"])
    return is_alive(process) and fields is not None and fields[0] in "Tt"


def wait_gone(processes: Iterable[ProcessDoc], seconds: float) -> list[ProcessDoc]:
    """Wait until all are gone or `seconds` have passed; returns those that live still."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if is_alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if is_alive(process)]
    return left
