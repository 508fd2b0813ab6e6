"""Range of a step's time by what is known beforehand: four of five published runs lie inside.

`ranges.csv` holds its ends as factors of the estimate. They come from estimates of runs whose
source had no part in the constants (`make fit`): they say how far a job of somebody else may lie.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path

from workbench.describe import Strategy, Workload

PATH = Path(__file__).with_name("ranges.csv")
LARGE = 128
"""GPUs from which on latency, stragglers and the fabric make a step less certain."""


def kind_of(workload: Workload, strategy: Strategy) -> str:
    """What decides most how certain a step's time is."""
    if workload.model.experts:
        return "experts"
    if workload.precision == "fp8":
        return "fp8"
    return "many GPUs" if strategy.world_size >= LARGE else "few GPUs"


def time_range(workload: Workload, strategy: Strategy) -> tuple[float, float]:
    """Lower and upper end as factors of the estimated seconds; nothing was measured.

    >>> from workbench.describe import Model
    >>> work = Workload(model=Model.catalog("llama-3-8b"), seq_len=4096)
    >>> low, high = time_range(work, Strategy.parse("fsdp", 8))
    >>> low < 1 < high
    True
    """
    software = "named" if workload.kernels.software_stack != "unknown" else "unknown"
    return _ranges()[kind_of(workload, strategy), software]


@functools.cache
def _ranges() -> Mapping[tuple[str, str], tuple[float, float]]:
    with PATH.open(encoding="utf-8", newline="") as file:
        return {
            (row["kind"], row["stack"]): (float(row["low"]), float(row["high"]))
            for row in csv.DictReader(file)
        }
