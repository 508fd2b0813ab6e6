"""``python -m workbench.notifying RUN_DIRECTORY --to NAME,NAME``: follow a run and send."""

from __future__ import annotations

import sys
import time

from workbench.errors import WorkbenchError
from workbench.notifying import delivery
from workbench.notifying.following import Follower
from workbench.notifying.targets import read_targets
from workbench.store.process_log import log
from workbench.store.taking_over import Place, RunWatch, begin_following


def main() -> int:
    """Follow the run until its end is told, no one is left who would write it, or another does."""
    names = "names of targets, with commas between"
    begun = begin_following("workbench.notifying", "followed for messages", names)
    if begun is None:
        return 2
    paths, target_names = begun[0], begun[1].split(",")
    try:
        targets = read_targets()
    except WorkbenchError as error:
        log(str(error))
        return 2
    for name in sorted(set(target_names) - targets.keys()):
        log(f"{name}: there is no such target any longer")
    followed = [targets[name] for name in target_names if name in targets]
    place = Place(paths.logs / "notify.lock")
    try:
        _follow(Follower(paths, followed, delivery.send, log), RunWatch(paths), place)
    finally:
        place.leave()
    return 0


def _follow(follower: Follower, watch: RunWatch, place: Place) -> None:
    while follower.look(time.time(), time.monotonic()):
        watch.wait()
        if place.is_wanted:
            follower.hand_over("another process follows the run from here on")
            return
        if watch.gone:
            follower.hand_over("the run's processes are gone, without an exit.json")
            return


if __name__ == "__main__":
    sys.exit(main())
