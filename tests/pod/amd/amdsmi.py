"""A stand-in for AMD's library for its GPUs, on the timeline of `workbench.rehearsing.driver.pod`.

It answers the functions that the workbench calls, with the fields and units of AMD's reference of
the Python interface. A reading that the timeline does not have is "N/A", as there.
"""

import enum
import itertools
import os
import time
from pathlib import Path

MISSING = "N/A"


class AmdSmiException(Exception):  # noqa: N818  (its name there)
    """What the library raises."""


class AmdSmiLibraryException(AmdSmiException):
    """An error code of the library below."""


class AmdSmiMemoryType(enum.IntEnum):
    VRAM = 0


class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0


class AmdSmiClkType(enum.IntEnum):
    GFX = 1


RESOLUTION = 15.259  # microjoules of a count of the energy counter, as MI300 tells it
_lines = []


def _now():
    return float(Path(os.environ["POD_CLOCK"]).read_text("ascii") or 0)


def _due(device, key):
    """Moment and value of each line of that key so far."""
    now = _now()
    return [
        (at, value) for at, of, name, value in _lines if of == device and name == key and at <= now
    ]


def _number(device, key):
    lines = _due(device, key)
    return int(lines[-1][1]) if lines else None


def _enter(function, handle=None):
    device = -1 if handle is None else handle
    for of in {-1, device}:
        for key, act in (("stall", time.sleep), ("error", _fail)):
            for _, value in reversed(_due(of, key)):
                name, _, word = value.partition(" ")
                if name in (function, "*"):
                    if float(word):
                        act(float(word))
                    break
    if handle is not None and _number(handle, "lost"):
        _fail(15)


def _fail(code):
    raise AmdSmiLibraryException(f"error {code:g} of the simulated driver")


def amdsmi_init(flag=None):
    del flag
    _lines.clear()
    path = os.environ.get("POD_TIMELINE")
    if path is None:
        _fail(1)
    for line in Path(path).read_text("ascii").splitlines():
        at, device, key, value = line.split(" ", 3)
        _lines.append((float(at), int(device), key, value))
    if "AMD" not in (_due(0, "name") or [(0, "")])[-1][1]:
        _fail(1)
    _enter("amdsmi_init")


def amdsmi_get_processor_handles():
    _enter("amdsmi_get_processor_handles")
    return list(range(_number(-1, "count")))[::-1]  # the library's order is not HIP's


def amdsmi_get_gpu_enumeration_info(handle):
    _enter("amdsmi_get_gpu_enumeration_info", handle)
    return {"hip_id": handle, "hip_uuid": _due(handle, "uuid")[-1][1], "drm_card": handle}


def amdsmi_get_gpu_driver_info(handle):
    _enter("amdsmi_get_gpu_driver_info", handle)
    return {"driver_name": "amdgpu", "driver_version": _due(-1, "driver")[-1][1]}


def amdsmi_get_gpu_asic_info(handle):
    _enter("amdsmi_get_gpu_asic_info", handle)
    return {"market_name": _due(handle, "name")[-1][1], "vendor_id": 0x1002}


def amdsmi_get_gpu_device_uuid(handle):
    _enter("amdsmi_get_gpu_device_uuid", handle)
    return f"00ff74a1-0000-1000-80{handle:02x}-000000000000"


def amdsmi_get_gpu_memory_total(handle, kind):
    _enter("amdsmi_get_gpu_memory_total", handle)
    assert kind is AmdSmiMemoryType.VRAM
    return _number(handle, "memory")


def amdsmi_get_gpu_memory_usage(handle, kind):
    _enter("amdsmi_get_gpu_memory_usage", handle)
    assert kind is AmdSmiMemoryType.VRAM
    return _number(handle, "used")


def amdsmi_get_gpu_activity(handle):
    _enter("amdsmi_get_gpu_activity", handle)
    util = _number(handle, "util")
    return {"gfx_activity": MISSING if util is None else util, "umc_activity": MISSING}


def amdsmi_get_power_info(handle):
    _enter("amdsmi_get_power_info", handle)
    watts = _number(handle, "power_mw") // 1000
    return {"current_socket_power": watts, "average_socket_power": MISSING, "power_limit": MISSING}


def amdsmi_get_power_cap_info(handle):
    _enter("amdsmi_get_power_cap_info", handle)
    return {"power_cap": _number(handle, "power_limit_mw") * 1000}


def amdsmi_get_energy_count(handle):
    _enter("amdsmi_get_energy_count", handle)
    lines = [*_due(handle, "power_mw"), (_now(), "0")]
    spans = itertools.pairwise(lines)
    millijoules = _number(handle, "energy_mj") + sum(
        int(value) * (end - at) for (at, value), (end, _) in spans
    )
    return {
        "energy_accumulator": round(1000 * millijoules / RESOLUTION),
        "counter_resolution": RESOLUTION,
    }


def amdsmi_get_temp_metric(handle, sensor, metric):
    _enter("amdsmi_get_temp_metric", handle)
    assert sensor is AmdSmiTemperatureType.HOTSPOT
    assert metric is AmdSmiTemperatureMetric.CURRENT
    return _number(handle, "temperature")


def amdsmi_get_clock_info(handle, kind):
    _enter("amdsmi_get_clock_info", handle)
    assert kind is AmdSmiClkType.GFX
    return {"clk": _number(handle, "clock"), "max_clk": _number(handle, "clock_max")}


def amdsmi_get_gpu_total_ecc_count(handle):
    _enter("amdsmi_get_gpu_total_ecc_count", handle)
    return {"correctable_count": 0, "uncorrectable_count": _number(handle, "ecc")}


def amdsmi_get_gpu_process_list(handle):
    _enter("amdsmi_get_gpu_process_list", handle)
    found = []
    for word in (_due(handle, "processes") or [(0, "")])[-1][1].split():
        pid, size, *_ = word.split(":")
        memory = MISSING if size == "-" else int(size)
        found.append({"name": MISSING, "pid": int(pid), "memory_usage": {"vram_mem": memory}})
    return found
