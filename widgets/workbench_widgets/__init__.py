"""The faces of the training workbench in JupyterLab. Python computes, JavaScript only draws.

- `Workbench`: launch, watch and compare runs; the start notebook's one cell.
- `RunDashboard`: one run, live.
"""

from __future__ import annotations

from workbench_widgets.run_dashboard import RunDashboard

__all__ = ["RunDashboard"]
