"""The faces of the training workbench in JupyterLab. Python computes, JavaScript only draws.

- `Workbench`: launch, watch and compare runs; the start notebook's one cell.
- `Launcher`: the form that starts a run and shows the exact command first.
- `StrategyPicker`: how to spread a run, which rank then holds what, or why it cannot be.
- `RunDashboard`: one run, live.
- `FaultLab`: break a small training for real, and watch what is found.
- `Calibration`: measure this host, beside what the catalog promises; estimates then use it.
- `Export`: the same training on another engine: its files, or why it refuses.
- `Checkpoints`: what a run has saved, whether it is whole, and where to go on from.
- `Profile`: where each rank's time goes in some traced steps, and the traces.
- `Runs`: the table of a store.
- `QueuePanel`: the devices with who holds them, and the runs that wait for them.
- `DevicePicker`: tick the GPUs that a run is to have; its trait `value` is a launch's `devices`.
- `Sweep`: trials, figures and best run of a sweep, beside what was predicted; a form starts one.
- `Compare`: runs beside each other: curves, differences, and what reaching a loss cost.
- `MemoryCalculator`: what a job needs on its fullest GPU, and what would lower it.
- `Planner`: which machines and layout finish a run, for how much, how soon, and why.
- `ScalingStudy`: the same work on more and more ranks, what each loses, what more would do.
- `Talk`: prompts to the trained model, its answer beside its base's.
- `CostCalculator`: hours and dollars of a finished run, term by term.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench_widgets.cost.calculator import CostCalculator
    from workbench_widgets.faults.fault_lab import FaultLab
    from workbench_widgets.host.calibration import Calibration
    from workbench_widgets.host.scaling_study import ScalingStudy
    from workbench_widgets.launch.export import Export
    from workbench_widgets.launch.launcher import Launcher
    from workbench_widgets.memory.calculator import MemoryCalculator
    from workbench_widgets.planner.planner import Planner
    from workbench_widgets.queue.panel import QueuePanel
    from workbench_widgets.queue.picker import DevicePicker
    from workbench_widgets.run.checkpoints import Checkpoints
    from workbench_widgets.run.dashboard import RunDashboard
    from workbench_widgets.run.profile import Profile
    from workbench_widgets.store.compare import Compare
    from workbench_widgets.store.runs import Runs
    from workbench_widgets.strategy.picker import StrategyPicker
    from workbench_widgets.sweep.panel import Sweep
    from workbench_widgets.talk.talk import Talk
    from workbench_widgets.workbench import Workbench

__all__ = [
    "Calibration",
    "Checkpoints",
    "Compare",
    "CostCalculator",
    "DevicePicker",
    "Export",
    "FaultLab",
    "Launcher",
    "MemoryCalculator",
    "Planner",
    "Profile",
    "QueuePanel",
    "RunDashboard",
    "Runs",
    "ScalingStudy",
    "StrategyPicker",
    "Sweep",
    "Talk",
    "Workbench",
]
_HOMES = {
    "Calibration": "host.calibration",
    "Checkpoints": "run.checkpoints",
    "Compare": "store.compare",
    "CostCalculator": "cost.calculator",
    "DevicePicker": "queue.picker",
    "Export": "launch.export",
    "FaultLab": "faults.fault_lab",
    "Launcher": "launch.launcher",
    "MemoryCalculator": "memory.calculator",
    "Planner": "planner.planner",
    "Profile": "run.profile",
    "QueuePanel": "queue.panel",
    "RunDashboard": "run.dashboard",
    "Runs": "store.runs",
    "ScalingStudy": "host.scaling_study",
    "StrategyPicker": "strategy.picker",
    "Sweep": "sweep.panel",
    "Talk": "talk.talk",
    "Workbench": "workbench",
}
"""Face -> its module: a face is loaded when it is used, all of them would take seconds."""


if not TYPE_CHECKING:  # to a type checker every misspelled name would be one

    def __getattr__(name: str) -> Any:
        """Load a face on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'workbench_widgets' has no attribute {name!r}")
        face = getattr(importlib.import_module(f"workbench_widgets.{_HOMES[name]}"), name)
        globals()[name] = face
        return face


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
