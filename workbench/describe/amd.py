"""AMD's library for its GPUs (amdsmi), asked by the names that NVML has for the same questions.

One sampler and one doctor serve both makers that way. What AMD's library does not tell is refused
here as NVML refuses it, so that it shows as unknown. Written from AMD's reference of the Python
interface; not run on AMD hardware.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, final

VENDOR = "AMD"
NOT_RUN = "The workbench has not been run on AMD hardware: ranks are started for ROCm and RCCL."
_NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED
_MILLI = 1000


class AmdError(Exception):
    """AMD's library refused, or answered "N/A"."""

    def __init__(self, text: str, value: int = _NOT_SUPPORTED) -> None:
        super().__init__(text)
        self.value = value


@final
class AmdDriver:
    """The functions of NVML that the workbench calls, as far as AMD's library has an answer."""

    vendor = VENDOR
    NVMLError = AmdError
    NVML_ERROR_NOT_SUPPORTED = _NOT_SUPPORTED
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlMemory_v2 = None
    NVML_NVLINK_MAX_LINKS = 0

    def __init__(self, library: Any) -> None:
        """`library`: the module amdsmi, initialised."""
        self._amd = library
        self._handles = sorted(library.amdsmi_get_processor_handles(), key=self._place)

    def _place(self, handle: Any) -> int:
        """The number that HIP counts a card by; where it is not told, the library's order stays."""
        try:
            return _number(self._ask("amdsmi_get_gpu_enumeration_info", handle), "hip_id")
        except AmdError:
            return 0

    def _ask(self, name: str, *words: Any) -> Any:
        """One question.

        Raises:
            AmdError: for whatever the library raises, and where a release lacks the function.
        """
        try:
            return getattr(self._amd, name)(*words)
        except Exception as error:
            raise AmdError(f"{name}: {error!r}") from error

    def nvmlSystemGetDriverVersion(self) -> str:
        """Of the kernel's driver."""
        if not self._handles:
            raise AmdError("no GPU to ask")
        return str(self._ask("amdsmi_get_gpu_driver_info", self._handles[0])["driver_version"])

    def nvmlDeviceGetCount(self) -> int:
        """GPUs of this machine."""
        return len(self._handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """By the number that HIP counts it by."""
        if not 0 <= index < len(self._handles):
            raise AmdError(f"no GPU {index}", 2)
        return self._handles[index]

    def nvmlDeviceGetName(self, handle: Any) -> str:
        """As "AMD Instinct MI300X"."""
        return str(self._ask("amdsmi_get_gpu_asic_info", handle)["market_name"])

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        """A name that no reboot changes: the one for ROCR_VISIBLE_DEVICES, where reported."""
        try:
            uuid = str(self._ask("amdsmi_get_gpu_enumeration_info", handle)["hip_uuid"])
        except (AmdError, KeyError, TypeError):
            uuid = ""
        if uuid.startswith("GPU-"):
            return uuid
        return str(self._ask("amdsmi_get_gpu_device_uuid", handle))

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: object = None) -> Any:
        """Bytes of its own memory: ``total`` and ``used``."""
        del version
        kind = self._amd.AmdSmiMemoryType.VRAM
        total = self._ask("amdsmi_get_gpu_memory_total", handle, kind)
        used = self._ask("amdsmi_get_gpu_memory_usage", handle, kind)
        return SimpleNamespace(total=int(total), used=int(used))

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """Percent of the time that the compute engines were busy: ``gpu``."""
        busy = _number(self._ask("amdsmi_get_gpu_activity", handle), "gfx_activity")
        return SimpleNamespace(gpu=busy)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Milliwatts of the socket."""
        values = self._ask("amdsmi_get_power_info", handle)
        names = ("socket_power", "current_socket_power", "average_socket_power")
        return _first(values, names) * _MILLI

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        """Milliwatts."""
        values = self._ask("amdsmi_get_power_cap_info", handle)
        return _number(values, "power_cap") // _MILLI  # microwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> float:
        """Millijoules since its driver was loaded."""
        values: Mapping[str, Any] = self._ask("amdsmi_get_energy_count", handle)
        steps = _first(values, ("energy_accumulator", "power"))  # its name before ROCm 6.1
        resolution = values.get("counter_resolution")
        if not isinstance(resolution, int | float):
            raise AmdError("no resolution of the energy counter")
        return steps * resolution / _MILLI  # microjoules

    def nvmlDeviceGetTemperature(self, handle: Any, _sensor: int) -> int:
        """Of the hottest place of the chip: MI300 tells no other."""
        amd = self._amd
        kinds = (amd.AmdSmiTemperatureType.HOTSPOT, amd.AmdSmiTemperatureMetric.CURRENT)
        return int(self._ask("amdsmi_get_temp_metric", handle, *kinds))

    def nvmlDeviceGetClockInfo(self, handle: Any, _kind: int) -> int:
        """MHz of the compute engines."""
        values = self._ask("amdsmi_get_clock_info", handle, self._amd.AmdSmiClkType.GFX)
        return _first(values, ("clk", "cur_clk"))

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, _kind: int, _counter: int) -> int:
        """Uncorrectable ones since its driver was loaded."""
        values = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        return _number(values, "uncorrectable_count")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """``pid`` and ``usedGpuMemory`` (bytes; None = not reported) of each."""
        processes: list[Any] = []
        for process in self._ask("amdsmi_get_gpu_process_list", handle):
            usage: Mapping[str, Any] = process.get("memory_usage") or {}
            memory = usage.get("vram_mem")
            used_bytes = memory if isinstance(memory, int) else None
            processes.append(SimpleNamespace(pid=int(process["pid"]), usedGpuMemory=used_bytes))
        return processes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """What NVML has beside these is not supported."""
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def refuse(*_: object) -> Any:
            raise AmdError(f"AMD's library has no {name}")

        return refuse


def _number(values: Any, name: str) -> int:
    return _first(values, (name,))


def _first(values: Any, names: tuple[str, ...]) -> int:
    """The first of these fields that is a number.

    Raises:
        AmdError: none is; AMD's library answers "N/A" then.
    """
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    raise AmdError(f"{' and '.join(names)}: N/A")


def load() -> AmdDriver | None:
    """AMD's library, initialised; None without it, or without a GPU of AMD. Never raises."""
    try:
        library: Any = importlib.import_module("amdsmi")  # only where there is such a GPU
        library.amdsmi_init()
        driver = AmdDriver(library)
    except Exception:  # noqa: BLE001  (a broken driver must not break a CPU run)
        return None
    return driver if driver.nvmlDeviceGetCount() else None
