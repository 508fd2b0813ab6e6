"""Ranks that are late because they wait for a core, not because of their own work."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from workbench.diagnose.arrival_order import PAUSED, QUOTA, RAISE, late_rank, recent
from workbench.diagnose.evidence import Evidence
from workbench.observe.arrival_window import ArrivalWindow
from workbench.store.findings import Finding
from workbench.units import format_seconds

_LEAST_STEPS = 16
_LEAST_SECONDS = 20.0
_ENTER, _LEAVE = 0.25, 0.15  # of a step
_EXPLAINED = 0.6
_MUCH_LONGER = 2.0  # times what the others wait for a core: it is this rank's cores alone


def contended(evidence: Evidence) -> Iterator[Finding]:
    """A quarter of the step is waiting for ranks that wait for a core.

    An observation of the host that is not reported for a short run: it has to last, unless a
    quota is the cause.
    """
    window = recent(evidence)
    if window is None or window.steps < _LEAST_STEPS or late_rank(evidence) is not None:
        return
    held_share = _held_share(window)
    if held_share >= evidence.bound("host-contention", None, _ENTER, _LEAVE):
        yield _held_together(window, held_share)
        return
    rank = _waiting_rank(window)
    share = min(1.0, window.late_seconds / window.step_seconds)
    queued = window.others_queued if rank is None else window.ranks[rank].queued
    if share < evidence.bound("host-contention", rank, _ENTER, _LEAVE):
        return
    if queued < _EXPLAINED * window.late_seconds:
        return
    is_throttled = (
        rank is not None and window.ranks[rank].throttled >= 0.5 * window.ranks[rank].queued
    )
    if not is_throttled and evidence.arrivals[-1].time - evidence.arrivals[0].time < _LEAST_SECONDS:
        return
    cause, move = _advice(rank, is_throttled=is_throttled)
    subject = "The ranks wait" if rank is None else f"Rank {rank} waits"
    yield Finding(
        kind="host-contention",
        rank=rank,
        step=window.first,
        severity="note",
        confidence=0.8,
        evidence=f"{subject} {format_seconds(queued)} of a step of "
        f"{format_seconds(window.step_seconds)} for a core; the last rank of each step costs "
        f"{format_seconds(window.late_seconds)} ({share:.0%}, {window.steps} steps).",
        cause=cause,
        next=move,
        phase=PAUSED if is_throttled else None,
        lost_share=round(share, 4),
    )


def _held_share(window: ArrivalWindow) -> float:
    """Of the step, for which the quota that the ranks share holds all of them back."""
    shares = window.ranks.values()
    queued = median(share.queued for share in shares)
    throttled = median(share.throttled for share in shares)  # added up over the cores
    if min(share.throttled for share in shares) < 0.5 * throttled or throttled < 0.5 * queued:
        return 0.0
    return min(1.0, max(queued, throttled / len(shares)) / window.step_seconds)


def _held_together(window: ArrivalWindow, share: float) -> Finding:
    return Finding(
        kind="host-contention",
        step=window.first,
        severity="warning",
        confidence=0.9,
        evidence=f"The ranks were held back for {format_seconds(share * window.step_seconds)} of a "
        f"step of {format_seconds(window.step_seconds)} ({share:.0%}, {window.steps} steps).",
        cause="The CPU quota of this container or cgroup is less than the "
        f"{len(window.ranks)} ranks use, with their threads and loaders.",
        next="Raise its CPU limit (docker --cpus, a pod's limits.cpu, cpu.max), or start fewer "
        "ranks, loader workers and threads.",
        phase=PAUSED,
        lost_share=round(share, 4),
    )


def _waiting_rank(window: ArrivalWindow) -> int | None:
    """The rank that waits for a core much longer than the others; None where several do."""
    rank = max(window.ranks, key=lambda rank: window.ranks[rank].queued)
    others_queued = median(share.queued for other, share in window.ranks.items() if other != rank)
    return rank if window.ranks[rank].queued >= _MUCH_LONGER * others_queued else None


def _advice(rank: int | None, *, is_throttled: bool) -> tuple[str, str]:
    if rank is None:
        return (
            "The host has fewer free cores than the ranks need; no rank is slow by itself.",
            "Start fewer ranks, end other programs on the host, or give each rank fewer threads.",
        )
    if is_throttled:
        return QUOTA.format(rank=rank), RAISE.format(rank=rank)
    return (
        f"The cores that rank {rank} may use are taken by others; its own work is not slower.",
        f"Look at what else runs on rank {rank}'s cores (taskset -p, cpuset); give it its own.",
    )


RULES = (contended,)
