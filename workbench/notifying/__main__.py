"""``python -m workbench.notifying RUN_DIRECTORY --to NAME,NAME``: follow a run and send."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.notifying import delivery
from workbench.notifying.following import Follower
from workbench.notifying.targets import read_targets
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.process_log import log
from workbench.store.status import read_status
from workbench.store.taking_over import Place

_NICE = 10  # training comes first on a busy host
_LOOK_SECONDS = 1.0
_STATUS_SECONDS = 30.0


def main() -> int:
    """Follow the run until its end is told, no one is left who would write it, or another does."""
    parser = argparse.ArgumentParser(prog="python -m workbench.notifying")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", required=True, help="names of targets, with commas between")
    given = parser.parse_args()
    paths = RunPaths(given.run_directory.expanduser().absolute())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        check_own(paths, "followed for messages")  # what was told is written into it
        targets = read_targets()
    except WorkbenchError as error:
        log(str(error))
        return 2
    wanted = given.to.split(",")
    for name in sorted(set(wanted) - targets.keys()):
        log(f"{name}: there is no such target any longer")
    known = [targets[name] for name in wanted if name in targets]
    place = Place(paths.logs / "notify.lock")
    try:
        _follow(Follower(paths, known, delivery.send, log), paths, place)
    finally:
        place.leave()
    return 0


def _follow(follower: Follower, paths: RunPaths, place: Place) -> None:
    status_due = time.monotonic() + _STATUS_SECONDS
    gone = 0
    while follower.look(time.time(), time.monotonic()):
        time.sleep(_LOOK_SECONDS)
        if place.is_wanted:
            follower.hand_over()
            return
        if time.monotonic() < status_due:
            continue
        status_due = time.monotonic() + _STATUS_SECONDS
        live = paths.exit.exists() or read_status(paths).live
        gone = 0 if live else gone + 1
        if gone == 2:  # two looks, so that a supervisor may come back in between
            log("the run's processes are gone, without an exit.json")
            return


if __name__ == "__main__":
    sys.exit(main())
