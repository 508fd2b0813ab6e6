"""Where it runs: GPUs and the machine around them, and what this host has."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench.describe.accelerators import Accelerator, find, recognise
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.network import Network
from workbench.errors import UsageError

MOST_GPUS, MOST_NODES = 128, 100_000  # beyond them a size is a typing mistake
LINKS = ("catalog", "nvlink", "pcie")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator of this host, as the driver reports it."""

    index: int
    """The driver's index (not renumbered by CUDA_VISIBLE_DEVICES)."""
    name: str
    """Product name."""
    memory_bytes: int
    """Usable memory."""
    power_limit_w: float | None = None
    """Enforced power limit; None when the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines for a run. ``detect_host()`` describes this one."""

    name: str
    """Host name or the offer's name."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs of one node that a run may use; empty = CPU."""
    nodes: int = 1
    """Equal machines."""
    cpu_name: str | None = None
    """Processor; None when unknown."""
    cpu_cores: int | None = None
    """Cores this process may use on one node."""
    memory_bytes: int | None = None
    """Host memory of one node (the container's limit where there is one)."""
    usd_per_hour: float | None = None
    """Price of one node; None when unknown (then no cost is shown)."""
    accelerator: Accelerator | None = None
    """The catalog's row for `gpus`; None for CPU, mixed or unknown ones."""
    network: Network | None = None
    """Fabric between the nodes; None when unknown or when there is one node."""
    link: str = "catalog"
    """Between the GPUs of one node: catalog (the part's own; bridges count as absent), nvlink
    (a bridge is fitted, or the part's own fabric), pcie (no fabric, or it is switched off)."""

    @classmethod
    def rented(
        cls,
        gpu: str | Accelerator,
        gpus: int = 8,
        nodes: int = 1,
        *,
        usd_per_hour: float | None = None,
        network: Network | str | None = None,
        link: str = "catalog",
    ) -> Cluster:
        """Describe `nodes` machines with `gpus` accelerators each, as the catalog has them.

        Args:
            gpu: any usual name, see `catalog.gpu`.
            gpus: accelerators of one node.
            nodes: equal machines.
            usd_per_hour: price of one node; None when unknown.
            network: fabric between the nodes, or its text ("8x400 infiniband").
            link: between the GPUs of one node: catalog, nvlink or pcie.

        Raises:
            UsageError: an unknown accelerator, fabric or link, a size below 1 or absurd, a
                negative price.

        >>> Cluster.rented("h100-sxm", gpus=8, nodes=2, usd_per_hour=20.0).world_size
        16
        """
        accelerator = gpu if isinstance(gpu, Accelerator) else find(gpu)
        for name, given, most in (("gpus", gpus, MOST_GPUS), ("nodes", nodes, MOST_NODES)):
            require_positive(name, given)
            if given > most:
                raise UsageError(f"{name} can be at most {most}, not {given}.")
        require_choice("link", link, LINKS)
        devices = tuple(
            Gpu(
                index=index,
                name=accelerator.name,
                memory_bytes=accelerator.memory_bytes,
                power_limit_w=accelerator.tdp_w,
            )
            for index in range(gpus)
        )
        return cls(
            name=f"{nodes} x {gpus} {accelerator.id}" if nodes > 1 else f"{gpus} {accelerator.id}",
            gpus=devices,
            nodes=nodes,
            usd_per_hour=_price(usd_per_hour),
            accelerator=accelerator,
            network=Network.parse(network) if isinstance(network, str) else network,
            link=link,
        )

    @property
    def world_size(self) -> int:
        """GPUs of all nodes; on CPU the number of nodes."""
        return max(1, len(self.gpus)) * self.nodes

    @property
    def device(self) -> str:
        """``cuda`` where there are GPUs, else ``cpu``."""
        return "cuda" if self.gpus else "cpu"


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
    found = {recognise(gpu.name, gpu.memory_bytes) for gpu in gpus}
    return found.pop() if len(found) == 1 else None


def _price(usd_per_hour: float | None) -> float | None:
    if usd_per_hour is None:
        return None
    number = isinstance(usd_per_hour, (int, float)) and not isinstance(usd_per_hour, bool)  # pyright: ignore[reportUnnecessaryIsInstance]  (callers are not type-checked)
    if not number or not 0 <= usd_per_hour < math.inf:
        raise UsageError(
            f"usd_per_hour must be a number from 0 (free) upwards, not {usd_per_hour!r}. "
            "Leave it out when the price is unknown."
        )
    return float(usd_per_hour)


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
    two, one = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    for names in (two, one):
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
    found: list[tuple[int, bool, Gpu]] = []
    for index in range(_count(library)):
        try:
            found += _devices(library, index)
        except library.NVMLError:
            continue  # lost, or not ours to look at: the others are there all the same
    found.sort(key=lambda one: one[0])
    slices = [gpu for _, is_slice, gpu in found if is_slice]
    if slices:
        return (slices[0],)  # CUDA shows a process one slice (MIG) and no whole GPU beside it
    return tuple(gpu for _, _, gpu in found)


def _count(library: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError:
        return 0


def _devices(library: Any, index: int) -> Iterator[tuple[int, bool, Gpu]]:
    """Place, whether it is a slice (MIG), and description of what is visible of one card."""
    card = library.nvmlDeviceGetHandleByIndex(index)
    whole = str(library.nvmlDeviceGetUUID(card))
    limit = _power_limit(library, card)
    slices = _slices(library, card)
    for handle in slices or [card]:
        uuid = str(library.nvmlDeviceGetUUID(handle))
        place = _place(index, uuid)
        place = _place(index, whole) if place is None else place
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
    found: list[Any] = []
    for number in range(most):
        with contextlib.suppress(library.NVMLError):
            found.append(library.nvmlDeviceGetMigDeviceHandleByIndex(card, number))
    return found


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
