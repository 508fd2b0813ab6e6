"""Processes: who they are, which belong to a run, and signalling only those.

A pid alone names a stranger after a reboot or a wrap-around; pid + start time + boot id does not.
The processes of a run are found by the marker in their environment, because torchrun puts every
worker into a session of its own and a killed launcher leaves them behind (``killpg`` misses them).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from workbench.store.schema import ProcessDoc

MARKER = "WORKBENCH_RUN_ID"
_PROC = "/proc"
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
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot_id()}


def is_alive(process: ProcessDoc | None) -> bool:
    """Whether that very process lives; a zombie or a new owner of its pid does not count."""
    if process is None or process["boot_id"] != boot_id():
        return False
    fields = stat_fields(process["pid"])
    return (
        fields is not None and fields[0] not in "ZX" and int(fields[19]) == process["start_ticks"]
    )


def is_marked(process: ProcessDoc | None, marker: str) -> bool:
    """Whether that very process lives and bears the run's marker.

    What a file of a run directory names as its process is signalled only if this holds: anybody who
    can write there can name any process.
    """
    if process is None or not marker or not is_alive(process):
        return False
    return _bears(process["pid"], f"{MARKER}={marker}".encode())


def may_be_marked(process: ProcessDoc | None, marker: str) -> bool:
    """Like `is_marked`, for looking only: true, too, where its environment is not ours to read."""
    if not is_alive(process) or process is None:
        return False
    readable = os.access(f"/proc/{process['pid']}/environ", os.R_OK)
    return is_marked(process, marker) or not readable


def _bears(pid: int, needle: bytes) -> bool:
    environment = _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT)
    return needle in environment and needle in environment.split(b"\0")


def find_marked(marker: str) -> list[ProcessDoc]:
    """All living processes whose environment holds this run's marker, except the caller's own."""
    if not marker:
        return []
    needle = f"{MARKER}={marker}".encode()
    found: list[ProcessDoc] = []
    for entry in os.listdir(_PROC):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        if _bears(int(entry), needle):
            process = identify(int(entry))
            if process is not None and is_alive(process):
                found.append(process)
    return found


def descendants(root: int, besides: Collection[int] = ()) -> list[ProcessDoc]:
    """Children of `root`, theirs, and so on, whatever session they moved to; not `besides`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (fields := stat_fields(int(entry))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[ProcessDoc] = []
    queue = list(children.get(root, []))
    while queue:
        pid = queue.pop()
        if pid in besides:
            continue
        queue += children.get(pid, [])
        process = identify(pid)
        if process is not None and is_alive(process):
            found.append(process)
    return found


def zombies(parent: int) -> list[int]:
    """Children of `parent` that have ended and wait to be collected."""
    found = list[int]()
    for entry in os.listdir(_PROC):
        fields = stat_fields(int(entry)) if entry.isdecimal() else None
        if fields is not None and fields[0] == "Z" and int(fields[1]) == parent:
            found.append(int(entry))
    return found


def members(
    marker: str, parents: Collection[int] = (), besides: Collection[int] = ()
) -> list[ProcessDoc]:
    """Processes of a run: those with its marker, and all that descend from one of `parents`.

    What descends through one of `besides` only (a tracker, a hook) is no part of the run.
    """
    found = {process["pid"]: process for process in find_marked(marker)}
    for parent in parents:
        found |= {process["pid"]: process for process in descendants(parent, besides)}
    return list(found.values())


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
