"""``python -m workbench.storage RUN_DIRECTORY --to URL``: keep the copy of a run in step."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.storage.mirror import Mirror
from workbench.storage.push import OnProgress, PushResult, push
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.process_log import log
from workbench.store.status import read_status

_NICE = 10  # training comes first on a busy host
_LOOK_SECONDS = 1.0
_STATUS_SECONDS = 30.0
_WAIT_SECONDS = 120.0  # for the mirror of the attempt before, which may be at its last copy


def main() -> int:
    """Mirror the run until it has ended and all of it has arrived."""
    parser = argparse.ArgumentParser(prog="python -m workbench.storage")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", required=True, help="the folder of runs")
    given = parser.parse_args()
    paths = RunPaths(given.run_directory.expanduser().absolute())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        check_own(paths, "mirrored")  # how far it is is written into it
    except WorkbenchError as error:
        log(str(error))
        return 2
    lock = os.open(paths.logs / "mirror.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _locked(lock):
            return 0  # another process mirrors this run already

        def send(tell: OnProgress) -> PushResult:
            return push(paths, given.to, on_progress=tell)

        _follow(Mirror(paths, given.to, send, log, time.monotonic, time.time), paths)
    finally:
        os.close(lock)
    return 0


def _locked(lock: int) -> bool:
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _follow(mirror: Mirror, paths: RunPaths) -> None:
    """A run without processes, seen twice so that a supervisor may come back, has ended."""
    status_due, gone = time.monotonic() + _STATUS_SECONDS, 0
    while mirror.look(gone=gone >= 2):
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() >= status_due:
            status_due = time.monotonic() + _STATUS_SECONDS
            live = paths.exit.exists() or read_status(paths).live
            gone = 0 if live else gone + 1


if __name__ == "__main__":
    sys.exit(main())
