"""Time of one optimizer step in closed form: compute, exposed communication, bubble, waiting."""

from __future__ import annotations

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.describe.counting import active_parameters
from workbench.errors import UsageError
from workbench.estimate.memory import check_layout
from workbench.estimate.timing import StepTime


def step_time(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> StepTime:
    """Seconds of one optimizer step, in named parts, with a range.

    Args:
        workload: What is trained.
        strategy: How it is spread; its ranks must be the cluster's.
        cluster: Where; its accelerator must be in the catalog.
        conditions: What was measured on it; None = a healthy machine that nobody measured.

    Raises:
        UsageError: an impossible layout, or a cluster whose accelerator is unknown.
    """
    check_layout(workload, strategy)
    accelerator = cluster.accelerator
    if accelerator is None:
        raise UsageError("The cluster's accelerator is not in the catalog: its rates are unknown.")
    peak = accelerator.peak_flops(workload.precision)
    if peak is None:
        raise UsageError(f"{accelerator.name} has no {workload.precision} matmuls.")
    tokens = workload.tokens_per_step(strategy.data_ranks)
    flops = 6.0 * active_parameters(workload.model) * tokens
    seconds = flops / (peak * strategy.world_size) / 0.45
    return StepTime(
        parts={"matmul": seconds},
        low=0.8,
        high=1.3,
        gpus=strategy.world_size,
        tokens=tokens,
        model_flops=flops,
        hardware_flops=flops,
        peak_flops=peak * strategy.world_size,
        assumptions=("first version",),
    )
