"""When a layout that fits proves that another one, with more work, is not the fastest."""

from __future__ import annotations

from workbench.estimate.timing import StepTime
from workbench.planning.space import ParallelLayout

Fitting = dict[int, tuple[int, ...]]
"""Choice of a layout -> micro-batches that fit."""


def is_dominated(
    layout: ParallelLayout, position: int, size: int, fitting: Fitting, loose: set[int]
) -> bool:
    """Whether a layout that fits does the same with less work: lighter, or in larger pieces."""
    flat = layout.strategy.pp == 1
    for other in layout.choices[position].lighter:
        sizes = fitting.get(other, ())
        if other not in loose and (size in sizes or (flat and sizes and sizes[-1] >= size)):
            return True
    mine = fitting.get(position, ())
    return flat and bool(mine) and mine[-1] > size


def waits_twice(step: StepTime) -> bool:
    """Whether it waits for the host and for others.

    `step_time` adds both, so more work can hide more than it takes: less recompute proves nothing.
    """
    host = "kernel launches" in step.parts or "offload traffic" in step.parts
    return host and step.exposed_seconds > 0
