"""What one kind of machine can do: its fastest layouts, and the reasons against all others."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.estimate.timing import StepTime
from workbench.planning.refusals import HOST, MEMORY, Refusal, layout_text
from workbench.planning.space import Choice, ParallelLayout


@dataclass(frozen=True, slots=True)
class FittingLayout:
    """A layout that fits, with its time."""

    layout: ParallelLayout
    choice: Choice
    micro_batch: int
    step: StepTime

    @property
    def accumulate(self) -> int:
        """Micro-batches per optimizer step."""
        return self.layout.accumulate(self.micro_batch)

    @property
    def text(self) -> str:
        """The layout in one line."""
        return layout_text(self.choice.strategy, self.micro_batch, self.accumulate)


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """What one kind of machine can do."""

    best: tuple[FittingLayout, ...]
    """The fastest candidate of each of the best layouts, fastest first; empty = nothing fits."""
    refusals: tuple[Refusal, ...]
    """Every other layout."""
    layouts: int
    """All layouts looked at: those of `refusals` and `best`."""
    first_legal: ParallelLayout | None
    """The simplest: no model parallelism, nothing sharded where that is possible."""
    refused: Mapping[str, int]
    """Kind of refusal -> layouts."""
    bar: float = math.inf
    """Seconds of a step from which on layouts were not looked at."""

    weigh: Callable[[Refusal], Refusal] | None = None
    """Makes a rough refusal an exact one."""

    @property
    def nearest(self) -> Refusal | None:
        """The refusal for memory that lacks least; only those that may be are weighed."""
        short = [
            (refusal.needed - refusal.limit, index, refusal)
            for index, refusal in enumerate(self.refusals)
            if refusal.kind in {MEMORY, HOST}
        ]
        heapq.heapify(short)
        while short:
            _, index, refusal = short[0]
            if not refusal.rough or self.weigh is None:
                return refusal
            exact = self.weigh(refusal)
            heapq.heapreplace(short, (exact.needed - exact.limit, index, exact))
        return None
