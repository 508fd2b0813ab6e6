"""What one rank alone took for the same work: an earlier run of the same script in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.store.files import read_json
from workbench.store.layout import RunPaths

_MOST_RUNS = 200
_LEAST_STEPS = 20


def single_rank_seconds(paths: RunPaths, run: Mapping[str, Any]) -> float | None:
    """Median step time of the latest single-process run of the same script and arguments.

    Equal arguments mean the same micro-batch per rank, so the step time should stay the same.
    None where there is no such run.
    """
    if int(run.get("processes") or 1) < 2:
        return None
    same = ("script", "arguments", "device", "recipe")
    for folder in _newest(paths.directory):
        other = RunPaths(folder)
        document = read_json(other.run)
        if document is None or document.get("processes") != 1:
            continue
        if any(document.get(name) != run.get(name) for name in same):
            continue
        view = read_json(other.view) or {}
        seconds, steps = view.get("step_seconds_median"), view.get("steps")
        if isinstance(seconds, int | float) and isinstance(steps, int) and steps >= _LEAST_STEPS:
            return float(seconds)
    return None


def _newest(directory: Path) -> list[Path]:
    """Other runs of the store, the latest first."""
    try:
        found = [one for one in directory.parent.iterdir() if one != directory and one.is_dir()]
        dated = sorted(((one.stat().st_mtime, one) for one in found), reverse=True)
    except OSError:
        return []
    return [one for _, one in dated[:_MOST_RUNS]]
