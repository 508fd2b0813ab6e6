"""Memory bandwidth, the time of one small operation, and the way to the card and back."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from typing import Any

import psutil
import torch

from workbench.compare.calibration.probes.process_group import ProcessGroup, spread, typical
from workbench.estimate.calibration_rows import Rates

SHARE = 0.2  # of the free memory, at most, of all processes together
COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}  # far beyond any cache
HOST_BYTES = 256 << 20


def measure(group: ProcessGroup, budget: float) -> list[dict[str, Any]]:
    """One row of `Rates`."""
    size = min(COPY_BYTES[group.device.type], allowance(group) // 2)
    count = group.broadcast(max(1 << 18, size // 4))
    here = torch.ones(count, device=group.device)
    there = torch.empty_like(here)
    copies = group.rounds(lambda: there.copy_(here), budget / 2)
    small, one = torch.zeros(1, device=group.device), torch.ones(1, device=group.device)
    launches = group.rounds(lambda: torch.add(small, one), budget / 2)
    row = Rates(
        processes=group.size,
        threads=group.threads,
        memory_bytes_per_second=8.0 * count / typical(copies),
        launch_seconds=typical(launches),
        spread=spread(copies),
    )
    return [dataclasses.asdict(row)]


def transfers(group: ProcessGroup, budget: float) -> dict[str, float]:
    """Bytes per second from pinned memory to this process's card, and back."""
    count = group.broadcast(
        max(1 << 20, min(HOST_BYTES, int(psutil.virtual_memory().available * 0.05)))
    )
    pinned = torch.empty(count, dtype=torch.uint8).pin_memory()
    card = torch.empty(count, dtype=torch.uint8, device=group.device)
    there = group.rounds(lambda: card.copy_(pinned, non_blocking=True), budget / 2)
    back = group.rounds(lambda: pinned.copy_(card, non_blocking=True), budget / 2)
    return {"host_to_device": count / typical(there), "device_to_host": count / typical(back)}


def allowance(group: ProcessGroup) -> int:
    """Bytes that this process may hold."""
    if group.device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(group.device)[0])
    return int(SHARE * psutil.virtual_memory().available / group.size)
