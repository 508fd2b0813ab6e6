"""Seconds of a measured step on another device: its own operators at that device's rates.

FLOPs of matrix products, convolutions and attention over the rate of large products, bytes of all
other operators over the bandwidth, and a launch for each operator: a roofline, since how well the
products of an unknown model fill a card is not known. A step that was timed on a GPU does not
correct it: only the CPU's seconds are used, and only on that CPU.
"""

from __future__ import annotations

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.measured import Measured, StepWork, cpu_text
from workbench.estimate.block_time import BlockTime, PassTime
from workbench.estimate.context import RankContext
from workbench.estimate.fitted import fitted
from workbench.estimate.memory import check_layout
from workbench.estimate.rates import Machine
from workbench.estimate.timing import StepTime

CPU_RANGE = (0.85, 1.3)
"""Around a step that was timed on the CPU of this host: what shares it varies. Chosen."""
RANGE = (0.8, 2.0)
"""Around a roofline: small products and convolutions stay far below the rate of large ones. Chosen:
no measured script has been timed on a GPU."""
RANGE_TEXT = (
    f"a roofline of the measured operators; its range (x{RANGE[0]:g} to x{RANGE[1]:g}) is chosen: "
    "no measured script has been timed on a GPU"
)


def measured_block(context: RankContext, measured: Measured, gpu: Machine) -> BlockTime:
    """The whole model's forward and backward of one micro-batch."""
    samples = context.workload.micro_batch
    scale = context.width.compute / measured.compute_bytes
    work, back = measured.forward, measured.backward
    forward = PassTime(
        matmul=_products(work, samples, gpu),
        attention=0.0,
        pointwise=_traffic(work, samples, gpu, scale),
    )
    backward = PassTime(
        matmul=_products(back, samples, gpu),
        attention=0.0,
        pointwise=_traffic(back, samples, gpu, scale),
        recompute=sum(forward) if context.strategy.recompute == "full" else 0.0,
    )
    return BlockTime(forward=forward, backward=backward, launches=work.operators.at(samples))


def _products(work: StepWork, samples: int, gpu: Machine) -> float:
    return max(0.0, work.flops.at(samples)) / gpu.matmul_flops


def _traffic(work: StepWork, samples: int, gpu: Machine, scale: float) -> float:
    moved = scale * max(0.0, work.moved_bytes.at(samples)) * fitted("pointwise") / gpu.memory_bytes
    return moved + work.operators.at(samples) * fitted("kernel_seconds")


def measured_on_cpu(workload: Workload, strategy: Strategy, cluster: Cluster) -> StepTime | None:
    """The step on the CPU that it was measured on; None where it was measured on another.

    One process was given all cores, so that ranks beside each other share them.

    Raises:
        UsageError: an impossible layout.
    """
    check_layout(workload, strategy)
    measured = workload.model.measured
    if measured is None or measured.device != "cpu" or measured.seconds is None:
        return None
    if measured.cpu not in {"", cpu_text(cluster)}:
        return None  # a store may be shared by several machines
    ranks = strategy.world_size
    seconds = measured.seconds.at(workload.micro_batch) * workload.accumulate * ranks
    flops = measured.flops(workload.micro_batch) * workload.accumulate * strategy.data_ranks
    low, high = CPU_RANGE
    source = f"a measured step: {measured.source}; its range (x{low:g} to x{high:g}) is chosen"
    shared = f"{ranks} ranks share the cores; their exchange of gradients is not measured"
    return StepTime(
        parts={"measured step": seconds},
        low=low,
        high=high,
        gpus=ranks,
        tokens=workload.tokens_per_step(strategy.data_ranks),
        unit="tokens" if workload.counts_tokens else "samples",
        model_flops=flops,
        hardware_flops=flops,
        peak_flops=None,
        assumptions=(source, shared) if ranks > 1 else (source,),
        sources=("workbench measure on this host",),
    )
