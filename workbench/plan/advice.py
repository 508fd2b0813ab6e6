"""Rules of thumb as functions: each states its condition, its evidence and the number it used.

The rules come from the articles this project started from, corrected where they are wrong. All are
pure; `advise` asks those that need nothing but the job and its machines.
"""

from __future__ import annotations

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.errors import UsageError
from workbench.plan.advice_links import (
    all_reduce_time,
    larger_or_more,
    mixed_gpus,
    nvlink_or_pcie,
    recompute_cost,
)
from workbench.plan.advice_machine import checkpoint_advice, instance_sanity, spot_or_not
from workbench.plan.advice_memory import (
    ddp_or_fsdp,
    memory_rubric,
    need_more_gpus,
    state_bytes,
    zero_savings,
)
from workbench.plan.advice_value import Advice
from workbench.plan.learning_rate import (
    Rate,
    batch_limits,
    critical_batch_tokens,
    learning_rate_advice,
    scaled_rate,
)

__all__ = [
    "Advice",
    "Rate",
    "advise",
    "all_reduce_time",
    "batch_limits",
    "checkpoint_advice",
    "critical_batch_tokens",
    "ddp_or_fsdp",
    "instance_sanity",
    "larger_or_more",
    "learning_rate_advice",
    "memory_rubric",
    "mixed_gpus",
    "need_more_gpus",
    "nvlink_or_pcie",
    "recompute_cost",
    "scaled_rate",
    "spot_or_not",
    "state_bytes",
    "zero_savings",
]


def advise(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> tuple[Advice, ...]:
    """Every rule that the job and its machines alone can answer, the first questions first.

    Args:
        workload: what is trained.
        strategy: how it is spread.
        cluster: where; its accelerator must be in the catalog.
        conditions: what was measured there.

    Raises:
        UsageError: an impossible layout, or an accelerator that is not in the catalog.
    """
    gpu, count = cluster.accelerator, cluster.world_size
    if gpu is None:
        raise UsageError("The cluster's accelerator is not in the catalog: name a GPU.")
    found = [
        need_more_gpus(workload, gpu, conditions=conditions),
        memory_rubric(workload, gpu),
        batch_limits(workload, strategy, cluster),
        recompute_cost(workload, strategy, cluster, conditions),
    ]
    if count > 1:
        found += [
            ddp_or_fsdp(workload, cluster, conditions),
            nvlink_or_pcie(workload, strategy, cluster, conditions),
            all_reduce_time(2 * workload.model.parameters, cluster, conditions),
        ]
        if not workload.lora_rank:
            found.append(zero_savings(workload, count))
    return tuple(found)
