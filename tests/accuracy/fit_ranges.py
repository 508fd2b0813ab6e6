"""Ranges of step times from residuals of runs whose source had no part in the constants."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workbench.estimate.time_range import PATH

INSIDE = 0.8
"""Share of the runs that should lie inside."""
POOLED = 10.0
"""Weight of all kinds' runs in each kind's ends, in runs."""
RUNS, SOURCE = 0.5, 1.0
"""Exponents by which a run of a source counts less the more the source has: a named stack's next
run may be of any source, an unknown stack is itself a new source, so that each source counts once."""
Ends = tuple[float, float]


class Residual(NamedTuple):
    """One run's log(measured / predicted) rate."""

    source: str
    """Whose run it is."""
    kind: str
    """`time_range.kind_of` it."""
    stack: str
    """Whether its software stack is named or unknown."""
    value: float
    """The logarithm."""


def ranges(known: Sequence[Residual], tail: float) -> dict[tuple[str, str], Ends]:
    """Ends by kind and stack that leave `tail` of the runs outside on each side."""
    groups = sorted({(one.kind, one.stack) for one in known})
    counts = Counter((one.source, one.kind, one.stack) for one in known)
    found: dict[tuple[str, str], Ends] = {}
    for kind, stack in groups:
        weighted = [
            (one.value, (1.0 if one.kind == kind else 0.0, counts[one[:3]]))
            for one in known
            if one.stack == stack
        ]
        fade = SOURCE if stack == "unknown" else RUNS
        own = sum(count**-fade for _, (is_own, count) in weighted if is_own)
        every = sum(count**-fade for _, (_, count) in weighted)
        values = [
            (value, (is_own + POOLED / every) * count**-fade) for value, (is_own, count) in weighted
        ]
        assert own, "a group has runs"
        fast, slow = quantile(values, 1 - tail), quantile(values, tail)
        found[kind, stack] = math.exp(-fast), math.exp(-slow)
    return _widened(found)


def _widened(found: dict[tuple[str, str], Ends]) -> dict[tuple[str, str], Ends]:
    """Who knows less of a run never gives a narrower range."""
    for (kind, stack), (low, high) in list(found.items()):
        if stack == "unknown":
            known = found.get((kind, "named"), (low, high))
            found[kind, stack] = min(low, known[0]), max(high, known[1])
    return found


def quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which `share` of the weight lies.

    >>> quantile([(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)], 0.5)
    2.0
    """
    below, goal = 0.0, share * sum(weight for _, weight in weighted)
    ordered = sorted(weighted)
    for value, weight in ordered:
        below += weight
        if below >= goal:
            return value
    return ordered[-1][0]


def coverage(known: Sequence[Residual], tail: float) -> float:
    """Share of runs inside ranges that their own source has no part in."""
    inside = 0
    for source in {one.source for one in known}:
        others = ranges([one for one in known if one.source != source], tail)
        every = ranges(known, tail)
        for one in known:
            if one.source == source:
                low, high = others.get((one.kind, one.stack), every[one.kind, one.stack])
                inside += low <= math.exp(-one.value) <= high
    return inside / len(known)


def chosen(known: Sequence[Residual]) -> tuple[dict[tuple[str, str], Ends], float]:
    """The narrowest ranges that hold `INSIDE` of the runs left out; the share that they hold."""
    for tail in (0.14, 0.12, 0.11, 0.10, 0.09, 0.08, 0.07, 0.06, 0.05):
        share = coverage(known, tail)
        if share >= INSIDE:
            break
    return ranges(known, tail), share


def write(found: Mapping[tuple[str, str], Ends]) -> None:
    """Replace the product's table."""
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "stack", "low", "high"))
        for (kind, stack), (low, high) in sorted(found.items()):
            writer.writerow((kind, stack, f"{low:.2f}", f"{high:.2f}"))
