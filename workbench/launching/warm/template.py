"""Forks the ranks that a launcher starts.

The launcher is a fork with threads of its own soon (its rendezvous store), so it does not fork: a
template that branched off before has one thread still and does. The rank becomes the launcher's own
child all the same: its parent, between template and rank, ends at once, and the launcher, which
asks for its orphans just then, is waited upon and signalled as after an exec.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from .child import Order, close_files, inherited_signals, own_oom_score, program
from .messages import receive, send
from .reaper import adopt_orphans
from .room import Room

COLD_RANKS = "cold-ranks"
"""File in control/: why a rank of a warm launcher was started cold."""
_FORKING = threading.Lock()
_HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"


def branch_off(room: Room) -> tuple[socket.socket, tuple[Order, list[int]] | None]:
    """Fork the template, which never returns.

    Returns:
        In the launcher the template's socket and None; in a rank its order and files.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours, None
    ours.close()
    room.show({}, "workbench warm template")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    close_files(keep={theirs.fileno()})
    os.chdir("/")
    return theirs, _serve(theirs)


def _serve(launcher: socket.socket) -> tuple[Order, list[int]]:
    """Fork a rank for each order; returns in the rank."""
    while True:
        try:
            document, files = receive(launcher, 3)
        except (EOFError, OSError):
            os._exit(0)  # the launcher has ended
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            rank = os.fork()
            if rank == 0:
                return Order(**document), files
            os.write(write, str(rank).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in (write, *files):
            os.close(descriptor)
        with open(read, "rb") as file:  # its end: the rank has become itself
            pid = int(file.read() or b"0")
        send(launcher, {"pid": pid})


def fork_instead_of_exec(template: socket.socket, why_not: Callable[[Order], str | None]) -> None:
    """Let the launcher in this process start its ranks from the template, where `why_not` allows.

    ``subprocess.Popen`` and torch's own reference to it are replaced; whatever is not this Python
    on a script or module, with files or nothing as its streams, is started as ever.
    """

    class Popen(subprocess.Popen):  # pyright: ignore[reportMissingTypeArgument]
        """subprocess.Popen that forks Python from a template."""

        def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
            self._forked = None if rest else _order(args, options, why_not)
            super().__init__(args, *rest, **options)

        def _execute_child(self, *arguments: Any, **more: Any) -> None:
            if self._forked is None or not self._fork(*self._forked):
                super()._execute_child(*arguments, **more)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

        def _fork(self, order: Order, files: list[int]) -> bool:
            with _FORKING:
                adopt_orphans(yes=True)
                try:
                    send(template, asdict(order), files)
                    self.pid = receive(template)[0]["pid"]
                except (OSError, EOFError):
                    _report_cold("its template was killed", order.environment)
                    return False
                finally:
                    adopt_orphans(yes=False)
            self._child_created = True
            return self.pid > 0

    subprocess.Popen = Popen
    setattr(importlib.import_module(_HANDLER), "Popen", Popen)  # noqa: B010  (not ours)


def _order(
    args: Any, options: dict[str, Any], why_not: Callable[[Order], str | None]
) -> tuple[Order, list[int]] | None:
    """The order and files that `subprocess.Popen` was asked for; None where it has to exec."""
    if isinstance(args, str | bytes | os.PathLike) or program(argv := list(args)) is None:
        return None
    files: list[int] = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = options.get(name)
        if file is not None and not hasattr(file, "fileno"):
            return None
        files.append(number if file is None else file.fileno())
    if set(options) - {"env", "cwd", "stdin", "stdout", "stderr", "start_new_session"}:
        return None
    environment = options.get("env")
    ignored, blocked = inherited_signals()
    mask = os.umask(0o022)
    os.umask(mask)
    order = Order(
        argv=tuple(argv),
        folder=os.path.abspath(options.get("cwd") or os.getcwd()),
        environment=dict(os.environ if environment is None else environment),
        umask=mask,
        new_session=bool(options.get("start_new_session")),
        ignored=ignored,
        blocked=blocked,
        oom_score=own_oom_score(),
    )
    why = why_not(order)
    if why is None:
        return order, files
    _report_cold(why, order.environment)
    return None


def _report_cold(why: str, environment: Mapping[str, str]) -> None:
    """Say in the launcher's log, and to the supervisor, that a rank is no fork."""
    sys.stderr.write(f"workbench: this process starts cold: {why}.\n")
    directory = environment.get("WORKBENCH_RUN_DIR")
    if directory is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(directory, "control", COLD_RANKS), flags, 0o600)
        os.write(descriptor, why.encode("utf-8", "replace"))
        os.close(descriptor)
