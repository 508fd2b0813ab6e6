"""How far measured memory lies from the estimate, by what is known of the job.

The factors are quantiles of measured over estimated memory of published runs, each source counting
the same; `make fit` computes them and writes memory_ranges.csv beside this file.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from workbench.describe import Strategy, Workload

FILE = Path(__file__).with_name("memory_ranges.csv")
UNNAMED = "unnamed trainer"
"""Kind of a job whose trainer is not named: any of them may run it."""
WHY: Mapping[str, str] = {
    UNNAMED: "the trainer is not named",
    "variable lengths": "the batches' lengths are those of the data",
    "offload, ZeRO-2, 3": "DeepSpeed's buffers and offload depend on its configuration",
    "adapters": "adapters on a frozen base",
    "fp8": "what is kept in 8 bits differs by release",
    "several axes": "pipeline, tensor or ZeRO-1 parallelism",
    "plain": "one GPU, DDP or FSDP",
}
"""Kind of a job -> why its range is as wide as it is."""


class MemoryRange(NamedTuple):
    """Factors on an estimate between which four of five measured runs lie."""

    low: float
    high: float
    kind: str = "plain"
    """One of `WHY`."""

    @property
    def text(self) -> str:
        """In one line, with why it is as wide."""
        ends = f"x {self.low:.2f} to {self.high:.2f}"
        return f"range {ends}, four of five published runs: {WHY[self.kind]}"

    def centred(self) -> MemoryRange:
        """As wide around an estimate that a measured run of the same stack has corrected.

        After one published row 75 % of the others of its stack lie inside, after all others 78 %
        (tests/accuracy/score_calibration.py).
        """
        half = math.sqrt(self.high / self.low)
        return self._replace(low=1 / half, high=half)


def kind_of(workload: Workload, strategy: Strategy) -> str:
    """What decides the range of a job whose trainer is known: one of `WHY`.

    >>> from workbench.describe.job import Job
    >>> job = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="tp", lora_rank=8)
    >>> kind_of(job.workload, job.strategy)
    'adapters'
    """
    several = strategy.tp * strategy.pp * strategy.ep > 1 or strategy.zero_stage is not None
    moves = bool(strategy.offload) or strategy.zero_stage in {2, 3}
    kinds = {
        "variable lengths": workload.variable_length,
        "offload, ZeRO-2, 3": moves,
        "adapters": bool(workload.lora_rank),
        "fp8": workload.precision == "fp8",
        "several axes": several,
    }
    return next((kind for kind, applies in kinds.items() if applies), "plain")


def memory_range(workload: Workload, strategy: Strategy, *, is_named: bool = True) -> MemoryRange:
    """The range of an estimate; wider where the trainer is not named."""
    kind = kind_of(workload, strategy) if is_named else UNNAMED
    return ranges()[kind]


@functools.cache
def ranges() -> Mapping[str, MemoryRange]:
    """Kind -> its range, as the file lists them."""
    with FILE.open(encoding="utf-8", newline="") as opened:
        return {
            row["kind"]: MemoryRange(float(row["low"]), float(row["high"]), row["kind"])
            for row in csv.DictReader(opened)
        }
