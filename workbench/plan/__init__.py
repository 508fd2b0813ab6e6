"""From workload, tokens and limits to ranked plans, each with its reasons. Pure, like estimate."""

from workbench.plan.market import Limits
from workbench.plan.planner import plan, plan_on
from workbench.plan.plans import Plan, Plans, Sensitivity
from workbench.plan.rejected import Rejected, Rejection
from workbench.plan.space import Space

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
