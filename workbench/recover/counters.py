"""Optimizer steps that a file of torch.save says were done: an optimizer's count, or a counter."""

from __future__ import annotations

import math
import re

from workbench.recover.pickled import Saved, walk

COUNTERS = (
    *("global_step", "global_steps", "completed_steps", "num_updates", "train_step", "iter_num"),
    *("optimizer_step", "current_step", "steps", "step", "iteration", "iter", "it"),
)
"""Names under which trainings keep how many optimizer steps they have done, the surest first."""
_PLANS = re.compile(r"conf|cfg|arg|opts$|param|flags|settings|ema|sched|sampler|loader|diffusion")
"""Parts of a checkpoint that hold settings, or count something else than steps."""


def optimizer_updates(saved: Saved) -> int | None:
    """The steps that an optimizer in it has done, as Adam and its like count them per tensor."""
    counts = [
        number
        for path, value in walk(saved.value)
        if len(path) >= 3 and path[-1] == "step" and path[-3] == "state"
        if (number := saved.number(value)) is not None
    ]
    return count_of(max(counts, default=None))


def counted_steps(saved: Saved) -> int | None:
    """A counter at the top or in one of its parts that tells how far the training was."""
    ranked: list[tuple[int, int, int]] = []
    for path, value in walk(saved.value, 20_000):
        if 1 <= len(path) <= 3 and path[-1] in COUNTERS and not any(map(_is_plan, path[:-1])):
            number = count_of(saved.number(value))
            if number is not None:
                ranked.append((len(path), COUNTERS.index(str(path[-1])), number))
    return min(ranked)[2] if ranked else None


def _is_plan(part: object) -> bool:
    return _PLANS.search(str(part).lower()) is not None


def count_of(value: object) -> int | None:
    """A number of steps or ranks; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if 0 <= value < 1 << 53 and value == int(value) else None
