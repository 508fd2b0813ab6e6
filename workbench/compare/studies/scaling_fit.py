"""What the measured sizes of a scaling study say about sizes that were not run.

A step is compute + exchange + waiting for the slowest rank + waiting for data, each with its own
law. Compute per rank is constant (weak) or falls with the ranks (strong); on CPU the ranks share
the cores, so it grows by the threads a rank loses and, beyond one rank per core, by ranks/cores.
A ring all-reduce over n ranks takes 2 (n-1) messages and 2 (n-1)/n times the bytes (Thakur et al.,
2005). The slowest of n equal ranks is later than their mean by the expected maximum of n normal
deviates (Blom, 1958). Nothing is claimed without a range: a bootstrap over the measured steps, and
a model error that grows with the distance from what was measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from workbench.compare.studies.step_split import Host, MeasuredSize, parts_of
from workbench.errors import UsageError

DRAWS = 200
"""Of the bootstrap."""
MODEL_ERROR, MODEL_ERROR_PER_DOUBLING = 0.05, 0.06
"""Share of the step by which the laws themselves may be off."""
MESSAGE_SECONDS = 100e-6
"""Of one message of a gloo ring on one host, where one size alone cannot tell it."""
LATENCY_AT_MOST = 0.5
"""Share of one measured exchange that may be messages' latency: the range's upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSize:
    """One size that was not run."""

    ranks: int
    """Processes."""
    parts: Mapping[str, float]
    """Seconds per step by `PARTS`."""
    low_seconds: float
    """Lower end of the range of the step."""
    high_seconds: float
    """Upper end."""

    @property
    def step_seconds(self) -> float:
        """The parts' sum."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """How each part continues beyond the measured sizes."""

    host: Host
    """Cores to share."""
    ranks: int
    """The largest measured size."""
    compute: float
    """Seconds there."""
    fixed: float
    """Share of that compute which does not shrink with a smaller batch; 0 in weak scaling."""
    shrinks: bool
    """Strong scaling: the work of a rank falls as 1/ranks."""
    thread_power: float
    """Compute grows as threads to the minus this."""
    message: float
    """Seconds of one message."""
    exchange: float
    """Seconds in which the bytes of one whole exchange pass."""
    spread: float
    """Seconds, standard deviation of when ranks enter the backward pass."""
    data: float
    """Seconds."""

    def at(self, ranks: int) -> dict[str, float]:
        """Seconds by part."""
        host, here = self.host, self.ranks
        crowd = host.crowd(ranks)
        compute = self.compute * crowd / host.crowd(here)
        compute *= (host.threads(here) / host.threads(ranks)) ** self.thread_power
        if self.shrinks:
            compute *= self.fixed + (1 - self.fixed) * here / ranks
        messages, volume = ring(ranks)
        return {
            "compute": compute,
            "communication": crowd * (self.message * messages + self.exchange * volume),
            "waiting": self.spread * lateness(ranks),
            "data": self.data,
        }


def ring(ranks: int) -> tuple[float, float]:
    """Messages of a ring all-reduce, and times its bytes that a rank sends.

    >>> ring(4)
    (6.0, 1.5)
    """
    return 2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks


def lateness(ranks: int) -> float:
    """Expected maximum of that many standard normal deviates (Blom's approximation).

    >>> [round(lateness(n), 2) for n in (1, 2, 4, 64)]
    [0.0, 0.59, 1.05, 2.34]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def law(
    points: Sequence[MeasuredSize],
    host: Host,
    *,
    strong: bool = False,
    same_work: MeasuredSize | None = None,
    latency: float | None = None,
) -> ScalingLaw:
    """Fit the laws to two or more measured sizes, the smallest first.

    Args:
        points: What was measured.
        host: Cores to share.
        strong: Whether the batch of a rank shrinks as 1/ranks.
        same_work: The largest size with the first size's batch per rank: tells the part of compute
            that a smaller batch does not shrink.
        latency: Share of a single measured exchange that is latency, instead of the usual message.

    Raises:
        UsageError: fewer than two sizes.
    """
    if len(points) < 2:
        raise UsageError(
            f"{len(points)} size was measured; a fit needs two, for example --sizes 1,2."
        )
    parts = parts_of(points, host)
    first, last = points[0], points[-1]
    start, end = parts[0], parts[-1]
    message, exchange = _exchange(points, parts, host, latency)
    spreads = [
        part["waiting"] / lateness(point.ranks)
        for point, part in zip(points, parts, strict=True)
        if point.ranks > 1
    ]
    grown = end["compute"] * (last.ranks / first.ranks if strong else 1.0)
    return ScalingLaw(
        host=host,
        ranks=last.ranks,
        compute=end["compute"],
        fixed=_fixed(first, last, same_work, host, end) if strong else 0.0,
        shrinks=strong,
        thread_power=_thread_power(first.ranks, last.ranks, start["compute"], grown, host),
        message=message,
        exchange=exchange,
        spread=fmean(spreads) if spreads else 0.0,
        data=end["data"],
    )


def _thread_power(first: int, last: int, start: float, end: float, host: Host) -> float:
    """How compute follows the threads of a rank; 1 = each thread does its full share."""
    threads = host.threads(first) / host.threads(last)
    if threads <= 1 or start <= 0 or end <= 0:
        return 1.0
    grown = end / start / (host.crowd(last) / host.crowd(first))
    return min(1.2, max(0.0, math.log(max(grown, 1e-9)) / math.log(threads)))


def _fixed(
    first: MeasuredSize,
    last: MeasuredSize,
    same_work: MeasuredSize | None,
    host: Host,
    end: dict[str, float],
) -> float:
    """Share of the last size's compute that stays: two batches on the same ranks give the line."""
    if same_work is None or same_work.ranks != last.ranks or end["compute"] <= 0:
        return 0.0
    full = parts_of([first, same_work], host)[-1]["compute"]
    share = first.ranks / last.ranks  # of the full batch, in the smaller one
    per_batch = (full - end["compute"]) / (1 - share)
    return min(1.0, max(0.0, (full - per_batch) / end["compute"]))


def _exchange(
    points: Sequence[MeasuredSize],
    parts: Sequence[Mapping[str, float]],
    host: Host,
    latency: float | None,
) -> tuple[float, float]:
    """Seconds of a message, and of one pass of the bytes, neither below 0."""
    rows = [
        (*ring(point.ranks), part["communication"] / host.crowd(point.ranks))
        for point, part in zip(points, parts, strict=True)
        if point.ranks > 1
    ]
    messages, volume, seconds = rows[-1]
    if len(rows) == 1:
        is_unknown = latency is None
        message = min(seconds / messages, MESSAGE_SECONDS) if is_unknown else seconds / messages
        message *= 1.0 if latency is None else latency
        return message, (seconds - message * messages) / volume
    mm, mv, vv, ms, vs = (
        sum(products)
        for products in zip(*((m * m, m * v, v * v, m * s, v * s) for m, v, s in rows), strict=True)
    )
    determinant = mm * vv - mv * mv
    message = (ms * vv - vs * mv) / determinant if determinant else 0.0
    message = min(max(0.0, message), ms / mm)
    return message, max(0.0, (vs - message * mv) / vv)


def extrapolate(
    points: Sequence[MeasuredSize],
    host: Host,
    sizes: Sequence[int],
    *,
    strong: bool = False,
    same_work: MeasuredSize | None = None,
) -> list[PredictedSize]:
    """The step at sizes beyond the measured ones, with its range."""
    best = law(points, host, strong=strong, same_work=same_work)
    late = law(points, host, strong=strong, same_work=same_work, latency=LATENCY_AT_MOST)
    even = law(points, host, strong=strong, same_work=same_work, latency=0.0)
    draws = [
        law(_redrawn(points, seed), host, strong=strong, same_work=same_work)
        for seed in range(DRAWS)
    ]
    return [_ranged(size, best, (even, late), draws) for size in sizes]


def _redrawn(points: Sequence[MeasuredSize], seed: int) -> list[MeasuredSize]:
    dice = random.Random(seed)  # noqa: S311 - a bootstrap, not a secret
    return [
        MeasuredSize(
            ranks=point.ranks,
            splits=tuple(dice.choices(point.splits, k=min(60, len(point.splits)))),
        )
        for point in points
    ]


def _ranged(
    size: int, best: ScalingLaw, alternatives: Sequence[ScalingLaw], draws: Sequence[ScalingLaw]
) -> PredictedSize:
    parts = best.at(size)
    step = sum(parts.values())
    ordered = sorted(sum(draw.at(size).values()) for draw in draws)
    tail = max(1, len(ordered) // 40)  # 2.5 % on either side
    ends = (ordered[tail], ordered[-1 - tail])
    other = [sum(law.at(size).values()) for law in alternatives]
    model = MODEL_ERROR + MODEL_ERROR_PER_DOUBLING * max(0.0, math.log2(size / best.ranks))
    model *= step

    def beyond(*ways: float) -> float:
        return math.hypot(*(max(0.0, way) for way in ways))

    return PredictedSize(
        ranks=size,
        parts=parts,
        low_seconds=max(0.0, step - beyond(step - ends[0], step - min(other), model)),
        high_seconds=step + beyond(ends[1] - step, max(other) - step, model),
    )
