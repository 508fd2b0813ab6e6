"""The parent of a run's supervisor: it brings a supervisor back that was killed, and does no more.

It sleeps in the kernel until its supervisor ends, holds a few megabytes, loads nothing but what is
imported below, and ends with the run. The supervisor in turn brings back a watcher that was killed,
so that only the end of both at the same moment leaves a run unwatched; then every reader says so,
and ``workbench adopt`` or ``workbench resume`` goes on.

    python -P -m workbench.launching.supervise.watcher RUN_DIRECTORY [--adopt] [--beside PID]

The order of `workbench.launching.start.launch_spec` comes on standard input. It has secrets, so it
stays in memory: a supervisor that is brought back can start the training again without asking.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 1.0  # where the kernel has no pidfd (before Linux 5.3)
_QUICK_SECONDS = 60.0  # a supervisor that lives no longer did not get to work
_MAX_QUICK_ENDS = 8
_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 30.0
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Entry point of the detached process; the supervisor is a fork of it."""
    directory, flags = sys.argv[1], sys.argv[2:]
    adopting = "--adopt" in flags
    order = b"" if adopting else sys.stdin.buffer.read()
    for number in _IGNORED:  # a closed terminal, or a notice: that is for the supervisor
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a launcher whose parent died
    begun, quick = _directory_identity(directory), 0
    if "--beside" in flags:
        _wait_for_stranger(int(flags[flags.index("--beside") + 1]))
        adopting = True
        _log("the supervisor has ended: starting another one")
    while True:
        since = time.monotonic()
        child = os.fork()
        if child == 0:
            _supervise(directory, order, adopting=adopting)
            return
        status = _wait_for_child(child, directory)
        if status == 0 or _directory_identity(directory) != begun:
            return
        quick = quick + 1 if time.monotonic() - since < _QUICK_SECONDS else 0
        if quick > _MAX_QUICK_ENDS:
            _log(f"{quick} supervisors ended within {_QUICK_SECONDS:.0f} s each: giving up")
            return
        _log(f"the supervisor ended ({_how(status)}): starting another one")
        time.sleep(min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2**quick))
        adopting = True


def _supervise(directory: str, order: bytes, *, adopting: bool) -> None:
    """Become the supervisor, in a session of its own."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGHUP, signal.SIGINT):  # what is ignored, the training would inherit
        signal.signal(number, _go_on)
    from workbench.launching.supervise.lifecycle import supervise  # noqa: PLC0415  (the child alone loads it)

    supervise(directory, order, adopting=adopting)


def _go_on(*_: object) -> None:
    """A signal that ends nothing."""


def _wait_for_child(child: int, directory: str) -> int:
    """Until it ends; returns its exit status. Orphans of the run come to us: collect them, too."""
    while True:
        pid, status = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(status)
        if pid == child:
            return code
        _keep_exit_code(directory, pid, code)


def _keep_exit_code(directory: str, pid: int, code: int) -> None:
    """For the supervisor that adopted this process: only its parent learns its exit code."""
    path = f"{directory}/control/exit-code-{pid}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
        os.write(handle, str(code).encode())
        os.close(handle)
    except OSError as error:
        _log(f"cannot write {path}: {error}")


def _wait_for_stranger(pid: int) -> None:
    """Until a process ends that is not our child, but our parent."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        handle = -1
    if os.getppid() != pid:
        return
    if handle >= 0:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll()
        os.close(handle)
        return
    while os.getppid() == pid:
        time.sleep(_POLL_SECONDS)


def _directory_identity(directory: str) -> tuple[int, ...] | None:
    """What must stay as it was when this run was begun by its user."""
    try:
        about = os.lstat(directory)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_uid, about.st_mode


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _log(text: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} watcher: {text}\n"
    try:
        os.write(1, line.encode())
    except OSError:
        return


if __name__ == "__main__":
    main()
