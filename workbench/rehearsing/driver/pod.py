"""What the simulated driver tells, second by second: a profile of the catalogue, and changes of it.

pod = Pod("h100-sxm", 8)
pod.at(60, 3, temperature=93, throttle=0x20, clock=1100)
pod.error(90, "nvmlDeviceGetPowerUsage", 3)
pod.write(path)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from workbench.describe import catalog
from workbench.units import MIB

_MAX_CLOCK_MHZ = {
    "t4": 1590,
    "a10g": 1710,
    "rtx-4090": 3105,
    "a100-sxm-80": 1410,
    "h100-sxm": 1980,
    "h200-sxm": 1980,
    "b200-sxm": 1965,
    "mi300x": 2100,
}
AMD_PROFILES = ("mi300x",)
"""For the stand-in of AMD's library (`tests/pod/amd/amdsmi.py`); NVML finds no driver there."""
PROFILES = tuple(name for name in _MAX_CLOCK_MHZ if name not in AMD_PROFILES)
MOST_CARDS = 16
"""Of a machine."""
SIMULATED = "570.86.15 (simulated)"
"""Version of a driver that people look at."""
POD = "WORKBENCH_POD"
"""Variable of processes that run on such a machine: `pod_name` of it."""
_LINK_BYTES_PER_SECOND = {"NVLink3": 25e9, "NVLink4": 25e9, "NVLink5": 50e9}
_RESERVED = 600 * MIB  # what the driver keeps; the older memory call counts it as used
_NO_ECC = {"rtx-4090"}
_MIG = {"a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm"}


def pod_name(gpu: str, count: int) -> str:
    """Value of `POD`.

    >>> pod_name("h100-sxm", 8)
    'h100-sxm:8'
    """
    return f"{gpu}:{count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One MIG instance of a card."""

    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int = 0


