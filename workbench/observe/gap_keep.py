"""Keeps a finished run's gap: beside the run, and as a correction of its host's predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.observe.gap_corrections import correction_lines
from workbench.observe.gap_terms import Gap
from workbench.observe.summary import predicted_time
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths


def keep_gap(
    paths: RunPaths, run: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]
) -> None:
    """Write comparison.json from the last view, and what it says about the host's predictions.

    Raises:
        OSError: the run or the store's calibrations cannot be written.
    """
    kept = (read_json(paths.view) or {}).get("comparison")
    if not kept or not kept.get("final"):
        return
    write_json_atomic(paths.comparison, kept, indent=2)
    key = predicted_time(run).get("host_key")
    lines = correction_lines(run, Gap.read(kept), findings) if key else []
    if lines:
        from workbench.store import calibrations  # noqa: PLC0415  (the catalog, needed once)

        for line in lines:
            calibrations.append_correction(paths.directory.parent, str(key), line)
