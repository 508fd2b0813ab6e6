"""The rank that the others wait for, by who enters each collective last, and what it costs.

Time for which a rank waited for a core is no work of its own: what is left is compared step by
step, and a rank is named when the steps' spread cannot explain how much longer its work takes.

On GPUs nothing of this is known (see `launching.capture.arrivals`): there `speed.straggler` tells
of the entry of the backward pass alone, and no cause is named that was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from workbench.diagnose.evidence import Evidence
from workbench.observe.arrival_window import PAUSE, PHASES, ArrivalWindow, combined
from workbench.store.findings import Finding
from workbench.units import format_seconds, format_usd

_STEPS = 40  # compared
LEAST_STEPS = 8
"""Fewer tell nothing of a rank or an exchange."""
_CLEAR_STEPS = 5  # where three tenths of the step and more are lost
_CLEAR_SHARE = 0.3
ENTER = 0.06
"""Of the others' own work in a step: a rank that is less late is none."""
_LEAVE = 0.04
_LEAST_SECONDS = 0.005  # of a step: less is told only where it is `_CLEAR_SHARE`
_LEAST_SPAN = 0.1  # seconds that the steps compared take: a burst of other work may fill less
_SURE = 4.0  # standard errors of the mean
_LOOKS = 0.75  # of the looks in which its work took longer: contention comes in bursts
_WAITED_FOR = 0.1  # of what it costs is seen as longer waiting of the others
_OF_LAST, _BEYOND_CHANCE = 0.3, 1.3  # of the steps that anyone is late in; times an even share
_OF_QUEUE = 0.12  # of the mean wait for a core in `_STEPS`: contention slows what runs, too
_OF_TAIL = 0.5  # of what is lost is explained by the exchange's end
PAUSED = "paused"
_OFTEN = 0.2  # stops of the process in a step
_STAGES = 0.25  # in a pipeline: its stages are seldom quite equal
_SAME = 0.8  # of the steps that anyone is late in


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """The rank that the others wait for."""

    rank: int
    """Which it is."""
    window: ArrivalWindow
    """The steps that tell so."""
    lost: float
    """Seconds of each step that the next one would not need."""
    phase: str
    """Where its own work is longer than that of the others (`PHASES`), or "paused": its process is
    stopped or held back, wherever it is."""
    others_seconds: float
    """Seconds that the others take for that phase."""

    @property
    def slowness(self) -> float:
        """How much longer its work takes, of the others' work; waiting has no part in it."""
        return self.lost / (sum(self.window.others_own.values()) or self.window.step_seconds)

    @property
    def share(self) -> float:
        """Of the step."""
        return min(1.0, self.lost / self.window.step_seconds)


def recent(evidence: Evidence) -> ArrivalWindow | None:
    """The latest joined steps as one; None while nothing is known of their order."""
    return combined(_recent_windows(evidence))


def _recent_windows(evidence: Evidence) -> list[ArrivalWindow]:
    some: list[ArrivalWindow] = []
    if not evidence.arrivals:
        return some
    pause = PAUSE * median(arrival.step_seconds for arrival in evidence.arrivals)
    for window in reversed(evidence.arrivals):
        if window.step_seconds > pause:
            continue  # a long evaluation or save of one rank
        some.append(window)
        span = sum(window.steps * window.step_seconds for window in some)
        if sum(window.steps for window in some) >= _STEPS and span >= _LEAST_SPAN:
            break
    return some[::-1]


def late_rank(evidence: Evidence) -> LateRank | None:
    """The rank whose lateness costs the most; None where no rank stands out."""
    window = recent(evidence)
    if window is None or len(window.ranks) < 2:
        return None
    rank = max(window.ranks, key=lambda rank: _lateness(window, rank))
    share, lost = window.ranks[rank], _lateness(window, rank)
    excess = {
        phase: share.own.get(phase, 0.0) - _others_seconds(window, rank, phase) for phase in PHASES
    }
    if sum(max(0.0, seconds) for seconds in excess.values()) < 0.5 * lost:
        return None  # it does no more than the others: nothing here explains why they wait
    phase = max(excess, key=lambda phase: excess[phase])
    others_seconds = _others_seconds(window, rank, phase)
    if share.stops >= _OFTEN or share.throttled >= 0.5 * lost:
        phase, others_seconds = PAUSED, 0.0
    straggler = LateRank(
        rank=rank, window=window, lost=lost, phase=phase, others_seconds=others_seconds
    )
    if _is_held_by_the_exchange(straggler):
        return None
    return straggler if _waited_for(straggler) and _steady(evidence, straggler) else None


def _is_held_by_the_exchange(straggler: LateRank) -> bool:
    """Whether it comes late because the exchange before ends later for it.

    A slow link, its own or that of a neighbour in the ring, does so; its work is no longer.
    """
    if straggler.phase not in {"backward", "optimizer"}:
        return False
    ranks = straggler.window.ranks
    others = median(share.tail for rank, share in ranks.items() if rank != straggler.rank)
    return ranks[straggler.rank].tail - others > _OF_TAIL * straggler.lost


