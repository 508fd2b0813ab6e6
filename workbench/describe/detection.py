"""What this host has: GPUs through NVML, cores and memory, and a container's limits on them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from workbench.describe.accelerators import Accelerator, recognise
from workbench.describe.hardware import Cluster, Gpu


def detect_host() -> Cluster:
    """Describe this machine: GPUs through NVML, cores and memory through psutil and the cgroup.

    The price is taken from ``$WORKBENCH_USD_PER_HOUR`` when that is set to a number.
    """
    price = os.environ.get("WORKBENCH_USD_PER_HOUR", "")
    try:
        usd_per_hour = float(price) if price else None
    except ValueError:
        usd_per_hour = None
    gpus = visible_gpus()
    return Cluster(
        name=socket.gethostname(),
        gpus=gpus,
        cpu_name=_cpu_name(),
        cpu_cores=usable_cores(),
        memory_bytes=host_memory_bytes(),
        usd_per_hour=usd_per_hour,
        accelerator=_common_type(gpus),
    )


def _common_type(gpus: tuple[Gpu, ...]) -> Accelerator | None:
    types = {recognise(gpu.name, gpu.memory_bytes) for gpu in gpus}
    return types.pop() if len(types) == 1 else None


def usable_cores() -> int:
    """Cores this process may run on, honouring affinity and the container's CPU quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _cpu_quota()
    return cores if quota is None else min(cores, max(1, round(quota)))


def _cpu_quota() -> float | None:
    """Cores that the container may use (cgroup 2, else 1); None = no limit."""
    folder = Path("/sys/fs/cgroup")
    unified, legacy = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    for names in (unified, legacy):
        try:
            words = " ".join((folder / name).read_text("ascii") for name in names).split()
            quota, period = (float("inf") if word == "max" else float(word) for word in words)
        except (OSError, ValueError):
            continue
        return quota / period if 0 < quota < math.inf else None
    return None


def host_memory_bytes() -> int:
    """Memory of this host or, inside a container, its limit when that is smaller."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123
                return min(total, int(file.read()))
        except (OSError, ValueError):
            continue
    return total


def _cpu_name() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


@functools.cache
def nvml() -> Any | None:
    """Return the initialised NVML module; None without an NVIDIA driver. Never raises."""
    try:
        import pynvml  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]  (2 MB and a library load that CPU hosts do not need)

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  (a broken driver must not break a CPU run)
        return None
    return pynvml


def visible_gpus() -> tuple[Gpu, ...]:
    """GPUs that NVML reports and CUDA_VISIBLE_DEVICES leaves visible, in its order.

    The first is the first rank's. Empty without a driver.
    """
    library = nvml()
    if library is None:
        return ()
    devices: list[tuple[int, bool, Gpu]] = []
    for index in range(_count(library)):
        try:
            devices += _devices(library, index)
        except library.NVMLError:
            continue  # lost, or not ours to look at: the others are there all the same
    devices.sort(key=lambda entry: entry[0])
    slices = [gpu for _, is_slice, gpu in devices if is_slice]
    if slices:
        return (slices[0],)  # CUDA shows a process one slice (MIG) and no whole GPU beside it
    return tuple(gpu for _, _, gpu in devices)


def _count(library: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError:
        return 0


def _devices(library: Any, index: int) -> Iterator[tuple[int, bool, Gpu]]:
    """Place, whether it is a slice (MIG), and description of what is visible of one card."""
    card = library.nvmlDeviceGetHandleByIndex(index)
    card_uuid = str(library.nvmlDeviceGetUUID(card))
    limit = _power_limit(library, card)
    slices = _slices(library, card)
    for handle in slices or [card]:
        uuid = str(library.nvmlDeviceGetUUID(handle))
        place = _place(index, uuid)
        place = _place(index, card_uuid) if place is None else place
        if place is not None:
            yield (
                place,
                bool(slices),
                Gpu(
                    index=index,
                    name=str(library.nvmlDeviceGetName(handle)),
                    memory_bytes=_memory(library, handle),
                    power_limit_w=limit,
                ),
            )


def _slices(library: Any, card: Any) -> list[Any]:
    """The instances of a card in MIG mode; [] = it is whole."""
    try:
        if not library.nvmlDeviceGetMigMode(card)[0]:
            return []
        most = int(library.nvmlDeviceGetMaxMigDeviceCount(card))
    except (library.NVMLError, AttributeError):
        return []
    slices: list[Any] = []
    for number in range(most):
        with contextlib.suppress(library.NVMLError):
            slices.append(library.nvmlDeviceGetMigDeviceHandleByIndex(card, number))
    return slices


def _memory(library: Any, handle: Any) -> int:
    """The card's own; where it shares the host's (GB10, Jetson) the driver tells none."""
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError:
        return host_memory_bytes()


def _power_limit(library: Any, handle: Any) -> float | None:
    try:
        return library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except library.NVMLError:
        return None


def _place(index: int, uuid: str) -> int | None:
    """CUDA's number of a GPU of the driver's; None = CUDA_VISIBLE_DEVICES leaves it out."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return index
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return next(
        (
            place
            for place, entry in enumerate(entries)
            if entry == str(index) or (len(entry) > 4 and uuid.startswith(entry))
        ),
        None,
    )
