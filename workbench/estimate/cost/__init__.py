"""What a run costs: its plan, its hours, each term of the bill, and spot machines."""

from workbench.estimate.cost.plan import RunPlan, checkpoint_bytes, gpu_hours, hours_of
from workbench.estimate.cost.run_cost import RunCost, run_cost

__all__ = ["RunCost", "RunPlan", "checkpoint_bytes", "gpu_hours", "hours_of", "run_cost"]
