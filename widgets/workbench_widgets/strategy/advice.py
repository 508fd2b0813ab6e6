"""The rules of thumb on one job, as plain values for the planner's and the picker's panel."""

from __future__ import annotations

from typing import Any

import workbench as wb
from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.job_function import takes_job
from workbench.planning.advice import Advice, RunFacts, advise, batch_limits


@takes_job
def advice(
    workload: Workload, strategy: Strategy, cluster: Cluster | str, facts: RunFacts | None = None
) -> list[dict[str, Any]]:
    """Each rule that answers, what is to be done first; on CPU the batch alone."""
    try:
        if isinstance(cluster, Cluster) and cluster.accelerator is None:
            rules: tuple[Advice, ...] = (batch_limits(workload, strategy, cluster),)
        else:
            rules = advise(workload, strategy, cluster, facts)
    except wb.UsageError:
        return []
    order = {False: 0, True: 1, None: 2}
    names = ("rule", "holds", "verdict", "reason", "next")
    ranked = sorted(rules, key=lambda advice: order[advice.holds])
    return [{name: getattr(advice, name) for name in names} for advice in ranked]


def advice_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The rules that ask for something, for pages without JavaScript."""
    return [
        f"Advice: {row['verdict']} {row['next']}".strip() for row in rows if row["holds"] is False
    ]
