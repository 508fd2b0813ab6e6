"""Processes that outlive the one that starts them, and how at most one of a kind is at work."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.store.files import read_json, write_json_atomic
from workbench.store.processes import identify, is_alive


def start_detached(
    command: Sequence[str], log: Path, environment: Mapping[str, str], order: bytes | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a folder that only root can write to; what it prints is added to `log`.

    `order`: what it reads from its standard input. Raises OSError: the log cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL if order is None else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=dict(environment),
        )
    finally:
        os.close(output)
    if process.stdin is not None:
        process.stdin.write(order or b"")
        process.stdin.close()
    # It outlives us or not: no zombie if it does not, no warning if it does.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def start_serving(
    command: Sequence[str], log: Path, environment: Mapping[str, str], served: Path
) -> None:
    """`start_detached`, and say in the file `served` who serves, before the process does so."""
    begun = identify(start_detached(command, log, environment).pid)
    if begun is not None:
        with contextlib.suppress(OSError):  # a full disk
            write_json_atomic(served, begun)


def is_served(served: Path) -> bool:
    """Whether the process that the file `served` names (`schema.ProcessDoc`) is at work."""
    process: Any = read_json(served) or {}
    numbers = all(type(process.get(name)) is int for name in ("pid", "start_ticks"))
    return numbers and "boot_id" in process and is_alive(process)


def outlive_terminal() -> None:
    """As the process itself: its files are its user's alone, and a closed terminal ends nothing."""
    os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def lock_file(path: Path, *, wait: bool = False) -> int | None:
    """Hold the lock of that file until the handle is closed or we die; None = someone has it.

    Raises:
        StoreError: it cannot be opened, or its file system has no locks.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error
    try:
        while not _locked(handle, fcntl.LOCK_EX, wait=wait):
            if not _locked(handle, fcntl.LOCK_SH):
                os.close(handle)
                return None
            # Only a look of `is_locked` was in the way, and it is over at once.
            fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        os.close(handle)
        raise StoreError(
            f"{path} cannot be locked: {error}. Keep it on a file system that has locks."
        ) from error
    return handle


def _locked(handle: int, kind: int, *, wait: bool = False) -> bool:
    """Whether this lock could be had. Raises OSError: the file system has no locks."""
    try:
        fcntl.flock(handle, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of that file."""
    try:  # a pipe in a stranger's store must not be waited for
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(handle, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
