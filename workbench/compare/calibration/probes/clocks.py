"""The SM clock of a card that has been busy for a moment: a throttled one holds less."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from typing import Any

import torch

from workbench.compare.calibration.probes.process_group import ProcessGroup
from workbench.describe.detection import nvml

LEAST_SECONDS = 1.0  # power and temperature take effect within about a second


def measure(group: ProcessGroup, budget: float) -> dict[str, float]:
    """Clock under load over the highest one; nothing where the driver does not say."""
    library = nvml()
    if library is None or group.device.type != "cuda":
        return {}
    try:
        cuda: Any = torch.cuda
        uuid = str(cuda.get_device_properties(group.device).uuid)
        handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        highest = library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM)
        seen = _under_load(group, library, handle, max(LEAST_SECONDS, budget))
    except (library.NVMLError, RuntimeError):
        return {}
    return {"slow_clock": seen / highest} if highest and seen else {}


def _under_load(group: ProcessGroup, library: Any, handle: Any, seconds: float) -> float:
    """The lowest clock of the second half of the time."""
    low = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    a = torch.randn(4096, 4096, device=group.device, dtype=low)
    out = torch.empty_like(a)
    began, seen = time.monotonic(), list[float]()
    while (spent := time.monotonic() - began) < seconds:
        for _ in range(20):
            torch.mm(a, a, out=out)
        if spent > seconds / 2:
            seen.append(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
        group.finish()
    return min(seen, default=0.0)
