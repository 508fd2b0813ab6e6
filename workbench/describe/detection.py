"""What this host has: GPUs through NVML, cores and memory, and a container's limits on them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench.describe import amd
from workbench.describe.accelerators import Accelerator, recognise
from workbench.describe.bounded_calls import DRIVER
from workbench.describe.cgroups import MemoryLimit, memory_limits
from workbench.describe.hardware import Cluster, Gpu
from workbench.errors import UsageError

_GROUPS = Path("/sys/fs/cgroup")
CHOOSE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables that decide which GPUs a process sees, and in which order."""
PRICE = "WORKBENCH_USD_PER_HOUR"
"""Environment variable with the host's price."""


def detect_host() -> Cluster:
    """Describe this machine: GPUs through NVML, cores and memory through psutil and the cgroup.

    The price is that of `host_price`; None where it is no price, which `launch` and `doctor` say.
    """
    usd_per_hour = None
    with contextlib.suppress(UsageError):
        usd_per_hour = host_price()
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


def host_price() -> float | None:
    """Dollars an hour of this host, from ``$WORKBENCH_USD_PER_HOUR``; None = not set.

    Raises:
        UsageError: it is set to something that is no price.
    """
    text = os.environ.get(PRICE, "").strip()
    try:
        price = float(text) if text else None
    except ValueError:
        price = math.nan
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(
            f"{PRICE} is {text!r}: give the dollars per hour of this host as a number from 0 "
            f"(free) upwards, such as {PRICE}=2.50."
        )
    return price


def _common_type(gpus: tuple[Gpu, ...]) -> Accelerator | None:
    types = {recognise(gpu.name, gpu.memory_bytes) for gpu in gpus}
    return types.pop() if len(types) == 1 else None


