"""What offload needs of the host, and number formats that the GPU lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.describe import Cluster, Workload
from workbench.estimate.rank import Rank
from workbench.units import format_bytes


def host_bytes(ranks: Sequence[Rank], where: Cluster | str) -> int | None:
    """Host memory of one node that offload takes; None where nothing is offloaded to it."""
    strategy = ranks[0].context.strategy
    if not strategy.offload or strategy.deepspeed.offload_device == "nvme":
        return None
    offloaded = max(_offloaded_bytes(rank) for rank in ranks)
    on_node = len(where.gpus) if isinstance(where, Cluster) and where.gpus else strategy.world_size
    return offloaded * min(strategy.world_size, on_node) or None


def _offloaded_bytes(rank: Rank) -> int:
    """What one rank keeps in host memory because of `strategy.offload`.

    Weights, master copy, optimizer states and activations as they would be on the card, and
    DeepSpeed's gradients where they follow their optimizer. Staging buffers come on top.
    """
    strategy, states = rank.context.strategy, rank.states
    # DeepSpeed from stage 2 keeps the gradients beside the optimizer that it moved.
    follows = "optimizer" in strategy.offload and strategy.zero_stage in {2, 3}
    return round(states.on_host + states.gradients * follows + max(0.0, rank.blocks.on_host))


def cautions(workload: Workload, where: Cluster | str, offloaded: int | None) -> Iterator[str]:
    """Sentences on the hardware: number formats that the card lacks, host memory for offload."""
    cluster = where if isinstance(where, Cluster) else None
    if cluster is not None and cluster.accelerator is not None:
        lacking = cluster.accelerator.why_not(workload.precision)
        if lacking:
            yield lacking
    if offloaded is None:
        return
    text = f"offload keeps {format_bytes(offloaded)} in the host memory of a node, buffers on top"
    there = None if cluster is None else cluster.memory_bytes
    if there is None:
        yield f"{text}; how much the host has is not known"
    elif offloaded > there:
        yield f"{text}; the host has {format_bytes(there)}: it does not fit"
    else:
        yield f"{text}; the host has {format_bytes(there)}"
