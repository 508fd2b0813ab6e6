"""From workload, tokens and limits to ranked plans, each with its reasons. Pure, like estimate."""

from workbench.planning.market import Limits
from workbench.planning.planner import plan, plan_on
from workbench.planning.plans import Plan, Plans, Sensitivity
from workbench.planning.rejected import Rejected, Rejection
from workbench.planning.space import Space

__all__ = [
    "Limits",
    "Plan",
    "Plans",
    "Rejected",
    "Rejection",
    "Sensitivity",
    "Space",
    "plan",
    "plan_on",
]
