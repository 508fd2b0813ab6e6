"""``python -m workbench.storage RUN_DIRECTORY --to URL``: keep the copy of a run in step."""

from __future__ import annotations

import sys
import time

from workbench.storage.mirror import Mirror
from workbench.storage.mirror_state import mirror_lock
from workbench.storage.push import OnProgress, PushResult, push
from workbench.store.process_log import log
from workbench.store.taking_over import Place, RunWatch, begin_following


def main() -> int:
    """Mirror the run until all of it has arrived, or the mirror of a later attempt waits."""
    begun = begin_following("workbench.storage", "mirrored", "the folder of runs")
    if begun is None:
        return 2
    paths, url = begun

    def send(tell: OnProgress) -> PushResult:
        return push(paths, url, on_progress=tell)

    place = Place(mirror_lock(paths))
    try:
        mirror, watch = Mirror(paths, url, send, log, time.monotonic, time.time), RunWatch(paths)
        while not place.is_wanted and mirror.look(gone=watch.gone):
            watch.wait()
    finally:
        place.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
