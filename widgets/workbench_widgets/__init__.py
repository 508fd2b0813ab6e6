"""The faces of the training workbench in JupyterLab. Python computes, JavaScript only draws.

- `Workbench`: launch, watch and compare runs; the start notebook's one cell.
- `Launcher`: the form that starts a run and shows the exact command first.
- `RunDashboard`: one run, live.
- `Runs`: the table of a store.
- `MemoryCalculator`: what a job needs on its fullest GPU, and what would lower it.
- `Planner`: which machines and layout finish a run, for how much, how soon, and why.
- `CostCalculator`: hours and dollars of a finished run, term by term.
"""

from __future__ import annotations

from workbench_widgets.cost_calculator import CostCalculator
from workbench_widgets.launcher import Launcher
from workbench_widgets.memory_calculator import MemoryCalculator
from workbench_widgets.planner import Planner
from workbench_widgets.run_dashboard import RunDashboard
from workbench_widgets.runs import Runs
from workbench_widgets.workbench import Workbench

__all__ = [
    "CostCalculator",
    "Launcher",
    "MemoryCalculator",
    "Planner",
    "RunDashboard",
    "Runs",
    "Workbench",
]
