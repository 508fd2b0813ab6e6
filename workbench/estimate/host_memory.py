"""What offload asks of the host, and what the card has no units for: said beside every estimate."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.describe import Cluster, Strategy, Workload
from workbench.estimate.rank import rank_of
from workbench.estimate.stages import stages
from workbench.units import format_bytes


def offloaded_bytes(workload: Workload, strategy: Strategy) -> int:
    """What the fullest rank keeps in host memory because of `strategy.offload`.

    Weights, master copy, optimizer states and activations as they would be on the card, and
    DeepSpeed's gradients where they follow their optimizer. Staging buffers come on top.
    """
    if not strategy.offload or strategy.deepspeed.offload_device == "nvme":
        return 0
    here = strategy.with_options(offload=())
    return max(
        _moved(workload, strategy, here, position)
        for position in range(len(stages(workload.model, strategy, workload.accumulate)))
    )


def _moved(workload: Workload, strategy: Strategy, here: Strategy, position: int) -> int:
    stage = stages(workload.model, strategy, workload.accumulate)[position]
    kept, whole = rank_of(workload, strategy, stage), rank_of(workload, here, stage)
    states = (
        (whole.states.weights - kept.states.weights)
        + (whole.states.master - kept.states.master)
        + (whole.states.optimizer - kept.states.optimizer)
    )
    # DeepSpeed from stage 2 keeps the gradients beside the optimizer that it moved.
    follows = "optimizer" in strategy.offload and strategy.zero_stage in {2, 3}
    gradients = whole.states.gradients if follows else 0
    return round(states + gradients + max(0.0, whole.blocks - kept.blocks))


def host_bytes(workload: Workload, strategy: Strategy, where: Cluster | str) -> int | None:
    """Host memory of one node that offload takes; None where nothing is offloaded to it."""
    one = offloaded_bytes(workload, strategy)
    if not one:
        return None
    on_node = len(where.gpus) if isinstance(where, Cluster) and where.gpus else strategy.world_size
    return one * min(strategy.world_size, on_node)


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
