"""Samples of the host: processor, memory, disk, network, and what the run's processes use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from workbench.store import processes
from workbench.store.schema import ProcessDoc, SystemLine

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class HostSampler:
    """Remembers the previous counters, so that each sample gives rates since the last one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._previous: tuple[float, int, int] | None = None
        psutil.cpu_percent(None)

    def sample(self, run_processes: Iterable[ProcessDoc]) -> SystemLine:
        """One sample; `gpus` is left empty for the caller to fill."""
        now = time.time()
        rss, ticks = 0, 0
        for process in run_processes:
            fields = processes.stat_fields(process["pid"])
            if fields is not None and int(fields[19]) == process["start_ticks"]:
                rss += int(fields[21]) * PAGE_BYTES
                ticks += int(fields[11]) + int(fields[12])
        network = _network_bytes()
        run_cpu = net = None
        if self._previous is not None:
            before, old_ticks, old_network = self._previous
            seconds = max(1e-3, now - before)
            run_cpu = max(0.0, 100 * (ticks - old_ticks) / _TICKS / seconds)
            net = max(0.0, (network - old_network) / seconds)
        self._previous = (now, ticks, network)
        return {
            "time": round(now, 3),
            "cpu_percent": psutil.cpu_percent(None) if run_cpu is not None else None,
            "memory_used_bytes": _memory_used(),
            "run_rss_bytes": rss or None,
            "run_cpu_percent": None if run_cpu is None else round(run_cpu, 1),
            "disk_free_bytes": disk_free(self._directory),
            "net_bytes_per_second": None if net is None else round(net),
            "gpus": [],
        }


def disk_free(path: Path) -> int | None:
    """Bytes a normal user may still write below `path`."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def memory_available() -> int:
    """Bytes that new processes can have without swapping; a container's limit counts."""
    free = int(psutil.virtual_memory().available)
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit is the word "max"
        return free
    return min(free, max(0, limit - used))


def _memory_used() -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def _network_bytes() -> int:
    counters = psutil.net_io_counters()  # None on a host without network devices
    return counters.bytes_sent + counters.bytes_recv if counters else 0