def _waited_for(straggler: LateRank) -> bool:
    """Whether the others do wait for it.

    Its own work is what is left of its step, so that has more in it where there is contention: the
    end of an exchange that another rank holds up, since its threads have no core.
    """
    ranks, own = straggler.window.ranks, straggler.window.ranks[straggler.rank]
    other_shares = [share for rank, share in ranks.items() if rank != straggler.rank]
    if min(share.wait for share in other_shares) - own.wait < _WAITED_FOR * straggler.lost:
        return False
    queued = (own.queued + sum(share.queued for share in other_shares)) / len(ranks)
    if straggler.lost < _OF_QUEUE * math.sqrt(max(1.0, _STEPS / straggler.window.steps)) * queued:
        return False
    last = sum(rank.last for rank in ranks.values())
    return own.last >= max(_OF_LAST, _BEYOND_CHANCE / len(ranks)) * last


def _lateness(window: ArrivalWindow, rank: int) -> float:
    """Seconds that its own work takes longer than that of every other rank."""
    share = window.ranks[rank]
    idle = min(share.wait + share.queued for other, share in window.ranks.items() if other != rank)
    late = idle - share.wait - share.queued
    return late if share.late is None else min(late, share.late)


def _steady(evidence: Evidence, straggler: LateRank) -> bool:
    """Whether it is late in step after step by more than their spread explains."""
    share, steps, lost = (
        straggler.window.ranks[straggler.rank],
        straggler.window.steps,
        straggler.lost,
    )
    sure = lost >= _CLEAR_SHARE * straggler.window.step_seconds
    if steps < (_CLEAR_STEPS if sure else LEAST_STEPS) or not (sure or lost >= _LEAST_SECONDS):
        return False
    if steps * straggler.window.step_seconds < _LEAST_SPAN:
        return False
    if share.late is None:  # of a run recorded by an older release
        return share.last >= _SAME * steps
    shares = [
        window.ranks[straggler.rank]
        for window in _recent_windows(evidence)
        if straggler.rank in window.ranks
    ]
    totals = [recent.late or 0.0 for recent in shares]
    if _significant(share.late, share.late_square, totals, steps):
        return True
    mean, square = share.excess.get(straggler.phase, (0.0, 0.0))
    if straggler.phase == PAUSED or lost < 0.3 * mean:
        return False
    parts = [recent.excess.get(straggler.phase, (0.0,))[0] for recent in shares]
    return sum(totals) > 0 and _significant(mean, square, parts, steps)


def _significant(mean: float, square: float, looks: Sequence[float], steps: int) -> bool:
    """Whether it is beyond the spread of the steps, and so in most of the looks."""
    spread = math.sqrt(max(0.0, square - mean * mean) / (steps - 1))
    often = sum(look > 0.0 for look in looks) >= _LOOKS * len(looks)
    return mean > 0.0 and mean >= _SURE * spread and often


def _others_seconds(window: ArrivalWindow, rank: int, phase: str) -> float:
    if len(window.ranks) > 8:
        return window.others_own.get(phase, 0.0)
    return median(
        share.own.get(phase, 0.0) for other, share in window.ranks.items() if other != rank
    )


def late(evidence: Evidence) -> Iterator[Finding]:
    """A rank that enters the collectives last, step after step, in whatever strategy."""
    straggler = late_rank(evidence)
    if straggler is None:
        return
    stages = (evidence.strategy("pp") or 1) > 1 or straggler.window.by_messages
    kind = _kind(evidence, straggler, stages=stages)
    enter = _STAGES if kind == "imbalanced-work" and stages else ENTER
    if straggler.slowness < evidence.bound(kind, straggler.rank, enter, _LEAVE / ENTER * enter):
        return
    cause, move = _advice(kind, straggler, stages=stages)
    window, own = straggler.window, straggler.window.ranks[straggler.rank]
    usd = None if evidence.run.usd_per_hour is None else straggler.share * evidence.run.usd_per_hour
    yield Finding(
        kind=kind,
        rank=straggler.rank,
        step=window.first,
        confidence=round(min(0.97, 0.75 + 0.3 * straggler.share), 2),
        evidence=f"The others wait for rank {straggler.rank} in {own.last} of {window.steps} "
        f"steps: it costs {format_seconds(straggler.lost)} of "
        f"{format_seconds(window.step_seconds)} a step ({straggler.share:.0%}{_price(usd)}); "
        f"{_longer(straggler)}. {_without(evidence, straggler)}",
        cause=cause,
        next=move,
        phase=straggler.phase,
        lost_share=round(straggler.share, 4),
        lost_usd_per_hour=None if usd is None else round(usd, 4),
    )


