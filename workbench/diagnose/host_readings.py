"""The latest readings of the host side of every machine, as the rules look at them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from workbench.diagnose.devices import STALE_SECONDS
from workbench.store.schema import SystemLine

READINGS_MAX = 180
"""Readings of each machine."""


class DiskReading(NamedTuple):
    """Another disk than the run directory's."""

    path: str
    free: float
    total: float


class HostReading(NamedTuple):
    """One machine at one moment; None = not told."""

    time: float  # Unix seconds of that machine
    memory_used: float | None
    memory_total: float | None
    disk_free: float | None
    disk_total: float | None
    shared_used: float | None  # of /dev/shm
    shared_total: float | None
    run_rss: float | None
    run_cpu_percent: float | None
    net_per_second: float | None
    cpu_refused: float | None  # share of the processor time asked for, by a container's limit
    other_disks: tuple[DiskReading, ...]


@dataclass(slots=True)
class _Host:
    readings: deque[HostReading] = field(
        default_factory=lambda: deque[HostReading](maxlen=READINGS_MAX)
    )
    heard_at: float = 0.0  # on the clock of who looks


class HostReadings:
    """All machines. Feed it each machine's samples."""

    def __init__(self) -> None:
        self._hosts: dict[int, _Host] = {}

    def take(self, node: int, line: SystemLine, at: float) -> None:
        """Account for a new sample; `at`: when it came, on a clock that does not jump."""
        host = self._hosts.setdefault(node, _Host())
        host.heard_at = at
        host.readings.append(
            HostReading(
                time=line["time"],
                memory_used=line.get("memory_used_bytes"),
                memory_total=line.get("memory_total_bytes"),
                disk_free=line.get("disk_free_bytes"),
                disk_total=line.get("disk_total_bytes"),
                shared_used=line.get("shared_memory_used_bytes"),
                shared_total=line.get("shared_memory_total_bytes"),
                run_rss=line.get("run_rss_bytes"),
                run_cpu_percent=line.get("run_cpu_percent"),
                net_per_second=line.get("net_bytes_per_second"),
                cpu_refused=line.get("cpu_refused_share"),
                other_disks=tuple(_other_disks(line)),
            )
        )

    def fresh(self, now: float) -> Iterator[tuple[int, Sequence[HostReading]]]:
        """The machines that are heard of, in order; `now`: on the clock of `take`."""
        for node, host in sorted(self._hosts.items()):
            if now - host.heard_at <= STALE_SECONDS:
                yield node, host.readings


def _other_disks(line: SystemLine) -> Iterator[DiskReading]:
    """Those that a line tells well: it is read from a file, where anything may stand."""
    disks: object = line.get("other_disks")
    for disk in cast("list[Any]", disks) if isinstance(disks, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            free, total = float(disk["free_bytes"]), float(disk["total_bytes"])
            if 0 <= free <= total:
                yield DiskReading(str(disk["path"]), free, total)
