"""What runs out on a machine: memory, shared memory, disk, the share of its cores; and swapping.

Of all machines of the run. A finding of several names them: one of a kind stands at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.host_readings import HostReading
from workbench.observe.host import SHARED_MEMORY
from workbench.store.findings import Finding
from workbench.units import format_bytes, format_seconds

_TREND_SAMPLES = 60  # the least from which a trend is told
_MEMORY_SOON = 600.0
_OWN_PART = 0.25  # of a growth; below it others caused it
_DISK_SOON = 1800.0
_LIMIT_SAMPLES = 10
_REFUSED, _REFUSED_NO_MORE = 0.3, 0.2  # of the processor time asked for
_MOST_NAMED = 3  # machines of one finding


@dataclass(frozen=True, slots=True)
class _Filling:
    """One resource of one machine."""

    node: int
    used: float
    total: float
    soon: float | None = None  # seconds until it is full; None = it does not grow
    path: str = ""  # the folder on it that the run uses
    by_others: bool = False  # it grows, and the run's processes do not

    @property
    def share(self) -> float:
        return self.used / self.total

    @property
    def trend(self) -> str:
        return f", full in {format_seconds(self.soon)} at this rate" if self.soon else ""


def host_memory(evidence: Evidence) -> Iterator[Finding]:
    """Memory that is nearly gone, or will be within ten minutes."""
    hosts = evidence.fresh_hosts()
    fillings = (_memory(evidence, node, readings) for node, readings in hosts)
    full = sorted(filter(None, fillings), key=lambda filling: -filling.share)
    if not full:
        return
    yield Finding(
        kind="host-memory",
        node=_only_node(evidence, full),
        severity="error" if full[0].share > 0.97 else "warning",
        confidence=0.8,
        evidence=_listed(full, lambda filling: _memory_text(evidence, filling)),
        cause=_memory_cause(full[0]),
        next="See which programs these are (ps aux --sort -rss), and end them or move the run: "
        "the kernel may kill a rank for them."
        if full[0].by_others
        else "Lower num_workers and prefetch_factor, keep no tensors across steps "
        "(loss.item()), and turn off offloading to host memory.",
    )


def _memory_cause(filling: _Filling) -> str:
    if filling.by_others:
        return "Other programs of this machine take ever more of its memory; the run does not."
    if filling.soon:
        return "The memory of the ranks or their loaders keeps growing."
    return "The ranks, their loader workers and other programs use nearly all of it."


def _memory(evidence: Evidence, node: int, readings: Sequence[HostReading]) -> _Filling | None:
    """A machine whose memory is a finding."""
    points = [
        (reading.time, reading.memory_used)
        for reading in readings
        if reading.memory_used is not None
    ]
    total = readings[-1].memory_total
    if total is None and node == 0:
        total = evidence.run.cluster.get("memory_bytes")
    if not isinstance(total, int | float) or len(points) < 10:
        return None
    used = median(value for _, value in points[-5:])
    rate = growth(points)
    soon = (total - used) / rate if rate else None
    others = rate is not None and _grown_by_others(readings)
    filling = _Filling(node, used, total, soon, by_others=others)
    if filling.share > evidence.bound("host-memory", None, 0.95, 0.90):
        return filling
    return filling if soon is not None and soon <= _MEMORY_SOON and filling.share >= 0.6 else None


def _grown_by_others(readings: Sequence[HostReading]) -> bool:
    """Whether the run's processes have little part in what a machine's memory has grown by."""
    pairs = [
        (reading.memory_used, reading.run_rss)
        for reading in readings
        if reading.memory_used is not None and reading.run_rss is not None
    ]
    if len(pairs) < _TREND_SAMPLES:
        return False
    size = len(pairs) // 6
    machine, run = (
        median(pair[of] for pair in pairs[-size:]) - median(pair[of] for pair in pairs[:size])
        for of in (0, 1)
    )
    return run < _OWN_PART * machine


def _memory_text(evidence: Evidence, filling: _Filling) -> str:
    where = evidence.on_node(filling.node)
    said = (
        f"{format_bytes(filling.used)} of {format_bytes(filling.total)} host memory{where} are "
        f"used ({filling.share:.0%}){filling.trend}"
    )
    if filling.by_others:
        return said
    ranks = {
        rank: facts.rss_bytes
        for rank, facts in evidence.facts.ranks.items()
        if facts.rss_bytes and evidence.node_of(rank) == filling.node
    }
    worst = max(ranks, key=lambda rank: ranks[rank]) if ranks else None
    most = "" if worst is None else f"; rank {worst} has the most, {format_bytes(ranks[worst])}"
    return said + most


def disk(evidence: Evidence) -> Iterator[Finding]:
    """A disk that is full, or will be within half an hour.

    The directory usually lies on a disk that all machines share: what each of them sees is one.
    """
    hosts = list(evidence.fresh_hosts())
    fillings = (filling for node, readings in hosts for filling in _disks(evidence, node, readings))
    full = sorted(fillings, key=lambda filling: filling.total - filling.used)
    if not full:
        return
    seen = Counter(filling.path for filling in full)
    shared = {path for path, count in seen.items() if count == len(hosts)}
    by_disk = dict[tuple[str, int | None], _Filling]()  # the worst first
    for filling in full:
        by_disk.setdefault(
            (filling.path, None if filling.path in shared else filling.node), filling
        )
    worst = list(by_disk.values())
    soon = worst[0].soon

    def text(filling: _Filling) -> str:
        where = "" if filling.path in shared else evidence.on_node(filling.node)
        return (
            f"{format_bytes(filling.total - filling.used)} are free on the disk of "
            f"{filling.path}{where}{filling.trend}"
        )

    nodes = {node for _, node in by_disk}
    yield Finding(
        kind="disk",
        node=nodes.pop() if evidence.run.nodes > 1 and len(nodes) == 1 else None,
        severity="error" if soon is None or soon < 300 else "warning",
        confidence=0.85,
        evidence=_listed(worst, text),
        cause="Checkpoints, logs, downloads or another program fill the disk.",
        next="Free space or delete old checkpoints; save less often and keep fewer.",
    )


def _disks(evidence: Evidence, node: int, readings: Sequence[HostReading]) -> Iterator[_Filling]:
    """Those of a machine that are a finding: the run directory's, and others it writes to."""
    own = [
        (reading.time, reading.disk_free) for reading in readings if reading.disk_free is not None
    ]
    total = readings[-1].disk_total
    if total is None and node == 0:
        total = _size(evidence.paths.directory)
    yield from _disk(evidence, node, str(evidence.paths.directory), own, total)
    for latest in readings[-1].other_disks:
        points = [
            (reading.time, disk.free)
            for reading in readings
            for disk in reading.other_disks
            if disk.path == latest.path
        ]
        yield from _disk(evidence, node, latest.path, points, latest.total)


