"""How many ranks a run has: those that were launched, or that its only script started itself."""

from __future__ import annotations

from workbench.store.layout import RunPaths
from workbench.store.record import read_start


def rank_count(paths: RunPaths, processes: int) -> int:
    """Ranks of the run so far. Only the script of a single rank may have started more."""
    count = processes
    if count > 1:
        return count
    while (start := read_start(paths, count)) is not None and start.spawned:
        count += 1
    return count
