"""A user's own training function under the tracker.

The function is called once on fake CPU tensors and builds model, optimizer and data. It returns the
function that does one training step, or is a generator whose every ``yield`` ends a step (the code
before the first one builds). If it returns anything else, each call of it counts as one whole step.
Parameters, gradients and states are recognised where torch tells: when a module registers a
parameter, when ``backward`` is called and around an optimizer's step.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import gc
import inspect
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from workbench.describe import Strategy
from workbench.estimate.simulation.emulation import CudaBehaviour
from workbench.estimate.simulation.optimizers import states_of
from workbench.estimate.simulation.patches import apply_patches
from workbench.estimate.simulation.refusal import CannotSimulateError
from workbench.estimate.simulation.run import analyse, versions
from workbench.estimate.simulation.step import Report
from workbench.estimate.simulation.trace import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    OPTIMIZER_STEP,
    PARAMETERS,
)
from workbench.estimate.simulation.tracker import Tracker


def run_function(
    function: Callable[[], Any], strategy: Strategy | None, *, steps: int, report: Report
) -> dict[str, Any]:
    """Run the user's function and steps; `strategy` only sizes the fake process group.

    Raises:
        CannotSimulateError: it reads values, which fake tensors do not have.
    """
    began = time.perf_counter()
    notes = apply_patches()
    ranks = strategy.world_size if strategy is not None else 1
    if ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tracker = Tracker(fake)
    gc.disable()
    try:
        with fake, tracker, CudaBehaviour(), _watching(tracker):
            _run(function, tracker, steps, report)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotSimulateError(
            f"the step reads values that fake tensors do not have ({error}). Leave out .item(), "
            "printing of tensors and decisions on their values"
        ) from error
    finally:
        gc.enable()
        tracker.close()
        if ranks > 1:
            dist.destroy_process_group()
    notes.append("only what the function itself does is in it; DDP is not simulated")
    return analyse(tracker.trace) | {
        "per_stage": [],
        "seconds": time.perf_counter() - began,
        "assumptions": notes,
        "versions": versions(),
    }


def _run(function: Callable[[], Any], tracker: Tracker, steps: int, report: Report) -> None:
    report(0.1, "building")
    if inspect.isgeneratorfunction(function):
        iterator: Iterator[Any] = function()
        next(iterator)

        def step() -> Any:
            return next(iterator, None)

    else:
        built = function()
        step = built if callable(built) else function
    for index in range(steps):
        tracker.trace.enter(FORWARD)
        step()
        gc.collect(1)
        report(0.1 + 0.7 * (index + 1) / steps, f"step {index + 1} of {steps}")


@contextmanager
def _watching(tracker: Tracker) -> Generator[None]:
    """Recognise parameters, backward passes and optimizer steps while the block runs."""
    parameters: weakref.WeakSet[Any] = weakref.WeakSet()
    backward = torch.autograd.backward

    def registered(_module: Any, _name: str, parameter: Any) -> None:
        if parameter is not None:
            parameters.add(parameter)
            tracker.mark([parameter], PARAMETERS)

    def recorded(*arguments: Any, **options: Any) -> Any:
        tracker.trace.enter(BACKWARD)
        result = backward(*arguments, **options)
        tracker.mark([each.grad for each in parameters if each.grad is not None], GRADIENTS)
        tracker.trace.enter(FORWARD)
        return result

    def before(optimizer: Any, *_call: Any) -> None:
        tracker.trace.enter(OPTIMIZER_STEP)
        mine = [each for group in optimizer.param_groups for each in group["params"]]
        tracker.mark(mine, PARAMETERS)
        tracker.mark([each.grad for each in mine if each.grad is not None], GRADIENTS)

    def after(optimizer: Any, *_call: Any) -> None:
        states, host = states_of(optimizer)
        tracker.mark(states, OPTIMIZER)
        tracker.mark(host, OPTIMIZER, host=True)
        tracker.trace.enter(FORWARD)

    handles = [
        register_module_parameter_registration_hook(registered),
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]
    torch.autograd.backward = recorded
    try:
        yield
    finally:
        torch.autograd.backward = backward
        for handle in handles:
            handle.remove()
