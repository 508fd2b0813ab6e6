"""What one kind of machine can do: its fastest layouts, and the reasons against all others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.estimate.timing import StepTime
from workbench.plan.refusals import HOST, MEMORY, Refusal
from workbench.plan.space import Choice, Spread


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout that fits, with its time."""

    spread: Spread
    choice: Choice
    micro_batch: int
    step: StepTime

    @property
    def accumulate(self) -> int:
        """Micro-batches per optimizer step."""
        return self.spread.accumulate(self.micro_batch)


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind of machine can do."""

    best: tuple[Fit, ...]
    """The fastest layout of each of the best spreads, fastest first; empty = nothing fits."""
    refusals: tuple[Refusal, ...]
    """Every other layout."""
    layouts: int
    """All layouts looked at: those of `refusals` and `best`."""
    refused: Mapping[str, int]
    """Kind of refusal -> layouts."""
    bar: float = math.inf
    """Seconds of a step from which on layouts were not looked at."""

    @property
    def nearest(self) -> Refusal | None:
        """The refusal for memory that lacks least."""
        short = [one for one in self.refusals if one.kind in {MEMORY, HOST}]
        return min(short, key=lambda one: one.found - one.limit, default=None)
