"""How many ranks a run has: those that were launched, or that its only script started itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.store.files import read_json
from workbench.store.layout import RunPaths


def rank_count(paths: RunPaths, run: Mapping[str, Any]) -> int:
    """Ranks of the run so far. Only the script of a single rank may have started more."""
    count = int(run.get("processes") or 1)
    if count > 1:
        return count
    while (read_json(paths.rank_start(count)) or {}).get("spawned"):
        count += 1
    return count