def _disk(
    evidence: Evidence,
    node: int,
    path: str,
    points: Sequence[tuple[float, float]],
    total: float | None,
) -> Iterator[_Filling]:
    """A disk that is a finding; `points`: times and the bytes that were free then."""
    if len(points) < 5:
        return
    free, rate = points[-1][1], growth([(at, -left) for at, left in points])
    soon = free / rate if rate else None
    low = total is not None and free < evidence.bound("disk", None, 0.01, 0.03) * total
    if (low and free < 2**30) or (soon is not None and soon <= _DISK_SOON):
        size = free if total is None else total
        yield _Filling(node, size - free, size, soon, path)


def shared_memory(evidence: Evidence) -> Iterator[Finding]:
    """Shared memory that is nearly full."""
    least = evidence.bound("shared-memory", None, 0.9, 0.8)
    full = [
        filling
        for node, readings in evidence.fresh_hosts()
        if (filling := _shared(node, readings[-1])) is not None and filling.share >= least
    ]
    if not full:
        return
    full.sort(key=lambda filling: -filling.share)
    yield Finding(
        kind="shared-memory",
        node=_only_node(evidence, full),
        confidence=0.8,
        evidence=_listed(
            full,
            lambda filling: (
                f"{format_bytes(filling.used)} of {format_bytes(filling.total)} of "
                f"{SHARED_MEMORY}{evidence.on_node(filling.node)} are used"
            ),
        ),
        cause="Loader workers pass batches through shared memory, which is too small here.",
        next="Enlarge it (docker run --shm-size=8g), or lower num_workers and prefetch_factor.",
    )


