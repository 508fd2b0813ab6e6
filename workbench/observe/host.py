"""Samples of the host: processor, memory, disk, network, and what the run's processes use."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from workbench.describe.cgroups import USED, MemoryLimit, memory_limits
from workbench.describe.detection import host_memory_bytes
from workbench.observe.cpu_limit import LIMITS_SECONDS, CpuLimit
from workbench.observe.disks import OtherDisks
from workbench.observe.rapl import ProcessorEnergy
from workbench.store import processes
from workbench.store.run_record import RunRecord
from workbench.store.schema import ProcessDoc, SystemLine

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOPBACK = "lo"
_PROCESSES_MAX = 64  # of a sample: the busiest
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (looked at, not written)


class HostSampler:
    """Remembers the previous counters, so that each sample gives rates since the last one."""

    def __init__(self, directory: Path, run: RunRecord) -> None:
        """`directory`: the run's. Of runs that train on the cores each core and process, too."""
        self._directory = directory
        self._detailed = detailed = run.device != "cuda"
        self._other_disks = OtherDisks(run, directory)
        self._energy = ProcessorEnergy()
        self._limit = CpuLimit()
        self._memory_limits: list[MemoryLimit] = []
        self._memory_total = 0
        self._limits_due = 0.0
        self._previous: tuple[float, dict[int, int], int | None] | None = None
        psutil.cpu_percent(None)
        if detailed:
            psutil.cpu_percent(None, percpu=True)

    def sample(self, run_processes: Iterable[ProcessDoc]) -> SystemLine:
        """One sample; `gpus` is left empty for the caller to fill."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)  # no one sets it; processes start on it
        rss, ticks, started = dict[int, int](), dict[int, int](), dict[int, float]()
        for process in run_processes:
            pid = process["pid"]
            fields = processes.stat_fields(pid)
            if fields is not None and int(fields[19]) == process["start_ticks"]:
                rss[pid] = int(fields[21]) * PAGE_BYTES
                ticks[pid] = int(fields[11]) + int(fields[12])
                started[pid] = int(fields[19]) / _TICKS
        most = max(ticks, key=ticks.__getitem__, default=os.getpid())  # a rank, not its launcher
        network = _network_bytes()
        if now >= self._limits_due:
            self._read_limits(now)
        shared = _use(SHARED_MEMORY)
        run_cpu = net = None
        each = dict[int, float]()
        if self._previous is not None:
            before, old_ticks, old_network = self._previous
            seconds = max(1e-3, now - before)
            each = {
                pid: 100 * max(0, count - old_ticks.get(pid, 0)) / _TICKS / seconds
                for pid, count in ticks.items()
                if pid in old_ticks or started[pid] >= before
            }
            run_cpu = sum(each.values())
            if network is not None and old_network is not None:
                net = max(0.0, (network - old_network) / seconds)
        self._previous = (now, ticks, network)
        line: SystemLine = {
            "time": round(time.time(), 3),
            "cpu_percent": psutil.cpu_percent(None) if run_cpu is not None else None,
            "memory_used_bytes": self._memory_total - memory_available(self._memory_limits),
            "memory_total_bytes": self._memory_total,
            "run_rss_bytes": sum(rss.values()) or None,
            "run_cpu_percent": None if run_cpu is None else round(run_cpu, 1),
            "disk_free_bytes": disk_free(self._directory),
            "disk_total_bytes": _size(self._directory),
            "other_disks": self._other_disks.sample(),
            "shared_memory_used_bytes": None if shared is None else shared[0],
            "shared_memory_total_bytes": None if shared is None else shared[1],
            "net_bytes_per_second": None if net is None else round(net),
            "gpus": [],
            "processor_joules": self._energy.joules(),
            "cpu_refused_share": self._limit.refused_share(most),
        }
        if self._detailed and run_cpu is not None:
            line["cores"] = [round(percent) for percent in psutil.cpu_percent(None, percpu=True)]
            busiest = sorted(each, key=lambda pid: -each[pid])[:_PROCESSES_MAX]
            line["busiest"] = [
                {"pid": pid, "cpu_percent": round(each[pid], 1), "rss_bytes": rss[pid]}
                for pid in busiest
            ]
        return line

    def _read_limits(self, now: float) -> None:
        """Now and then: a process has many groups, and their limits hardly ever change."""
        self._memory_limits = list(memory_limits())
        self._memory_total = host_memory_bytes(self._memory_limits)
        self._limits_due = now + LIMITS_SECONDS


def sample_pause(elapsed_seconds: float) -> float:
    """Seconds until the next sample of a run that is `elapsed_seconds` old."""
    return 0.9 if elapsed_seconds < 600 else 1.9 if elapsed_seconds < 3600 else 4.9


def disk_free(path: Path) -> int | None:
    """Bytes a normal user may still write below `path`."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def memory_available(limits: Iterable[MemoryLimit] | None = None) -> int:
    """Bytes that new processes can have without swapping; limits of its cgroups count.

    `limits`: as `memory_limits` has just read them; None = read them.
    """
    free = int(psutil.virtual_memory().available)
    for file, limit in memory_limits() if limits is None else limits:
        with contextlib.suppress(OSError, ValueError):
            left = limit - int(file.with_name(USED[file.name]).read_text("ascii"))
            if left < free:  # else its pages change nothing, and the kernel counts them at length
                free = min(free, max(0, left + _cached(file.with_name("memory.stat"))))
    return free


def _cached(path: Path) -> int:
    """File pages that count as used and that the kernel gives back when memory is short."""
    fields = dict(line.split() for line in path.read_text().splitlines())
    total = "total_" if "total_inactive_file" in fields else ""
    return sum(int(fields.get(f"{total}{name}", 0)) for name in ("inactive_file", "active_file"))


def _use(path: Path) -> tuple[int, int] | None:
    """Used and all bytes of a file system."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_blocks * stat.f_frsize


def _size(path: Path) -> int | None:
    use = _use(path)
    return None if use is None else use[1]


def _network_bytes() -> int | None:
    """Of all devices but the loopback one, over which ranks of one host meet.

    None where the kernel shows no counters, or none that can be read.
    """
    try:
        counters = psutil.net_io_counters(pernic=True)  # empty on a host without network devices
    except (OSError, RuntimeError):
        return None
    traffic = [
        device.bytes_sent + device.bytes_recv
        for name, device in counters.items()
        if name != _LOOPBACK
    ]
    return sum(traffic) if counters else None