@final
class Pod:
    """A node of `count` equal GPUs that are idle, until `at` and its neighbours change that."""

    def __init__(
        self, gpu: str, count: int = 8, *, driver: str = "570.86.15", cuda: int = 12080
    ) -> None:
        """One of `PROFILES`, or another GPU of the catalogue, which then tells no clocks.

        `cuda`: the driver's, as 12080 for 12.8.
        """
        self._lines: list[tuple[float, int, str, object]] = []
        self.gpu, self.count = catalog.gpu(gpu), count
        self.driver_name = next(
            (
                alias
                for alias in self.gpu.aliases
                if alias.startswith(("NVIDIA ", "Tesla ", "AMD "))
            ),
            gpu,
        )
        self.max_clock = _MAX_CLOCK_MHZ.get(self.gpu.id)
        self.host(0, driver=driver, cuda=cuda, count=count)
        if gpu in AMD_PROFILES:
            self.error(0, "nvmlInitWithFlags", 9)
        for index in range(count):
            self._card(index)

    def _card(self, index: int) -> None:
        gpu = self.gpu
        power = round(1000 * (gpu.tdp_w or 0))
        self.at(
            0,
            index,
            uuid=self.uuid(index),
            name=self.driver_name,
            capability=gpu.compute_capability,
            memory=gpu.memory_bytes,
            reserved=_RESERVED,
            used=0,
            util=0,
            power_mw=power // 10,
            energy_mj=5_000_000 + index,  # of the time before
            power_limit_mw=power,
            temperature=31,
            throttle=1,
        )
        if self.max_clock is not None:
            self.at(0, index, clock=self.max_clock // 5, clock_max=self.max_clock)
        per_link = _LINK_BYTES_PER_SECOND.get(gpu.link.partition("+")[0])
        if per_link and gpu.link_bytes_per_second:
            self.at(0, index, nvlinks=round(gpu.link_bytes_per_second / per_link))
        if gpu.id not in _NO_ECC:
            self.at(0, index, ecc=0)
        if gpu.id in _MIG:
            self.at(0, index, mig=0)

    def uuid(self, index: int) -> str:
        """The driver's name of a card."""
        return f"GPU-{index:x}{index + 7:07x}-0f3a-4b7d-9c21-{index:012x}"

    def host(self, second: float, **values: object) -> Pod:
        """Change what the driver reports the host: driver, cuda, count."""
        return self._put(second, -1, values)

    def at(self, second: float, device: int | Iterable[int], **values: object) -> Pod:
        """Change readings of a card, or of several; units as NVML has them, `power_mw`."""
        for index in [device] if isinstance(device, int) else device:
            self._put(second, index, values)
        return self

    def busy(self, second: float, device: int | Iterable[int], **values: object) -> Pod:
        """What a training card shows; `values` are different."""
        power = round(900 * (self.gpu.tdp_w or 0))
        usual = {"util": 97, "used": self.gpu.memory_bytes * 3 // 4, "power_mw": power}
        usual |= {"temperature": 62, "throttle": 4}
        if self.max_clock is not None:
            usual["clock"] = round(0.9 * self.max_clock)
        return self.at(second, device, **{**usual, **values})

    def processes(self, second: float, device: int, memory_bytes: Mapping[int, int | None]) -> Pod:
        """Pid -> bytes of the processes that compute on a card; None = the driver does not say."""
        words = (f"{pid}:{'-' if size is None else size}" for pid, size in memory_bytes.items())
        return self.at(
            second, device, processes=" ".join(words), used=sum(filter(None, memory_bytes.values()))
        )

    def xid(self, second: float, device: int, number: int) -> Pod:
        """An event; `second` must be after the workbench asked for events."""
        return self.at(second, device, xid=number)

    def lost(self, second: float, device: int, *, back: float | None = None) -> Pod:
        """The card falls off the bus, and is `back` later, or never."""
        self.at(second, device, lost=1)
        return self if back is None else self.at(back, device, lost=0)

    def slices(self, second: float, device: int, slices: Iterable[Slice]) -> Pod:
        """The card is in MIG mode and cut so."""
        self.at(second, device, mig=1)
        for number, part in enumerate(slices):
            text = f"{number} {part.uuid}|{part.name}|{part.memory_bytes}|{part.used_bytes}"
            self.at(second, device, slice=text)
        return self

    def error(
        self, second: float, function: str, code: int, *, device: int = -1, until: float = 0
    ) -> Pod:
        """`function` ("*": each) answers with an NVML error code, on all cards or one."""
        self._put(second, device, {"error": f"{function} {code}"})
        return self._put(until, device, {"error": f"{function} 0"}) if until else self

    def stall(
        self, second: float, function: str, seconds: float, *, device: int = -1, until: float = 0
    ) -> Pod:
        """`function` answers only after `seconds`."""
        self._put(second, device, {"stall": f"{function} {seconds}"})
        return self._put(until, device, {"stall": f"{function} 0"}) if until else self

    def _put(self, second: float, device: int, values: Mapping[str, object]) -> Pod:
        self._lines += [(second, device, key, value) for key, value in values.items()]
        return self

    def reading(self, device: int) -> dict[str, Any]:
        """What a sampler reads of a card when all changes are due: `observe.gpu.GpuSample`."""
        last = {key: value for _, index, key, value in self._lines if index == device}
        names = {"util": "util", "memory_bytes": "used", "temperature_c": "temperature"}
        names |= {"sm_clock_mhz": "clock", "throttle_reasons": "throttle"}
        lost = bool(last.get("lost"))
        read = {name: None if lost else last.get(key) for name, key in names.items()}
        power = last.get("power_mw")
        watts = power / 1000 if isinstance(power, int) and not lost else None
        return {"index": device, **read, "power_w": watts}

    def write(self, path: Path) -> Path:
        """Write what the library reads; of the same second the later change counts."""
        ordered = sorted(self._lines, key=lambda line: line[0])
        text = "".join(f"{at:g} {device} {key} {value}\n" for at, device, key, value in ordered)
        # Processes that read it find a whole one, and two that write it a file each.
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        new.write_text(text, encoding="ascii")
        return new.replace(path)
