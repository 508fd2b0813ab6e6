"""The supervisor's log, and writes that a full disk must not turn into a crash."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Generator

from workbench.store import secrets
from workbench.store.layout import RunPaths

_handle: int | None = None  # None: standard output, which is a supervisor's log

EXIT_RESERVE = "reserve-exit"
"""File in control/ that keeps an inode and the space for exit.json."""


def guarded(name: str, write: Callable[[], object]) -> bool:
    """Write; a full or read-only disk is logged, never fatal: training must not die of it."""
    try:
        write()
    except OSError as error:
        log(f"cannot write {name}: {error}")
        return False
    return True


@contextlib.contextmanager
def failure_logged(task: str) -> Generator[None]:
    """No fault of ours in `task`, an upgrade under way included, may cost a run its exit.json."""
    try:
        yield
    except Exception:  # noqa: BLE001
        log(f"{task} failed:\n{traceback.format_exc()}")


def log(text: str) -> None:
    """One line in supervisor.log."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {secrets.hide_known(text)}"
    with contextlib.suppress(OSError):
        if _handle is None:
            print(line, flush=True)  # noqa: T201
        else:
            os.write(_handle, line.encode(errors="replace") + b"\n")


@contextlib.contextmanager
def logging_to(paths: RunPaths) -> Generator[None]:
    """Log into the run's supervisor.log from a process whose standard output is something else.

    Raises:
        OSError: it cannot be opened.
    """
    global _handle  # noqa: PLW0603  (one journal a process)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    before, opened = _handle, os.open(paths.supervisor_log, flags, 0o600)
    _handle = opened
    try:
        yield
    finally:
        _handle = before
        os.close(opened)
