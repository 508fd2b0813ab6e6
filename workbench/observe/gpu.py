"""Samples of every GPU through NVML. A reading the driver refuses is None, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, final

import psutil

from workbench.describe.bounded_calls import DRIVER, SECONDS, BoundedCalls
from workbench.describe.detection import nvml, visible_gpus
from workbench.describe.hardware import Gpu
from workbench.observe.driver_processes import is_local, process_name, shares_numbers

AT_LAUNCH_SECONDS = 15.0
"""For a reading before a start: nothing runs that would have to wait for it."""
_CONTEXT_BYTES = 128 << 20  # of a card; what CUDA sets up for one process is more


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    """The driver's index."""
    util: float | None = None
    """Share of the last sample period with at least one kernel running, percent (not SM use)."""
    memory_bytes: int | None = None
    """Memory in use by all processes on the card."""
    temperature_c: float | None = None
    """Core temperature."""
    power_w: float | None = None
    """Board power."""
    sm_clock_mhz: float | None = None
    """Current SM clock."""
    throttle_reasons: int | None = None
    """NVML's bit mask of clock event reasons; 0 means none."""
    energy_joules: float | None = None
    """Of the board since its driver was loaded; None on cards before Volta."""

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
    processes: tuple[tuple[int, str | None], ...]
    """Pid and name of each process the driver tells; one of another container has no name here.

    () = the driver tells none, as it does in most containers: who holds the memory is unknown.
    """


def gpu_holders(gpus: Sequence[Gpu]) -> list[GpuHolder]:
    """Who holds memory on `gpus`; cards that the driver does not answer for are left out."""
    sampler = PatientGpuSampler(gpus, seconds=AT_LAUNCH_SECONDS)
    return [
        GpuHolder(
            index=gpu.index,
            memory_bytes=sample.memory_bytes,
            total_bytes=gpu.memory_bytes,
            processes=tuple(sampler.processes_on(gpu.index, gpu.uuid if gpu.is_slice else None)),
        )
        for gpu, sample in zip(gpus, sampler.sample(), strict=False)  # none without a driver
        if sample.memory_bytes is not None
    ]


def gpus_of_record(cluster: Mapping[str, Any]) -> tuple[Gpu, ...] | None:
    """The GPUs of a record's ``cluster``; None where it names none."""
    field_names = {field.name for field in fields(Gpu)}
    documents: list[dict[str, Any]] = cluster.get("gpus") or []
    documents_known = [
        {name: document[name] for name in document if name in field_names} for document in documents
    ]
    return tuple(Gpu(**fields) for fields in documents_known) or None


