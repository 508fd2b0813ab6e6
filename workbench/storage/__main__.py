"""``python -m workbench.storage RUN_DIRECTORY --to URL``: keep the copy of a run in step."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.storage.mirror import Mirror
from workbench.storage.mirror_state import mirror_lock
from workbench.storage.push import OnProgress, PushResult, push
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.process_log import log
from workbench.store.status import read_status
from workbench.store.taking_over import Place

_NICE = 10  # training comes first on a busy host
_LOOK_SECONDS = 1.0
_STATUS_SECONDS = 30.0


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

    def send(tell: OnProgress) -> PushResult:
        return push(paths, given.to, on_progress=tell)

    place = Place(mirror_lock(paths))
    try:
        _follow(Mirror(paths, given.to, send, log, time.monotonic, time.time), paths, place)
    finally:
        place.leave()
    return 0


def _follow(mirror: Mirror, paths: RunPaths, place: Place) -> None:
    """Until it has ended, or the mirror of a later attempt waits.

    A run without processes, seen twice so that a supervisor may come back, has ended.
    """
    status_due, gone = time.monotonic() + _STATUS_SECONDS, 0
    while not place.is_wanted and mirror.look(gone=gone >= 2):
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() >= status_due:
            status_due = time.monotonic() + _STATUS_SECONDS
            live = paths.exit.exists() or read_status(paths).live
            gone = 0 if live else gone + 1


if __name__ == "__main__":
    sys.exit(main())
