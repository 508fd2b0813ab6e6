"""The faces of the training workbench in JupyterLab. Python computes, JavaScript only draws.

- `Workbench`: launch, watch and compare runs; the start notebook's one cell.
- `Launcher`: the form that starts a run and shows the exact command first.
- `RunDashboard`: one run, live.
- `Runs`: the table of a store.
- `MemoryCalculator`: what a job needs on its fullest GPU, and what would lower it.
"""

from __future__ import annotations

from workbench_widgets.launcher import Launcher
from workbench_widgets.memory_calculator import MemoryCalculator
from workbench_widgets.run_dashboard import RunDashboard
from workbench_widgets.runs import Runs
from workbench_widgets.workbench import Workbench

__all__ = ["Launcher", "MemoryCalculator", "RunDashboard", "Runs", "Workbench"]
