"""What the ranks are told after a rollback: data to leave out, a lower learning rate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.recipes.skipped_data import VARIABLE as SKIP_VARIABLE
from workbench.recipes.skipped_data import data_step
from workbench.store.schema import RollbackDoc

LOADER_VARIABLE = "WORKBENCH_SKIP_LOADER"  # read by the capture hook, as the next one
RATE_VARIABLE = "WORKBENCH_LR_FACTOR"
_RATE_FACTOR = 0.5


def rollback_environment(lines: Iterable[Mapping[str, Any]], first_step: int) -> dict[str, str]:
    """What tells the ranks of an attempt from `first_step` on which data they leave out, and so on.

    Ranges are of steps as they would have been without any rollback, so that they hold wherever
    the run is resumed.

    >>> back = {"last_step": 60, "step": 40, "then": "skip-data", "loaders": []}
    >>> rollback_environment([{"rollback": back}], 40)
    {'WORKBENCH_SKIP_DATA': '40-60', 'WORKBENCH_SKIP_LOADER': '[]'}
    """
    ranges: list[tuple[int, int]] = []
    loaders: list[Any] = []
    factor = 1.0
    for line in lines:
        if not isinstance(line.get("rollback"), dict):
            continue
        rollback: RollbackDoc = line["rollback"]
        start, end = rollback["step"], rollback["last_step"]
        if rollback["then"] == "skip-data":
            ranges.append((data_step(start, ranges), data_step(end, ranges)))
            loaders = rollback["loaders"] or loaders
        elif start <= first_step:
            factor *= _RATE_FACTOR
    values: dict[str, str] = {}
    if ranges:
        values[SKIP_VARIABLE] = ",".join(f"{first}-{last}" for first, last in ranges)
        values[LOADER_VARIABLE] = json.dumps(loaders)
    if factor != 1.0:
        values[RATE_VARIABLE] = repr(factor)
    return values
