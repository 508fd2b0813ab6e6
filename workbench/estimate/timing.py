"""The step-time estimate: named parts in seconds that add up, a range, what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.units import format_between, format_seconds

COMMUNICATION = "exposed communication"
"""Prefix of every part that is waiting for other GPUs: "exposed communication: tp" …"""
CALIBRATION = "stack calibration"
"""Part by which measured runs of the stack correct the others; below 0 where they were quicker."""

STACK = "software stack"
"""Part that kernels take beyond what the best stacks reach on the GPU's generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step of the slowest stage, in named parts; ``step_time()`` makes it."""

    parts: Mapping[str, float]
    """Part name -> seconds per optimizer step; they sum to `step_seconds`. Parts that wait for
    other GPUs start with "exposed communication:"; "pipeline bubble" is idle time."""
    low: float
    """Lower end of the range of `step_seconds`, as a factor (0.85)."""
    high: float
    """Upper end, as a factor (1.25)."""
    gpus: int
    """Ranks of the whole job."""
    tokens: int
    """Tokens per optimizer step, all ranks (the global batch)."""
    model_flops: float
    """FLOPs the model needs for these tokens: forward and backward, causal attention counted once,
    recomputation and padding not counted."""
    hardware_flops: float
    """The same with recomputation: what the GPUs carry out."""
    peak_flops: float | None
    """Dense peak of all GPUs at the workload's precision, FLOP/s; None when unknown."""
    assumptions: tuple[str, ...]
    """What was assumed, and where the number leaves its tested range."""
    unit: str = "tokens"
    """What `tokens` counts: tokens, or samples where these are no sequences of tokens."""
    sources: tuple[str, ...] = ()
    """Where the formulas and constants come from."""

    @property
    def step_seconds(self) -> float:
        """The parts' sum."""
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Of the whole job."""
        return self.tokens / self.step_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Of one GPU."""
        return self.tokens_per_second / self.gpus

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s over the dense peak; None when the peak is unknown."""
        return self.peak_flops and self.model_flops / self.step_seconds / self.peak_flops

    @property
    def hfu(self) -> float | None:
        """As `mfu`, recomputation counted as work."""
        return self.peak_flops and self.hardware_flops / self.step_seconds / self.peak_flops

    @property
    def calibration_factor(self) -> float:
        """By what measured runs of the stack multiplied the other parts; 1 = there are none."""
        return self.step_seconds / (self.step_seconds - self.parts.get(CALIBRATION, 0.0))

    @property
    def exposed_seconds(self) -> float:
        """Time in which a GPU waits for other GPUs."""
        return sum(
            seconds for name, seconds in self.parts.items() if name.startswith(COMMUNICATION)
        )

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        seconds = self.step_seconds
        return {
            "step_seconds": seconds,
            "range": {"low_seconds": seconds * self.low, "high_seconds": seconds * self.high},
            "parts": dict(self.parts),
            "gpus": self.gpus,
            **self._rates(),
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "assumptions": list(self.assumptions),
            "sources": list(self.sources),
        }

    def _rates(self) -> dict[str, float | None]:
        """Work and rates in their unit; None in the other one."""
        rates = {
            "per_step": self.tokens,
            "per_second": self.tokens_per_second,
            "per_second_per_gpu": self.tokens_per_second_per_gpu,
        }
        return {
            f"{unit}_{name}": value if unit == self.unit else None
            for unit in ("tokens", "samples")
            for name, value in rates.items()
        }

    def __str__(self) -> str:
        lines = [f"{name:<36}{format_seconds(part):>12}" for name, part in self.parts.items()]
        seconds = self.step_seconds
        ends = format_between(seconds * self.low, seconds * self.high)
        return "\n".join([*lines, f"{'step':<36}{format_seconds(seconds):>12}  ({ends})"])

    __repr__ = __str__
