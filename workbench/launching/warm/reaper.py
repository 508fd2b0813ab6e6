"""A start's reaper: the launcher's parent, which sends its exit code to the process that asked.

It is a process of its own so that a run does not depend on the server, which may end at any time.
Orphans of the run come to it, as they come to the supervisor of a cold start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Mapping

from .child import close_files
from .messages import GO, send
from .room import Room

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(*, yes: bool) -> None:
    """Become the parent of the orphans among this process's descendants, or stop being it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def fork_and_reap(connection: socket.socket, room: Room, markers: Mapping[str, str]) -> None:
    """Fork the process to be; returns in it. The reaper itself never does.

    `markers`: environment that /proc shows of the reaper, by which the run's orphans are found.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not _is_confirmed(connection):
        os._exit(0)
    room.show(markers, "workbench warm reaper")
    adopt_orphans(yes=True)
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        return
    try:
        os.close(write)
        os.read(read, 1)  # the end of file: it has become what it is to be, or has ended
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        _to_nowhere(connection.fileno())
        with contextlib.suppress(OSError):
            send(connection, {"pid": process, "reaper": os.getpid()})
        _wait(connection, process)
    finally:
        os._exit(0)


def _is_confirmed(connection: socket.socket) -> bool:
    """Whether the client still waits: one that gave up started it cold, and may not have two."""
    try:
        send(connection, {"ready": True})
        return connection.recv(1) == GO
    except OSError:
        return False


def _to_nowhere(connection: int) -> None:
    """Hold nothing of the run: neither its output nor its folder."""
    close_files(keep={connection})
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _wait(connection: socket.socket, process: int) -> None:
    """Until process and orphans have ended; as long as one lives, it is found as our child."""
    status = None
    while status is None:
        ended, ended_status = os.waitpid(-1, 0)
        status = ended_status if ended == process else None
    with contextlib.suppress(OSError):
        send(connection, {"exit_code": os.waitstatus_to_exitcode(status)})
        connection.recv(1)  # until the run's watcher has ended what is left of it
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
