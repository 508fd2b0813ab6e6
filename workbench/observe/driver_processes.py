"""Whether the process numbers that a GPU's driver tells are those of this container.

NVML and AMD's library tell numbers of the host, or translate them, or leave out what is not of the
caller's PID namespace: that depends on driver and container. A number that also exists here may be
another program's, which nobody should be told to end.
"""

from __future__ import annotations

import os

import psutil

_FIRST_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in Linux's include/linux/proc_ns.h
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
_NODES = ("/dev/nvidia", "/dev/kfd")  # what a process that computes on a GPU has open


def shares_numbers() -> bool:
    """Whether this process is in the host's own PID namespace."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE  # noqa: PTH116
    except OSError:
        return False


def is_local(pid: int) -> bool:
    """Whether the process that the driver means by `pid` is the one with that number here."""
    if shares_numbers():
        return True
    if not psutil.pid_exists(pid):
        return False
    if not any(map(os.path.exists, _DRIVERS)):  # a simulated driver: it has no files
        return True
    try:
        with os.scandir(f"/proc/{pid}/fd") as opened:
            return any(os.readlink(entry.path).startswith(_NODES) for entry in opened)  # noqa: PTH115
    except OSError:
        return False


def process_name(pid: int) -> str | None:
    """The program of the process that the driver means by `pid`; None = it is not known here."""
    try:
        return psutil.Process(pid).name() if is_local(pid) else None
    except psutil.Error:
        return None
