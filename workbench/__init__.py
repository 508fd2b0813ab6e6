"""The training workbench: describe → estimate → plan → launch → observe → diagnose → compare.

    import workbench as wb

    print(wb.request("gpt", ["--minutes", "2"]).shell())   # the exact command, nothing started
    run = wb.launch("gpt", ["--minutes", "2"])             # returns in milliseconds
    run.state, run.view()["loss_last"], run.logs(rank=0, tail=5)
    run.stop()                                             # checkpoint, stop, confirm
    print(wb.plan(workload, tokens=10e9).explain())        # which machines, which layout, and why
    wb.sweep("gpt", grid={"lr": [1e-3, 3e-3]})             # trials of the queue, see Sweep
    wb.attach("last")                                      # from any notebook or terminal
    wb.export(run, "slurm").write("job")                   # the same as files of an engine
    wb.scale("gpt", sizes=[1, 2, 4])                       # what more ranks gain and lose

Glossary. *Rank*: one training process. *World size*: number of ranks. *Step*: one optimizer step.
*Micro-batch*: sequences per forward pass and rank. *Global batch*: micro-batch x accumulation x
data-parallel ranks. *dp, tp, pp, cp, ep*: degrees of data, tensor, pipeline, context and expert
parallelism. *Reshard*: free gathered parameters after use. *Recompute*: activation checkpointing.
*MFU*: model FLOP/s over the hardware's dense peak. *Supervisor*: the detached process that watches
a run and outlives notebook and terminal.
"""

from __future__ import annotations

import importlib

from workbench.version import __version__

TYPE_CHECKING = False  # typing costs a third of this import, and a user's file may hide it
if TYPE_CHECKING:
    from typing import Any

    from workbench import recipes
    from workbench.compare.scaling_study import scale
    from workbench.describe import Cluster, Model, Strategy, Workload
    from workbench.describe.detection import detect_host
    from workbench.describe.job import Job
    from workbench.describe.prices import offers
    from workbench.engines.export_request import export
    from workbench.errors import (
        HostError,
        RunNotFoundError,
        StoreError,
        UnknownNameError,
        UsageError,
        WorkbenchError,
    )
    from workbench.estimate.inference import inference_memory
    from workbench.estimate.memory import training_memory
    from workbench.estimate.parts import Estimate
    from workbench.estimate.simulate import simulate
    from workbench.estimate.sizing import (
        explain,
        fewest_gpus,
        largest_micro_batch,
        longest_sequence,
        smallest_gpu,
        switches,
    )
    from workbench.estimate.step_time import step_time
    from workbench.launching.capture.log_values import log
    from workbench.launching.launch import attach, launch, start
    from workbench.launching.prepare.build_request import Request, request
    from workbench.launching.prepare.read_config import read_strategy
    from workbench.launching.run import Run
    from workbench.measuring.measure import measure
    from workbench.observe.doctor import doctor
    from workbench.observe.rows import runs
    from workbench.planning.planner import plan, plan_on
    from workbench.store.runs import Store
    from workbench.sweeping import sweep

_HOMES = {
    "Cluster": "workbench.describe",
    "Estimate": "workbench.estimate.parts",
    "HostError": "workbench.errors",
    "Job": "workbench.describe.job",
    "Model": "workbench.describe",
    "Request": "workbench.launching.prepare.build_request",
    "Run": "workbench.launching.run",
    "RunNotFoundError": "workbench.errors",
    "Store": "workbench.store.runs",
    "StoreError": "workbench.errors",
    "Strategy": "workbench.describe",
    "UnknownNameError": "workbench.errors",
    "UsageError": "workbench.errors",
    "WorkbenchError": "workbench.errors",
    "Workload": "workbench.describe",
    "attach": "workbench.launching.launch",
    "detect_host": "workbench.describe.detection",
    "doctor": "workbench.observe.doctor",
    "explain": "workbench.estimate.sizing",
    "export": "workbench.engines.export_request",
    "fewest_gpus": "workbench.estimate.sizing",
    "inference_memory": "workbench.estimate.inference",
    "largest_micro_batch": "workbench.estimate.sizing",
    "launch": "workbench.launching.launch",
    "log": "workbench.launching.capture.log_values",
    "longest_sequence": "workbench.estimate.sizing",
    "measure": "workbench.measuring.measure",
    "offers": "workbench.describe.prices",
    "plan": "workbench.planning.planner",
    "plan_on": "workbench.planning.planner",
    "read_strategy": "workbench.launching.prepare.read_config",
    "recipes": "workbench.recipes",
    "request": "workbench.launching.prepare.build_request",
    "runs": "workbench.observe.rows",
    "scale": "workbench.compare.scaling_study",
    "simulate": "workbench.estimate.simulate",
    "smallest_gpu": "workbench.estimate.sizing",
    "start": "workbench.launching.launch",
    "step_time": "workbench.estimate.step_time",
    "sweep": "workbench.sweeping",
    "switches": "workbench.estimate.sizing",
    "training_memory": "workbench.estimate.memory",
}

__all__ = [
    "Cluster",
    "Estimate",
    "HostError",
    "Job",
    "Model",
    "Request",
    "Run",
    "RunNotFoundError",
    "Store",
    "StoreError",
    "Strategy",
    "UnknownNameError",
    "UsageError",
    "WorkbenchError",
    "Workload",
    "__version__",
    "attach",
    "detect_host",
    "doctor",
    "explain",
    "export",
    "fewest_gpus",
    "inference_memory",
    "largest_micro_batch",
    "launch",
    "log",
    "longest_sequence",
    "measure",
    "offers",
    "plan",
    "plan_on",
    "read_strategy",
    "recipes",
    "request",
    "runs",
    "scale",
    "simulate",
    "smallest_gpu",
    "start",
    "step_time",
    "sweep",
    "switches",
    "training_memory",
]


if not TYPE_CHECKING:  # to a type checker every misspelled name would be one

    def __getattr__(name: str) -> Any:
        """Load a public name on first use, so that ``import workbench`` stays instant."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'workbench' has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if home == f"workbench.{name}" else getattr(module, name)
        globals()[name] = value
        return value


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext workbench``: the cell magic ``%%train``, which launches a cell on many ranks."""
    try:
        magic = importlib.import_module("workbench_widgets.train_cell")
    except ImportError as error:
        from workbench.errors import HostError, pip_install  # noqa: PLC0415

        raise HostError(
            f"%%train needs the widgets ({error}). Install them in this kernel: "
            f"{pip_install('training-workbench[lab]')}"
        ) from None
    magic.load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
