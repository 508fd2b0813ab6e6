"""All-reduce, all-gather and reduce-scatter through torch.distributed, per size and group."""

# torch.distributed is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workbench.compare.probes.crew import Crew, spread, typical
from workbench.compare.probes.memory import allowance
from workbench.estimate.calibration_rows import Collective

KINDS = ("all-reduce", "all-gather", "reduce-scatter")
SIZES = {
    "gloo": (64 << 10, 1 << 20, 4 << 20, 25 << 20),  # 25 MiB: a bucket of DDP
    "nccl": (64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30),
}
OTHERS = {"gloo": (1 << 20, 8 << 20), "nccl": (1 << 20, 16 << 20, 256 << 20)}


def measure(crew: Crew, budget: float) -> list[dict[str, Any]]:
    """Rows of `Collective`; none for one process."""
    if crew.size == 1:
        return []
    most = crew.agree(allowance(crew) // 3)
    cases = [("all-reduce", size) for size in SIZES[crew.backend]]
    cases += [(kind, size) for kind in KINDS[1:] for size in OTHERS[crew.backend]]
    cases = [(kind, size) for kind, size in cases if size <= most]
    rows: list[dict[str, Any]] = []
    for kind, size in cases:
        seconds = crew.rounds(_work(crew, kind, size), budget / len(cases), together=True)
        row = Collective(
            kind=kind,
            backend=crew.backend,
            ranks=crew.size,
            bytes=size,
            seconds=typical(seconds),
            spread=spread(seconds),
        )
        rows.append(dataclasses.asdict(row))
    return rows


def _work(crew: Crew, kind: str, size: int) -> Callable[[], object]:
    count = size // 4 // crew.size * crew.size
    whole = torch.ones(count, device=crew.device)
    part = torch.ones(count // crew.size, device=crew.device)
    one: Any = dist  # torch is renaming these two; either name does where it is known
    gather = getattr(one, "all_gather_single", None) or one.all_gather_into_tensor
    scatter = getattr(one, "reduce_scatter_single", None) or one.reduce_scatter_tensor

    def work() -> None:
        if kind == "all-reduce":
            dist.all_reduce(whole, group=crew.group)
        elif kind == "all-gather":
            gather(whole, part, group=crew.group)
        else:
            scatter(part, whole, group=crew.group)

    return work
