"""What a rollback asks of the ranks: data that are left out."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from .graceful_stop import recipe_file
from .starts import first_step

_ABOUT = ("loader", "sampler", "distributed", "shuffle", "workers")


class SkippedData:
    """Fetches and drops the batches that are left out, of the loader that trains.

    Which one that is, is known before its first backward pass: it samples as the one before did.
    """

    def __init__(self) -> None:
        files = recipe_file("skipped_data") if "WORKBENCH_SKIP_DATA" in os.environ else None
        self._ranges: list[tuple[int, int]] = files.skipped_ranges() if files else []
        self._data_step: Any = getattr(files, "data_step", None)
        self._loaders: list[dict[str, Any]] = []
        with contextlib.suppress(ValueError):
            self._loaders = json.loads(os.environ.get("WORKBENCH_SKIP_LOADER", "[]"))
        self._delivered = self._dropped = 0

    def __bool__(self) -> bool:
        """Whether there is anything to leave out."""
        return bool(self._ranges)

    def before(self, feed: Any, iterator: Any, fetch: Any) -> None:
        """Called before a batch of `feed` is fetched; StopIteration where its data end."""
        each = self._batches_a_step(feed)
        if not each:
            return
        step = first_step() + self._delivered // each
        to_drop = (self._data_step(step, self._ranges) - step) * each
        while self._dropped < to_drop:
            fetch(iterator)
            self._dropped += 1
        self._delivered += 1

    def _batches_a_step(self, feed: Any) -> int:
        """Of the loader that trains; 0 for any other."""
        for entry in self._loaders:
            if all(entry.get(name) == feed.about.get(name) for name in _ABOUT):
                return int(entry.get("batches_a_step") or 1)
        return 0
