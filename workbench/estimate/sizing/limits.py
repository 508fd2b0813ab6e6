"""How far a card reaches: the largest micro-batch, the longest sequence.

Doubling, then bisection on `training_memory`; the answer is a boundary by construction: it fits,
the next larger one does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.checks import require_number
from workbench.describe.job_function import takes_job
from workbench.describe.workload import MOST_TOKENS
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate
from workbench.units import format_bytes

HEADROOM = 0.05
"""Share of the card that a suggestion leaves free: fragmentation, other processes, the estimate's
own error. What counts as fitting is `Estimate.fits`, with `SAFETY` (parts.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The largest value that fits, with the estimate at it and the reason it is no larger."""

    value: int | None
    """The largest that fits; 0 when not even the smallest does; None when there is no answer."""
    unit: str
    """What is counted: sequences, tokens."""
    headroom: float
    """Share of the card that was kept free."""
    reason: str
    """One sentence: what the next larger one would need, or why there is no answer."""
    estimate: Estimate | None = None
    """Memory at `value`; None without a value."""

    def __str__(self) -> str:
        value = "n/a" if self.value is None else f"{self.value:,}"
        return f"{value} {self.unit} ({self.reason})"

    __repr__ = __str__


def leaves_headroom(estimate: Estimate, headroom: float = HEADROOM) -> bool | None:
    """Whether `estimate` fits and leaves that share of the card free; None without a card.

    Raises:
        UsageError: headroom is not a share.
    """
    require_number("headroom", headroom, least=0, below=1)
    if estimate.card_bytes is None:
        return None
    return estimate.on_card_bytes <= estimate.card_bytes * (1 - headroom)


@takes_job
def largest_micro_batch(
    workload: Workload, strategy: Strategy, cluster: Cluster, headroom: float = HEADROOM
) -> Answer:
    """Most sequences per forward pass and rank that fit, all else unchanged.

    Raises:
        UsageError: the layout is impossible, or headroom is not a share.
    """

    def at(count: int) -> Estimate:
        return training_memory(replace(workload, micro_batch=count), strategy, cluster)

    return _largest(at, step=1, limit=MOST_TOKENS, unit="sequences", headroom=headroom)


@takes_job
def longest_sequence(
    workload: Workload, strategy: Strategy, cluster: Cluster, headroom: float = HEADROOM
) -> Answer:
    """Most tokens per sequence that fit, in multiples of 128 that context parallelism can split.

    A learned position table ends the search at its length.

    Raises:
        UsageError: the layout is impossible, or headroom is not a share.
    """
    model = workload.model
    if model.kind in {"vision", "module"}:
        reason = f"{model.name} is a traced module: it has no sequence length"
        if model.kind == "vision":
            reason = f"the patches of {model.name} fix the sequence"
        return Answer(value=None, unit="tokens", headroom=headroom, reason=reason)
    step = math.lcm(128, strategy.cp)

    def at(tokens: int) -> Estimate:
        return training_memory(replace(workload, seq_len=tokens), strategy, cluster)

    return _largest(
        at, step=step, limit=model.longest_sequence or MOST_TOKENS, unit="tokens", headroom=headroom
    )


def _largest(
    at: Callable[[int], Estimate], *, step: int, limit: int, unit: str, headroom: float
) -> Answer:
    """Search multiples of `step` up to `limit`; a length below `step` counts as one step."""
    first = min(step, limit)

    def size(index: int) -> int:
        return first if index == 1 else index * step

    def fits(index: int) -> bool | None:
        return leaves_headroom(at(size(index)), headroom)

    smallest = fits(1)
    if smallest is None:
        reason = "no card to answer against; name a GPU"
        return Answer(value=None, unit=unit, headroom=headroom, reason=reason)
    headroom_note = f"{headroom:.0%} of the card kept free as headroom"
    if not smallest:
        subject = f"{first:,} {unit} need" if first > 1 else f"1 {unit.removesuffix('s')} needs"
        reason = f"even {subject} {_needs(at(first))}; {headroom_note}"
        return Answer(value=0, unit=unit, headroom=headroom, reason=reason)
    last = max(1, limit // step)
    index = _boundary(fits, last)
    largest = size(index)
    if index == last:
        reason = f"the most that is possible here; {headroom_note}"
    else:
        reason = f"{size(index + 1):,} would need {_needs(at(size(index + 1)))}; {headroom_note}"
    return Answer(value=largest, unit=unit, headroom=headroom, reason=reason, estimate=at(largest))


def _boundary(fits: Callable[[int], bool | None], last: int) -> int:
    """The index i with fits(i) and not fits(i + 1), or `last`; fits(1) is known to hold."""
    low, high = 1, 2
    while high <= last and fits(high):
        low, high = high, high * 2
    if high > last:
        if fits(last):
            return last
        high = last
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _needs(estimate: Estimate) -> str:
    return f"{format_bytes(estimate.on_card_bytes)} of {format_bytes(estimate.card_bytes)}"
