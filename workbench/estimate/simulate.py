"""Exact training memory without a GPU: the real model and layout on fake tensors, in a subprocess.

The closed form answers at once; this answers exactly, in seconds, and says where the peak lies. The
child process loads torch and transformers; this module loads neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from workbench.describe import Strategy, Workload
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate.simulation.process import Progress, SimulationProcess
from workbench.estimate.simulation.result import (
    SimulatedStage,
    Simulation,
    SimulationUnavailable,
)

__all__ = [
    "SimulatedStage",
    "Simulation",
    "SimulationProcess",
    "SimulationUnavailable",
    "simulate",
    "simulate_many",
    "start_simulation",
]

What = Workload | Job | Callable[[], object]


def simulate(
    what: What,
    strategy: Strategy | None = None,
    *,
    steps: int = 2,
    card_bytes: int | None = None,
    on_progress: Progress | None = None,
    timeout_seconds: float = 300.0,
) -> Simulation:
    """Run `steps` training steps of one rank on fake tensors and report its peak memory.

    `what` is a workload, a job (which has its layout), or a function of your own that builds
    everything and returns the function that does one step (or a generator that yields after every
    step). Shapes are real, values are not: leave out ``.item()``. For a function, `strategy` only
    sets the number of ranks of the fake process group; the function itself calls ``fully_shard``,
    DDP and the like. It sees one CUDA device (of `card_bytes`, else 80 GiB) also where there is
    none: what it moves there is counted, what it leaves on the CPU is host memory.

    Args:
        what: the workload, the job or the function.
        strategy: layout; None = the job's, or one GPU.
        steps: optimizer steps; two, because the first one allocates the optimizer's states.
        card_bytes: what the card leaves to the allocator; answered by ``Simulation.fits``.
        on_progress: called with (fraction, text).
        timeout_seconds: kill the child after this long.

    Raises:
        SimulationUnavailable: it cannot be simulated; the message says why. Use the closed form.
        UsageError: steps is not positive.
    """
    process = start_simulation(
        what, strategy, steps=steps, card_bytes=card_bytes, timeout_seconds=timeout_seconds
    )
    return process.wait(on_progress)


def start_simulation(
    what: What,
    strategy: Strategy | None = None,
    *,
    steps: int = 2,
    card_bytes: int | None = None,
    timeout_seconds: float = 300.0,
) -> SimulationProcess:
    """Start a simulation and return its handle at once; arguments as for `simulate`."""
    request = _request(what, strategy, steps, card_bytes)
    return SimulationProcess([request], timeout_seconds=timeout_seconds)


def simulate_many(
    pairs: Iterable[tuple[What, Strategy | None]],
    *,
    steps: int = 2,
    card_bytes: int | None = None,
    on_progress: Progress | None = None,
    timeout_seconds: float = 300.0,
) -> list[Simulation]:
    """Simulate several (what, strategy) in one child, which loads torch only once.

    Raises:
        SimulationUnavailable: at the first pair that cannot be simulated.
    """
    requests = [_request(target, strategy, steps, card_bytes) for target, strategy in pairs]
    if not requests:
        return []
    process = SimulationProcess(requests, timeout_seconds=timeout_seconds)
    return process.wait_all(on_progress)


def _request(
    target: What, strategy: Strategy | None, steps: int, card_bytes: int | None
) -> dict[str, Any]:
    if steps < 1:
        raise UsageError(f"steps must be at least 1, not {steps}.")
    common = {"steps": steps, "card_bytes": card_bytes}
    if isinstance(target, Job):
        target, strategy = target.workload, strategy or target.strategy
    if isinstance(target, Workload):
        layout = strategy if strategy is not None else Strategy(name="single")
        plain = replace(target, calibration=None)
        return {**common, "workload": plain, "strategy": layout}
    if not callable(target):
        raise UsageError(f"Give a Workload, a Job or a function, not {type(target).__name__}.")
    return {**common, "function": target, "strategy": strategy}
