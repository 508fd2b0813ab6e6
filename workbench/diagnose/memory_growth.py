"""Memory of which a rank takes more with every step: a reference that is kept, as to a loss.

Told long before it runs out. Of the host only what the processes wrote themselves counts: pages of
mapped files, which the kernel takes back, grow with the data that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.memory_curve import Growth, MemoryCurve
from workbench.store.findings import Finding
from workbench.units import format_bytes, format_seconds

_SOON = 3600.0
_FAR = 14 * 24 * 3600.0  # longer than any run
_CAUSE = (
    "Something is kept at every step: losses or outputs with their graphs in a list or a sum "
    "(total += loss), metrics, or hooks that are registered again."
)
_HOST_TOO = (
    " A data set that keeps its samples in memory grows so in its first pass, and no further."
)


def host_memory_growth(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose own host memory rises steadily over the steps."""
    growing = _growing(evidence.host_memory)
    free = {
        node: readings[-1].memory_total - readings[-1].memory_used
        for node, readings in evidence.fresh_hosts()
        if readings[-1].memory_total is not None and readings[-1].memory_used is not None
    }
    used = _steps_left(evidence, growing, free)
    if used is None:
        return
    filling = any(passes < 2 for passes in _passes(evidence))
    yield from _finding(evidence, "memory-growth", growing, used, filling=filling)


def gpu_memory_growth(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose peak of allocated GPU memory rises steadily over the steps."""
    growing = _growing(evidence.gpu_memory)
    sizes = [gpu.get("memory_bytes") for gpu in evidence.run.cluster.get("gpus") or ()]
    card_bytes = [size for size in sizes if size]
    left = [
        max(0.0, min(card_bytes) - evidence.gpu_memory[rank].points[-1][2]) / growth.bytes_per_step
        for rank, growth in growing.items()
        if card_bytes
    ]
    if left:
        yield from _finding(evidence, "gpu-memory-growth", growing, min(left), filling=False)


def _growing(curves: Mapping[int, MemoryCurve]) -> dict[int, Growth]:
    growths = {rank: curve.growth() for rank, curve in sorted(curves.items())}
    return {rank: growth for rank, growth in growths.items() if growth is not None}


def _steps_left(
    evidence: Evidence, growing: Mapping[int, Growth], free: Mapping[int, float]
) -> float | None:
    """Until the memory of the first machine is used up; None where nothing grows or tells."""
    each: dict[int, float] = {}
    for rank, growth in growing.items():
        node = evidence.node_of(rank)
        each[node] = each.get(node, 0.0) + growth.bytes_per_step
    left = [free[node] / rate for node, rate in each.items() if node in free]
    return min(left) if left else None


def _passes(evidence: Evidence) -> Sequence[int]:
    """Over the data, of each loader that trains."""
    feeds = [feed for start in evidence.starts.values() for feed in start.samplers or ()]
    return [feed.get("iterations") or 0 for feed in feeds]


def _finding(
    evidence: Evidence, kind: str, growing: Mapping[int, Growth], left: float, *, filling: bool
) -> Iterator[Finding]:
    worst = max(growing, key=lambda rank: growing[rank].bytes_per_step)
    growth = growing[worst]
    seconds = left * growth.seconds_per_step
    if seconds > _FAR:
        return
    is_single = len(growing) == 1 and evidence.processes > 1
    rank = next((r for k, r in evidence.standing if k == kind), worst if is_single else None)
    subject = (
        f"rank {worst}" if len(growing) == 1 else f"{len(growing)} ranks, most on rank {worst}"
    )
    gpu = kind.startswith("gpu")
    where = "GPU memory" if gpu else "Host memory"
    rate = format_bytes(growth.bytes_per_step)
    yield Finding(
        kind=kind,
        rank=rank,
        step=growth.first_step,
        severity="note" if filling and seconds > _SOON else "warning",
        confidence=0.6 if filling else 0.8,
        evidence=f"{where} of {subject} grows by {rate} a step ({format_bytes(growth.total)} over "
        f"the latest {growth.steps} steps); at this rate it is used up in {left:,.0f} steps "
        f"({format_seconds(seconds)}).",
        cause=_CAUSE + (_HOST_TOO if filling else ""),
        next="Keep numbers (loss.item()) or loss.detach(), and empty lists after each report; "
        + (
            "a memory profile of the run shows what is allocated."
            if gpu
            else "compare with num_workers=0, since a loader's queue can grow, too."
        ),
    )


SLOW_RULES = (host_memory_growth, gpu_memory_growth)