class GpuSampler:
    """Reads GPUs through NVML. Empty on a host without a driver."""

    def __init__(self, gpus: Sequence[Gpu] | None = None) -> None:
        """`gpus`: of this host; None = the visible ones."""
        library = nvml()
        self.gpus: tuple[Gpu, ...] = tuple(visible_gpus() if gpus is None else gpus)
        if library is None:
            self.gpus = ()
        self._nvml: Any = library
        self._opened: dict[str, tuple[Any, Any]] = {}  # by the device's name

    def sample(self) -> list[GpuSample]:
        """Read every GPU; a lost GPU gives a sample of unknowns."""
        return [self._read(gpu) for gpu in self.gpus]

    def _handles(self, gpu: Gpu) -> tuple[Any, Any] | None:
        """Of the card, and of what a run sees of it; asked again until the driver tells."""
        if gpu.device_name not in self._opened:
            lib = self._nvml
            card = self._ask(lib.nvmlDeviceGetHandleByIndex, gpu.index)
            part = self._ask(lib.nvmlDeviceGetHandleByUUID, gpu.uuid) if gpu.is_slice else card
            if card is None or part is None:
                return None
            self._opened[gpu.device_name] = card, part
        return self._opened[gpu.device_name]

    def _read(self, gpu: Gpu) -> GpuSample:
        lib, ask, handles = self._nvml, self._ask, self._handles(gpu)
        if handles is None:
            return GpuSample(index=gpu.index)
        card, part = handles
        rates = ask(lib.nvmlDeviceGetUtilizationRates, part)
        memory = ask(self._memory, part)
        milliwatts = ask(lib.nvmlDeviceGetPowerUsage, card)
        millijoules = ask(lib.nvmlDeviceGetTotalEnergyConsumption, card)
        return GpuSample(
            index=gpu.index,
            util=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            temperature_c=ask(lib.nvmlDeviceGetTemperature, card, lib.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=ask(lib.nvmlDeviceGetClockInfo, card, lib.NVML_CLOCK_SM),
            throttle_reasons=ask(lib.nvmlDeviceGetCurrentClocksThrottleReasons, card),
            energy_joules=None if millijoules is None else millijoules / 1000,
        )

    def _memory(self, handle: Any) -> Any:
        """Without what the driver keeps for itself, which the older call counts as used."""
        lib = self._nvml
        try:
            return lib.nvmlDeviceGetMemoryInfo(handle, version=lib.nvmlMemory_v2)
        except (lib.NVMLError, AttributeError, TypeError):
            return lib.nvmlDeviceGetMemoryInfo(handle)

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any | None:
        try:
            return question(*about)
        except Exception:  # noqa: BLE001  (NVMLError, and what nvidia-ml-py makes of an old driver)
            return None

    def memory_errors(self) -> dict[int, int]:
        """Uncorrectable memory errors since the driver was loaded, of the GPUs that count them."""
        lib, counts = self._nvml, dict[int, int]()
        for gpu in self.gpus:
            handles = self._handles(gpu)
            count = handles and self._ask(
                lib.nvmlDeviceGetTotalEccErrors,
                handles[0],
                lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                lib.NVML_VOLATILE_ECC,
            )
            if count is not None:
                counts[gpu.index] = int(count)
        return counts

    def _computing(self, gpu: Gpu) -> Sequence[Any] | None:
        """The processes on a GPU; None where the driver does not tell."""
        lib, handles = self._nvml, self._handles(gpu)
        if handles is None:
            return None
        processes = self._ask(lib.nvmlDeviceGetComputeRunningProcesses, handles[1])
        if processes is None:  # a driver before release 510
            return self._ask(lib.nvmlDeviceGetComputeRunningProcesses_v2, handles[1])
        return processes

    def processes_on(self, index: int, uuid: str | None = None) -> Iterator[tuple[int, str | None]]:
        """Pid and name of the processes that compute on GPU `index`; `uuid`: on that slice.

        The name is None where the number is not one of this container.
        """
        for gpu in self.gpus:
            is_this = gpu.index == index and uuid in {None, gpu.uuid}
            for entry in (is_this and self._computing(gpu)) or ():
                yield entry.pid, process_name(entry.pid)

    def memory_of(self, pids: set[int]) -> int | None:
        """GPU memory held by these processes; None when NVML cannot tell (or there is no GPU).

        In a container the driver most often tells no process at all, or numbers of the host: then
        a card is known to hold nothing of theirs only while no one's memory lies on it.
        """
        total = 0
        for gpu in self.gpus:
            entries = self._computing(gpu)
            if entries is None:
                return None
            own = [entry for entry in entries if entry.pid in pids and is_local(entry.pid)]
            process_bytes = [entry.usedGpuMemory for entry in own]
            if None in process_bytes or (not own and not self._holds_nothing(gpu, entries)):
                return None
            total += sum(process_bytes)
        return total if self.gpus else None

    def _holds_nothing(self, gpu: Gpu, entries: Sequence[Any]) -> bool:
        """Whether none of these `entries`, which are not the run's, can be of the run after all."""
        if shares_numbers():
            return all(psutil.pid_exists(entry.pid) for entry in entries)
        if any(not is_local(entry.pid) for entry in entries):
            return False
        handles = self._handles(gpu)
        memory = handles and self._ask(self._memory, handles[1])
        return bool(entries) or (memory is not None and memory.used < _CONTEXT_BYTES)


@final
class PatientGpuSampler:
    """A `GpuSampler` that waits for no driver: one that hangs gives samples of unknowns."""

    def __init__(self, gpus: Sequence[Gpu] | None = None, *, seconds: float = SECONDS) -> None:
        """See `GpuSampler`; the driver is asked for the first time with the first sample.

        `seconds`: how long a sample may take.
        """
        self._gpus = gpus
        self._sampler: GpuSampler | None = None
        self._thread = BoundedCalls(seconds)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """What it reads, as far as that is known yet."""
        return tuple(self._gpus or ()) if self._sampler is None else self._sampler.gpus

    def _open(self) -> GpuSampler:
        if self._sampler is None:
            sampler = GpuSampler(self._gpus)
            if DRIVER.silent_seconds is not None:  # it may be found once it answers
                raise TimeoutError
            self._sampler = sampler
        return self._sampler

    def processes_on(self, index: int, uuid: str | None = None) -> list[tuple[int, str | None]]:
        """As `GpuSampler.processes_on`; [] where the driver does not answer."""
        return self._thread.ask(lambda: list(self._open().processes_on(index, uuid))) or []

    def sample(self) -> list[GpuSample]:
        """Read every GPU."""
        samples = self._thread.ask(lambda: self._open().sample())
        if samples is not None:
            return samples
        return [GpuSample(index=gpu.index) for gpu in self.gpus]

    def memory_errors(self) -> dict[int, int]:
        """As `GpuSampler.memory_errors`."""
        return self._thread.ask(lambda: self._open().memory_errors()) or {}

    def memory_of(self, pids: set[int]) -> int | None:
        """As `GpuSampler.memory_of`."""
        return self._thread.ask(lambda: self._open().memory_of(pids))
