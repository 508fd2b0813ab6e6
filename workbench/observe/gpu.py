"""Samples of every GPU through NVML. A reading the driver refuses is None, never 0."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from workbench.describe.detection import nvml, visible_gpus
from workbench.describe.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    """The driver's index."""
    util: float | None
    """Share of the last sample period with at least one kernel running, percent (not SM use)."""
    memory_bytes: int | None
    """Memory in use by all processes on the card."""
    temperature_c: float | None
    """Core temperature."""
    power_w: float | None
    """Board power."""
    sm_clock_mhz: float | None
    """Current SM clock."""
    throttle_reasons: int | None
    """NVML's bit mask of clock event reasons; 0 means none."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolder:
    """What is on one GPU before a run starts, and whose it is."""

    index: int
    """The driver's index."""
    memory_bytes: int
    """Memory in use by all processes on the card."""
    total_bytes: int
    """The card's memory."""
    processes: tuple[tuple[int, str], ...]
    """Pid and name of each process the driver names; those of other containers have no name."""


def gpu_holders(gpus: Sequence[Gpu]) -> list[GpuHolder]:
    """Who holds memory on `gpus`; cards that the driver does not answer for are left out."""
    sampler = GpuSampler()
    wanted = {gpu.index: gpu for gpu in gpus}
    return [
        GpuHolder(
            index=sample.index,
            memory_bytes=sample.memory_bytes,
            total_bytes=wanted[sample.index].memory_bytes,
            processes=tuple(sampler.processes_on(sample.index)),
        )
        for sample in sampler.sample()
        if sample.index in wanted and sample.memory_bytes is not None
    ]


class GpuSampler:
    """Holds the NVML handles of the visible GPUs. Empty on a host without a driver."""

    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = visible_gpus()
        self._nvml = nvml()
        self._handles: list[tuple[int, Any]] = []
        library = self._nvml
        if library is not None:
            opened = [
                (
                    gpu.index,
                    self._ask(functools.partial(library.nvmlDeviceGetHandleByIndex, gpu.index)),
                )
                for gpu in self.gpus
            ]
            self._handles = [(index, handle) for index, handle in opened if handle is not None]

    def sample(self) -> list[GpuSample]:
        """Read every GPU; a lost GPU gives a sample of unknowns."""
        return [self._read(index, handle) for index, handle in self._handles]

    def _read(self, index: int, handle: Any) -> GpuSample:
        lib = self._nvml
        assert lib is not None
        rates = self._ask(lambda: lib.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(functools.partial(_memory, lib, handle))
        milliwatts = self._ask(lambda: lib.nvmlDeviceGetPowerUsage(handle))
        return GpuSample(
            index=index,
            util=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            temperature_c=self._ask(
                lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)
            ),
            power_w=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=self._ask(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            throttle_reasons=self._ask(
                lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            ),
        )

    def _ask(self, read: Callable[[], Any]) -> Any | None:
        assert self._nvml is not None
        try:
            return read()
        except self._nvml.NVMLError:
            return None

    def processes_on(self, index: int) -> Iterator[tuple[int, str]]:
        """Pid and name of the processes that compute on GPU `index`."""
        lib = self._nvml
        for number, handle in self._handles if lib is not None else ():
            if number == index:
                entries = self._ask(functools.partial(_computing, lib, handle))
                yield from ((entry.pid, _process_name(entry.pid)) for entry in entries or ())

    def memory_of(self, pids: set[int]) -> int | None:
        """GPU memory held by these processes; None when NVML cannot tell (or there is no GPU)."""
        if not self._handles or self._nvml is None:
            return None
        lib, total = self._nvml, 0
        for _, handle in self._handles:
            entries = self._ask(functools.partial(_computing, lib, handle))
            if entries is None:
                return None
            held = [entry.usedGpuMemory for entry in entries if entry.pid in pids]
            foreign = any(not psutil.pid_exists(entry.pid) for entry in entries)
            if None in held or (foreign and not held):
                return None  # inside a container the driver may count processes otherwise
            total += sum(held)
        return total


def _memory(lib: Any, handle: Any) -> Any:
    """Without what the driver keeps for itself, which the older call counts as used."""
    try:
        return lib.nvmlDeviceGetMemoryInfo(handle, version=lib.nvmlMemory_v2)
    except (lib.NVMLError, AttributeError, TypeError):
        return lib.nvmlDeviceGetMemoryInfo(handle)


def _computing(lib: Any, handle: Any) -> Any:
    return lib.nvmlDeviceGetComputeRunningProcesses(handle)


def _process_name(pid: int) -> str:
    """The program of a process of this container."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process outside this container"
