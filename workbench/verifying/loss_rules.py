"""A loss that is no number: a training that is broken, whatever the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.verifying.trace import EPSILON, Trace
from workbench.verifying.verdict import Verdict


def loss_not_finite(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """The first step in which a rank's loss is NaN or infinite."""
    for number in range(trace.steps):
        bad = _not_finite(trace, number)
        if not bad:
            continue
        everywhere = len(bad) == len(trace.ranks)
        ranks = ", ".join(map(str, bad))
        whose = "every rank" if everywhere else f"rank{'s' * (len(bad) > 1)} {ranks}"
        where, also = _elsewhere(reference, number)
        rank, loss = next(iter(bad.items()))
        name = "NaN" if math.isnan(loss) else "infinite"
        yield Verdict(
            kind="loss-not-finite",
            part="loss",
            step=number + 1,
            rank=rank if len(bad) == 1 < len(trace.ranks) else None,
            what=f"the loss of {whose}",
            evidence=f"In step {number + 1} on {trace.label} it is {name}{where}.",
            bound="The loss is a number in each step.",
            cause=_cause(also=also, everywhere=everywhere, first=number == 0),
            next="Look at the batch and at logarithms and divisions in the loss; workbench launch "
            "and workbench diagnose name the first tensor with NaN.",
        )
        return


def _not_finite(trace: Trace, number: int) -> dict[int, float]:
    """Rank -> its loss in that step, where it is no number.

    Of a loss that is scaled in float16, infinity is how a scaler finds its scale.
    """
    scaled = trace.epsilon == EPSILON["float16"]
    losses = {
        rank.rank: rank.steps[number].loss for rank in trace.ranks if number < len(rank.steps)
    }
    return {
        rank: loss
        for rank, loss in losses.items()
        if loss is not None and (math.isnan(loss) or (math.isinf(loss) and not scaled))
    }


def _elsewhere(reference: Trace | None, number: int) -> tuple[str, bool]:
    """What the run on one rank has in that step, and whether it is no number there either."""
    if reference is None or number >= reference.steps:
        return "", False
    if _not_finite(reference, number):
        return f", as on {reference.label}", True
    return f"; on {reference.label} it is a number", False


def _cause(*, also: bool, everywhere: bool, first: bool) -> str:
    if also or everywhere:
        when = "before any update" if first else "after an update, which may have been too large"
        return f"The script does it by itself, {when}; nothing after that step can be compared."
    return "That rank's samples, or its copy of the model, are other than those of its peers."


RULES = (loss_not_finite,)
