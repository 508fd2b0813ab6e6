"""The supervisor's log, and writes that a full disk must not turn into a crash."""

from __future__ import annotations

import time
from collections.abc import Callable

from workbench.store import secrets


def guarded(what: str, write: Callable[[], object]) -> bool:
    """Write; a full or read-only disk is logged, never fatal: training must not die of it."""
    try:
        write()
    except OSError as error:
        log(f"cannot write {what}: {error}")
        return False
    return True


def log(text: str) -> None:
    """One line in supervisor.log (our standard output)."""
    try:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), secrets.hide_known(text), flush=True)  # noqa: T201
    except OSError:
        return