def _shared(node: int, reading: HostReading) -> _Filling | None:
    used, total = reading.shared_used, reading.shared_total
    return None if used is None or not total else _Filling(node, used, total)


def cpu_limit(evidence: Evidence) -> Iterator[Finding]:
    """A container's CPU limit that refuses much of the processor time that the run asks for.

    Where the ranks' order of arrival is known, `contention` tells what it costs.
    """
    if evidence.arrivals:
        return
    least = evidence.bound("cpu-limit", None, _REFUSED, _REFUSED_NO_MORE)
    refused = [
        (share, node)
        for node, readings in evidence.fresh_hosts()
        if (share := _refused(readings)) is not None and share >= least
    ]
    if not refused:
        return
    share, node = max(refused)
    yield Finding(
        kind="cpu-limit",
        node=node if evidence.run.nodes > 1 and len(refused) == 1 else None,
        confidence=0.85,
        evidence=f"The CPU limit of this container{evidence.on_node(node)} refused {share:.0%} of "
        "the processor time that the run asked for.",
        cause="The limit is less than the ranks use, with their threads and loader workers.",
        next="Raise it (docker --cpus, a pod's limits.cpu, cpu.max), or start fewer loader workers "
        "and threads.",
    )


def _refused(readings: Sequence[HostReading]) -> float | None:
    """Middle of the latest readings; None where no limit is set or too few are known."""
    latest = [reading.cpu_refused for reading in readings][-2 * _LIMIT_SAMPLES :]
    shares = [share for share in latest if share is not None]
    return median(shares) if len(shares) >= _LIMIT_SAMPLES else None


def swap(evidence: Evidence) -> Iterator[Finding]:
    """The rank of each machine of which most was swapped out."""
    worst: dict[int, int] = {}
    ranks = evidence.facts.ranks
    for rank, facts in ranks.items():
        resident, swapped = facts.rss_bytes, facts.swapped_bytes
        if (
            not resident
            or not swapped
            or swapped < evidence.bound("swap", rank, 0.2, 0.1) * resident
        ):
            continue
        node = evidence.node_of(rank)
        if node not in worst or swapped > (ranks[worst[node]].swapped_bytes or 0):
            worst[node] = rank
    for node, rank in worst.items():
        facts = ranks[rank]
        yield Finding(
            kind="swap",
            rank=rank,
            node=node if evidence.run.nodes > 1 else None,
            confidence=0.8,
            evidence=f"{format_bytes(facts.swapped_bytes)} of rank {rank}"
            f"{evidence.on_node(node)} are swapped out, {format_bytes(facts.rss_bytes)} are in "
            "memory.",
            cause="The host's memory is too small for the run: every access to a swapped page "
            "waits for the disk.",
            next="Lower the micro-batch, the loader workers or the offloading, or use a larger "
            "host.",
        )


def _only_node(evidence: Evidence, full: Sequence[_Filling]) -> int | None:
    return full[0].node if evidence.run.nodes > 1 and len(full) == 1 else None


def _listed(full: Sequence[_Filling], text: Callable[[_Filling], str]) -> str:
    """A sentence that names the worst machines, and how many more there are."""
    more = full[_MOST_NAMED:]
    suffix = f"; and {len(more)} more machine{'s' if len(more) > 1 else ''}" if more else ""
    return "; ".join(text(filling) for filling in full[:_MOST_NAMED]) + f"{suffix}."


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


def _size(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize
    return None


RULES = (host_memory, disk, shared_memory, cpu_limit, swap)
