"""All-reduce, all-gather and reduce-scatter through torch.distributed, per size and group."""

# torch.distributed is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workbench.compare.calibration.probes.memory import allowance
from workbench.compare.calibration.probes.process_group import ProcessGroup, spread, typical
from workbench.estimate.calibration_rows import Collective

KINDS = ("all-reduce", "all-gather", "reduce-scatter")
SIZES = {
    "gloo": (64 << 10, 1 << 20, 4 << 20, 25 << 20),  # 25 MiB: a bucket of DDP
    "nccl": (64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30),
}
OTHER_SIZES = {"gloo": (1 << 20, 8 << 20), "nccl": (1 << 20, 16 << 20, 256 << 20)}


def measure(group: ProcessGroup, budget: float) -> list[dict[str, Any]]:
    """Rows of `Collective`; none for one process."""
    if group.size == 1:
        return []
    most = group.broadcast(allowance(group) // 3)
    cases = [("all-reduce", size) for size in SIZES[group.backend]]
    cases += [(kind, size) for kind in KINDS[1:] for size in OTHER_SIZES[group.backend]]
    cases = [(kind, size) for kind, size in cases if size <= most]
    rows: list[dict[str, Any]] = []
    for kind, size in cases:
        seconds = group.rounds(_work(group, kind, size), budget / len(cases), together=True)
        row = Collective(
            kind=kind,
            backend=group.backend,
            ranks=group.size,
            bytes=size,
            seconds=typical(seconds),
            spread=spread(seconds),
        )
        rows.append(dataclasses.asdict(row))
    return rows


def _work(group: ProcessGroup, kind: str, size: int) -> Callable[[], object]:
    count = size // 4 // group.size * group.size
    tensor = torch.ones(count, device=group.device)
    part = torch.ones(count // group.size, device=group.device)
    library: Any = dist  # torch is renaming these two; either name does where it is known
    gather = getattr(library, "all_gather_single", None) or library.all_gather_into_tensor
    scatter = getattr(library, "reduce_scatter_single", None) or library.reduce_scatter_tensor

    def work() -> None:
        if kind == "all-reduce":
            dist.all_reduce(tensor, group=group.group)
        elif kind == "all-gather":
            gather(tensor, part, group=group.group)
        else:
            scatter(part, tensor, group=group.group)

    return work
