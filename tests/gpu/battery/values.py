"""What a case gets and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILES = {"gpu": "results.jsonl", "cpu": "cpu.jsonl", "simulated": "simulated.jsonl"}
"""Kind of the results -> name of their file. Only the first holds measurements of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every case is told."""

    device: str
    """"cuda", or "cpu": the same code at a tiny size, without what only a card can measure."""
    out: Path
    """Folder of the results; logs and runs of the cases lie below it."""
    simulated: bool = False
    """Whether the GPUs are those of the simulated driver (`pod.py`); the ranks are on the CPU."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def kind(self) -> str:
        """What the results are of: "gpu", "cpu" or "simulated"."""
        return "simulated" if self.simulated else "gpu" if self.on_gpu else "cpu"

    @property
    def results(self) -> Path:
        """The file of the results: one for each kind, so that no reader takes one for another."""
        return self.out / FILES[self.kind]

    @property
    def store(self) -> Path:
        """The run store, where the calibration is kept too."""
        return self.out / ("runs" if self.on_gpu else f"runs-{self.kind}")

    @property
    def launch_on_cpu(self) -> bool:
        """Whether a launch says so; on simulated GPUs its supervisor reads those."""
        return self.kind == "cpu"

    @property
    def launching(self) -> dict[str, Any]:
        """Of every launch. On a CPU, where the cases themselves are tested, it starts warm."""
        return {"store": self.store, "cpu": self.launch_on_cpu, "warm": not self.on_gpu}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement about a measured value."""

    name: str
    value: float | str | bool | None
    """None = not measured, which fails the check."""
    low: float | None = None
    high: float | None = None
    equals: float | str | bool | None = None

    @property
    def ok(self) -> bool:
        if self.value is None:
            return False
        if self.equals is not None:
            return self.value == self.equals
        if isinstance(self.value, str) or math.isnan(self.value):
            return False
        above = self.low is None or self.value >= self.low
        return above and (self.high is None or self.value <= self.high)

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one case found out."""

    measured: Mapping[str, Any]
    predicted: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


class NotAvailable(Exception):  # noqa: N818 - it is an answer, not an error
    """This host cannot run the case; the message says what is missing."""


Function = Callable[[Setup], Report]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One entry of the battery."""

    name: str
    group: str
    run: Function
    limit_seconds: float
    """The process is killed after this long."""
    packages: tuple[str, ...] = ()
    """Python packages without which the case is skipped by name."""
    lane: str = "gpu"
    """Cases of the lane "cpu" run beside those of "gpu"."""


def ratio_check(
    name: str, predicted: float | None, measured: float | None, low: float, high: float
) -> Check:
    """Predicted over measured within the bounds."""
    value = predicted / measured if predicted is not None and measured else None
    return Check(name=name, value=value, low=low, high=high)
