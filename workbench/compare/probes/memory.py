"""Memory bandwidth, the time of one small operation, and the way to the card and back."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from typing import Any

import psutil
import torch

from workbench.compare.probes.crew import Crew, spread, typical
from workbench.estimate.calibration_rows import Rates

SHARE = 0.2  # of the free memory, at most, of all processes together
COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}  # far beyond any cache
HOST_BYTES = 256 << 20


def measure(crew: Crew, budget: float) -> list[dict[str, Any]]:
    """One row of `Rates`."""
    size = min(COPY_BYTES[crew.device.type], allowance(crew) // 2)
    count = crew.agree(max(1 << 18, size // 4))
    here = torch.ones(count, device=crew.device)
    there = torch.empty_like(here)
    copies = crew.rounds(lambda: there.copy_(here), budget / 2)
    small, one = torch.zeros(1, device=crew.device), torch.ones(1, device=crew.device)
    launches = crew.rounds(lambda: torch.add(small, one), budget / 2)
    row = Rates(
        processes=crew.size,
        threads=crew.threads,
        memory_bytes_per_second=8.0 * count / typical(copies),
        launch_seconds=typical(launches),
        spread=spread(copies),
    )
    return [dataclasses.asdict(row)]


def transfers(crew: Crew, budget: float) -> dict[str, float]:
    """Bytes per second from pinned memory to this process's card, and back."""
    count = crew.agree(max(1 << 20, min(HOST_BYTES, int(psutil.virtual_memory().available * 0.05))))
    pinned = torch.empty(count, dtype=torch.uint8).pin_memory()
    card = torch.empty(count, dtype=torch.uint8, device=crew.device)
    there = crew.rounds(lambda: card.copy_(pinned, non_blocking=True), budget / 2)
    back = crew.rounds(lambda: pinned.copy_(card, non_blocking=True), budget / 2)
    return {"host_to_device": count / typical(there), "device_to_host": count / typical(back)}


def allowance(crew: Crew) -> int:
    """Bytes that this process may hold."""
    if crew.device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(crew.device)[0])
    return int(SHARE * psutil.virtual_memory().available / crew.size)