def usable_cores() -> int:
    """Cores this process may run on, honouring affinity and the container's CPU quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cpu_quota(_GROUPS) or cpu_quota(_GROUPS / "cpu")
    return cores if quota is None else min(cores, max(1, round(quota)))


def cpu_quota(folder: Path) -> float | None:
    """Cores that a cgroup may use (cgroup 2, else 1); None = it has no limit."""
    unified, legacy = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for names in (unified, legacy):
        try:
            words = " ".join((folder / name).read_text("ascii") for name in names).split()
            quota, period = (float("inf") if word == "max" else float(word) for word in words)
        except (OSError, ValueError):
            continue
        return quota / period if 0 < quota < math.inf else None
    return None


def host_memory_bytes(limits: Iterable[MemoryLimit] | None = None) -> int:
    """Memory of this host or, in a container or a batch job, its limit when that is smaller.

    `limits`: as `memory_limits` has just read them; None = read them.
    """
    total = int(psutil.virtual_memory().total)
    read = memory_limits() if limits is None else limits
    return min([total, *(limit.bytes for limit in read)])


def _cpu_name() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def nvml() -> Any | None:
    """Return the initialised NVML module; None without a driver that answers in time.

    With a GPU of AMD it is `amd.AmdDriver`, which answers to the same names.

    Its functions may still hang: ask them by `in_time.DRIVER`. Never raises.
    """
    return _loaded() if _loaded.cache_info().currsize else DRIVER.ask(_loaded)


def forget_driver() -> None:
    """Look for a driver again."""
    _loaded.cache_clear()


@functools.cache
def _loaded() -> Any | None:
    try:
        import pynvml  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]  (2 MB and a library load that CPU hosts do not need)

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  (a broken driver must not break a CPU run)
        return amd.load()
    return pynvml


def vendor() -> str:
    """Whose driver answers here: "NVIDIA", "AMD"; "" = none."""
    library = nvml()
    return "" if library is None else getattr(library, "vendor", "NVIDIA")


def visible_gpus() -> tuple[Gpu, ...]:
    """GPUs that NVML reports and CUDA_VISIBLE_DEVICES leaves visible, in its order.

    The first is the first rank's. Empty without a driver, or where it does not answer in time.
    """
    return DRIVER.ask(_visible_gpus) or ()


def device_gpus() -> tuple[Gpu, ...]:
    """The GPUs that runs of this process may be given: as `visible_gpus`, but each slice (MIG)."""
    return DRIVER.ask(_device_gpus) or ()


def _visible_gpus() -> tuple[Gpu, ...]:
    gpus = _device_gpus()
    return gpus[:1] if gpus and gpus[0].is_slice else gpus  # CUDA shows a process one slice


def _device_gpus() -> tuple[Gpu, ...]:
    library = _loaded()
    if library is None:
        return ()
    cards: dict[int, _Card] = {}
    for index in range(_count(library)):
        with contextlib.suppress(library.NVMLError):  # lost, or not ours: the others are there
            cards[index] = _card(library, index)
    if isinstance(library, amd.AmdDriver):
        groups = _of_amd(cards)
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        groups = (
            [card.parts for card in cards.values()] if visible is None else _named(visible, cards)
        )
    parts = [gpu for parts in groups for gpu in parts]
    slices = [gpu for gpu in parts if gpu.is_slice]
    return tuple(slices or parts)  # beside a slice CUDA shows no card


def _of_amd(cards: Mapping[int, _Card]) -> list[Sequence[Gpu]]:
    """ROCR_VISIBLE_DEVICES chooses first; HIP's variable, or CUDA's for it, counts what is left."""
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        visible = next((os.environ[name] for name in names if name in os.environ), None)
        if visible is not None:
            left = _named(visible, cards)
            order = [next(card for card in cards.values() if card.parts == parts) for parts in left]
            cards = dict(enumerate(order))
    return [card.parts for card in cards.values()]


def silent_gpus() -> dict[int, str]:
    """Cards that the driver counts and does not describe: index -> what it says instead."""
    return DRIVER.ask(_silent_gpus) or {}


def _silent_gpus() -> dict[int, str]:
    library, silent = _loaded(), dict[int, str]()
    if library is None:
        return silent
    for index in range(_count(library)):
        try:
            _card(library, index)
        except library.NVMLError as error:
            silent[index] = str(error)
    return silent


def _count(library: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError:
        return 0


def _named(visible: str, cards: Mapping[int, _Card]) -> list[Sequence[Gpu]]:
    """What CUDA_VISIBLE_DEVICES names: up to the first entry that is none; twice one is nothing."""
    groups: list[Sequence[Gpu]] = []
    entries = [entry.strip() for entry in visible.split(",")]
    for entry in entries:
        parts = _entry(entry, cards) if _kind(entry) == _kind(entries[0]) else ()
        if not parts:
            break
        if parts in groups:
            return []
        groups.append(parts)
    return groups


def _kind(entry: str) -> str:
    return next((kind for kind in ("GPU-", "MIG-") if entry.startswith(kind)), "number")


def _entry(entry: str, cards: Mapping[int, _Card]) -> Sequence[Gpu]:
    """The card with that number, or the one card or slice whose UUID begins so."""
    if _kind(entry) == "number":
        digits = re.match(r"\+?\d+", entry)  # CUDA ignores what follows the digits
        card = cards.get(int(digits[0])) if digits else None
        return () if card is None else card.parts
    if entry.startswith("MIG-"):
        own = [gpu for card in cards.values() for gpu in card.parts if gpu.is_slice]
        fits = [(gpu,) for gpu in own if str(gpu.uuid).startswith(entry)]
    else:
        fits = [card.parts for card in cards.values() if str(card.uuid).startswith(entry)]
    return fits[0] if len(fits) == 1 else ()


@dataclass(frozen=True, slots=True)
class _Card:
    uuid: str | None
    parts: Sequence[Gpu]  # its slices (MIG), or the card itself


def _card(library: Any, index: int) -> _Card:
    """What the driver reports a card.

    Raises:
        NVMLError: it does not answer.
    """
    card = library.nvmlDeviceGetHandleByIndex(index)
    limit = _ask(library.nvmlDeviceGetEnforcedPowerLimit, card)
    parts = [
        Gpu(
            index=index,
            name=str(_ask(library.nvmlDeviceGetName, handle) or "unknown GPU"),
            memory_bytes=_memory(library, handle),
            power_limit_w=None if limit is None else limit / 1000,
            uuid=_ask(library.nvmlDeviceGetUUID, handle),
        )
        for handle in _slices(library, card) or [card]
    ]
    return _Card(_ask(library.nvmlDeviceGetUUID, card), parts)


def _slices(library: Any, card: Any) -> list[Any]:
    """The instances of a card in MIG mode; [] = it is whole."""
    try:
        if not library.nvmlDeviceGetMigMode(card)[0]:
            return []
        most = int(library.nvmlDeviceGetMaxMigDeviceCount(card))
    except (library.NVMLError, AttributeError):
        return []
    slices = [_ask(library.nvmlDeviceGetMigDeviceHandleByIndex, card, n) for n in range(most)]
    return [part for part in slices if part is not None]


def _memory(library: Any, handle: Any) -> int:
    """The card's own; where it shares the host's (GB10, Jetson) the driver tells none."""
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError as error:
        if error.value != library.NVML_ERROR_NOT_SUPPORTED:
            raise
        return host_memory_bytes()


def _ask(question: Callable[..., Any], *about: Any) -> Any | None:
    try:
        return question(*about)
    except Exception:  # noqa: BLE001  (NVMLError, a name that is no text, an old driver)
        return None