def _longer(straggler: LateRank) -> str:
    own = straggler.window.ranks[straggler.rank]
    if straggler.phase != PAUSED:
        took = format_seconds(own.own.get(straggler.phase, 0.0))
        return (
            f"its {straggler.phase} takes {took}, "
            f"the others' {format_seconds(straggler.others_seconds)}"
        )
    if own.stops >= _OFTEN:
        return f"its process was stopped {own.stops * straggler.window.steps:.0f} times"
    return f"the quota of its cgroup held it back for {format_seconds(own.throttled)} a step"


def _kind(evidence: Evidence, straggler: LateRank, *, stages: bool) -> str:
    own = straggler.window.ranks[straggler.rank]
    if own.heaviest >= _SAME * max(1, own.last):
        return "imbalanced-work"
    if straggler.phase == "input" and evidence.has_loader:
        return "input-bound"
    return (
        "imbalanced-work" if stages and straggler.phase in {"forward", "backward"} else "straggler"
    )


def _price(usd: float | None) -> str:
    return "" if usd is None else f", {format_usd(usd)} an hour"


def _without(evidence: Evidence, straggler: LateRank) -> str:
    step = straggler.window.step_seconds - straggler.lost
    text = f"Without it a step would take {format_seconds(step)}"
    left = (evidence.run.steps_total or 0) - evidence.steps
    if left > 0:
        now, then = left * straggler.window.step_seconds, left * step
        text += f", the rest of the run {format_seconds(then)} instead of {format_seconds(now)}"
    return f"{text}."


_WHERE = {
    "forward": "in its forward pass, or in the script's own code before it",
    "backward": "in its backward pass",
    "optimizer": "in its optimizer step",
    "checkpoint": "while it saves a checkpoint",
    "input": "between the steps, before its forward pass",
}


_COMPARE = (
    "Compare rank {rank}'s processor, clocks, other processes and cgroup limits with the others'; "
    "look for code that only rank {rank} runs: workbench profile shows it."
)


def _advice(kind: str, straggler: LateRank, *, stages: bool) -> tuple[str, str]:
    rank = straggler.rank
    if kind == "input-bound":
        return (
            f"The data loader of rank {rank} is slow; its peers wait with it.",
            f"Look at rank {rank}'s storage and cores; raise num_workers and prefetch_factor.",
        )
    if kind == "imbalanced-work":
        if stages:
            return (
                f"The pipeline stage of rank {rank} takes longest; the other stages wait for it.",
                f"Move layers from rank {rank}'s stage to others, or compare its device and load.",
            )
        return (
            f"Rank {rank} has the largest batches, and its peers wait for it.",
            "Give each rank as many tokens: sort or pack samples by length, or bucket them.",
        )
    if straggler.phase == PAUSED:
        return _pause_advice(straggler)
    if straggler.phase == "checkpoint":
        return (
            f"Rank {rank} is slow while it saves a checkpoint.",
            f"Save less often or asynchronously; check the disk that rank {rank} writes to.",
        )
    return (
        f"Rank {rank} is slower than its peers {_WHERE[straggler.phase]}.",
        _COMPARE.format(rank=rank),
    )


def _pause_advice(straggler: LateRank) -> tuple[str, str]:
    if straggler.window.ranks[straggler.rank].stops >= _OFTEN:
        return (
            f"The process of rank {straggler.rank} is stopped and continued again and again.",
            f"Look for what stops rank {straggler.rank}: job control, a debugger, a batch system.",
        )
    return QUOTA.format(rank=straggler.rank), RAISE.format(rank=straggler.rank)


QUOTA = "The CPU quota of rank {rank}'s cgroup holds it back."
RAISE = "Raise that cgroup's cpu.max (a container's CPU limit), or give rank {rank} fewer threads."


def changing(evidence: Evidence) -> Iterator[Finding]:
    """The late rank changes from step to step, and it is the one with the largest batch."""
    window = recent(evidence)
    if window is None or window.steps < 2 * LEAST_STEPS or (evidence.strategy("pp") or 1) > 1:
        return
    last = sum(rank.last for rank in window.ranks.values())
    heaviest = sum(rank.heaviest for rank in window.ranks.values())
    share = min(1.0, window.late_seconds / window.step_seconds)
    if max(rank.last for rank in window.ranks.values()) >= _SAME * last:
        return
    bound = evidence.bound("imbalanced-work", None, 0.15, 0.1)
    if share < bound or last < 0.5 * window.steps or heaviest < _SAME * last:
        return
    usd = None if evidence.run.usd_per_hour is None else share * evidence.run.usd_per_hour
    yield Finding(
        kind="imbalanced-work",
        step=window.first,
        severity="note",
        confidence=0.8,
        evidence=f"In {last} of {window.steps} steps one rank is late, in {heaviest} of them the "
        f"one with the largest batch: {format_seconds(window.late_seconds)} of "
        f"{format_seconds(window.step_seconds)} a step ({share:.0%}{_price(usd)}) is waiting.",
        cause="The ranks' batches differ in size from step to step.",
        next="Give each rank as many tokens: sort or pack samples by length, or bucket them.",
        lost_share=round(share, 4),
        lost_usd_per_hour=None if usd is None else round(usd, 4),
    )


RULES = (late, changing)
