"""What runs out on the host: memory, shared memory, disk; and memory that was swapped out."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from workbench.diagnose.evidence import Evidence
from workbench.store.findings import Finding
from workbench.units import format_bytes, format_seconds

_TREND_SAMPLES = 60  # the least from which a trend is told
_MEMORY_SOON = 600.0
_DISK_SOON = 1800.0
_LOOK_SECONDS = 5.0


def host_memory(evidence: Evidence) -> Iterator[Finding]:
    """Memory that is nearly gone, or will be within ten minutes."""
    total = evidence.cluster.get("memory_bytes")
    known = [
        (sample["time"], float(sample["memory_used_bytes"]))
        for sample in evidence.samples
        if sample["memory_used_bytes"] is not None
    ]
    if not isinstance(total, int) or len(known) < 10:
        return
    used = median(value for _, value in known[-5:])
    share, left = used / total, total - used
    rate = growth(known)
    soon = left / rate if rate else None
    full = share > evidence.bound("host-memory", None, 0.95, 0.90)
    if not full and (share < 0.6 or soon is None or soon > _MEMORY_SOON):
        return
    ranks = {
        rank: facts.rss_bytes for rank, facts in evidence.facts.ranks.items() if facts.rss_bytes
    }
    worst = max(ranks, key=lambda rank: ranks[rank] or 0) if ranks else None
    trend = f", full in {format_seconds(soon)} at this rate" if soon and rate else ""
    yield Finding(
        kind="host-memory",
        rank=None,
        severity="error" if share > 0.97 else "warning",
        confidence=0.8,
        evidence=f"{format_bytes(used)} of {format_bytes(total)} host memory are used "
        f"({share:.0%}){trend}"
        + (
            f"; rank {worst} has the most, {format_bytes(ranks[worst])}."
            if worst is not None
            else "."
        ),
        cause="The memory of the ranks or their loaders keeps growing."
        if rate
        else "The ranks, their loader workers and other programs use nearly all of it.",
        next="Lower num_workers and prefetch_factor, keep no tensors across steps "
        "(loss.item()), and turn off offloading to host memory.",
    )


def disk(evidence: Evidence) -> Iterator[Finding]:
    """A disk that is full, or will be within half an hour."""
    known = [
        (sample["time"], -float(sample["disk_free_bytes"]))
        for sample in evidence.samples
        if sample["disk_free_bytes"] is not None
    ]
    if len(known) < 5:
        return
    free, total = -known[-1][1], _size(evidence.paths.directory)
    rate = growth(known)
    soon = free / rate if rate else None
    low = total is not None and free < evidence.bound("disk", None, 0.01, 0.03) * total
    if not (low and free < 2**30) and (soon is None or soon > _DISK_SOON):
        return
    trend = f", full in {format_seconds(soon)} at this rate" if soon else ""
    yield Finding(
        kind="disk",
        severity="error" if soon is None or soon < 300 else "warning",
        confidence=0.85,
        evidence=f"{format_bytes(free)} are free on the disk of {evidence.paths.directory}{trend}.",
        cause="Checkpoints, logs or another program fill the disk.",
        next="Free space or delete old checkpoints; save less often and keep fewer.",
    )


def growth(points: Sequence[tuple[float, float]]) -> float | None:
    """Units per second of a steady growth; None when there is none (a step up is none)."""
    latest = list(points)[-180:]
    if len(latest) < _TREND_SAMPLES:
        return None
    size = len(latest) // 6
    parts = [latest[n * size : (n + 1) * size] for n in range(6)]
    middles = [median(value for _, value in part) for part in parts]
    if any(after <= before for before, after in itertools.pairwise(middles)):
        return None
    seconds = latest[-1][0] - latest[0][0]
    rises = sorted(after - before for before, after in itertools.pairwise(middles))
    if seconds < 20 or rises[-1] > 5 * rises[0]:
        return None  # it came in one go
    return (middles[-1] - middles[0]) / (seconds * 5 / 6)


@dataclass(slots=True)
class MemoryWatch:
    """Looks at shared memory and swap every few seconds: they are not in the samples."""

    due: float = 0.0
    shared: tuple[float, float] | None = None
    swapped: dict[int, int] | None = None

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield shared memory that is nearly full, and ranks that were swapped out."""
        facts = evidence.facts
        if facts.monotonic >= self.due and facts.ranks:
            self.due = facts.monotonic + _LOOK_SECONDS
            self.shared = _use(Path("/dev/shm"))  # noqa: S108  (looked at, not written)
            self.swapped = {
                rank: _swap(rank_facts.process["pid"])
                for rank, rank_facts in facts.ranks.items()
                if rank_facts.alive and rank_facts.process is not None
            }
        if self.shared is not None and facts.ranks:
            yield from self._shared(evidence, *self.shared)
        yield from self._swap(evidence)

    def _shared(self, evidence: Evidence, used: float, total: float) -> Iterator[Finding]:
        if not total or used < evidence.bound("shared-memory", None, 0.9, 0.8) * total:
            return
        yield Finding(
            kind="shared-memory",
            confidence=0.8,
            evidence=f"{format_bytes(used)} of {format_bytes(total)} of /dev/shm are used.",
            cause="Loader workers pass batches through shared memory, which is too small here.",
            next="Enlarge it (docker run --shm-size=8g), or lower num_workers and prefetch_factor.",
        )

    def _swap(self, evidence: Evidence) -> Iterator[Finding]:
        if not self.swapped:
            return
        rank = max(self.swapped, key=lambda rank: (self.swapped or {})[rank])
        held = evidence.facts.ranks[rank].rss_bytes if rank in evidence.facts.ranks else None
        if not held or self.swapped[rank] < evidence.bound("swap", rank, 0.2, 0.1) * held:
            return
        yield Finding(
            kind="swap",
            rank=rank,
            confidence=0.8,
            evidence=f"{format_bytes(self.swapped[rank])} of rank {rank} are swapped out, "
            f"{format_bytes(held)} are in memory.",
            cause=(
                "The host's memory is too small for the run: every access to a swapped page waits "
                "for the disk."
            ),
            next=(
                "Lower the micro-batch, the loader workers or the offloading, or use a larger host."
            ),
        )


def _use(path: Path) -> tuple[float, float] | None:
    with contextlib.suppress(OSError):
        stat = os.statvfs(path)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_blocks * stat.f_frsize
    return None


def _size(path: Path) -> float | None:
    known = _use(path)
    return known[1] if known else None


def _swap(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024 * int(Path(f"/proc/{pid}/status").read_text().split("VmSwap:")[1].split()[0])
    return 0


RULES = (host_memory, disk)
