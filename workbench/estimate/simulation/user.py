"""A user's own training function under the tracker.

The function is called once on fake CPU tensors and builds model, optimizer and data. It returns the
function that does one training step, or is a generator whose every ``yield`` ends a step (the code
before the first one builds). If it returns anything else, each call of it counts as one whole step.
Parameters, gradients and states are recognised where torch tells: when a module registers a
parameter, when ``backward`` is called and around an optimizer's step.
"""
# ruff: noqa: SLF001 - a module's own parameters, without its children's
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import gc
import inspect
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from workbench.describe import Strategy
from workbench.estimate.simulation.cuda import one_card
from workbench.estimate.simulation.cuda_queries import Memory
from workbench.estimate.simulation.distributed import ranks_of_one_process
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

_CARD_BYTES = 80 << 30  # what torch.cuda answers where no card was named


def run_function(
    function: Callable[[], Any],
    strategy: Strategy | None,
    *,
    steps: int,
    report: Report,
    card_bytes: int | None = None,
) -> dict[str, Any]:
    """Run the user's function and steps; `strategy` only sizes the fake process group.

    It sees one CUDA device of `card_bytes`, whatever this machine has.

    Raises:
        CannotSimulateError: it reads values, which fake tensors do not have.
    """
    began = time.perf_counter()
    notes = apply_patches()
    ranks = strategy.world_size if strategy is not None else 1
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _forget_results(fake)
    tracker = Tracker(fake)
    memory = Memory(tracker.trace, card_bytes or _CARD_BYTES)
    gc.disable()
    try:
        with contextlib.ExitStack() as simulated:
            for world in (fake, tracker, CudaBehaviour(), one_card(fake, memory)):
                simulated.enter_context(world)
            simulated.enter_context(ranks_of_one_process(tracker, ranks))
            simulated.enter_context(_watching(tracker))
            _run(function, tracker, steps, report)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotSimulateError(
            _of_library(error)
            or f"the step reads values that fake tensors do not have ({error}). Leave out .item(), "
            "printing of tensors and decisions on their values"
        ) from error
    except Exception as error:
        advice = _of_library(error)
        if advice is None:
            raise
        raise CannotSimulateError(advice) from error
    finally:
        gc.enable()
        tracker.close()
    if tracker.trace.keep_card():
        notes.append("tensors on the CPU are host memory: only what lies on cuda is counted")
    notes.append("only what the function itself does is in it; of DDP its buckets")
    return analyse(tracker.trace) | {
        "per_stage": [],
        "seconds": time.perf_counter() - began,
        "assumptions": notes,
        "versions": versions(),
    }


_LIBRARIES = {
    "deepspeed": "DeepSpeed's engine works on real memory. Simulate the plain model under "
    "fully_shard, which shards what ZeRO-3 shards, or use the closed form: strategy zero1 to zero3",
    "bitsandbytes": "bitsandbytes packs real values. Simulate a Workload with quantization='nf4' "
    "or optimizer='adamw-8bit', whose sizes are the same",
}


def _of_library(error: BaseException) -> str | None:
    """What to do where a library that cannot work on fake tensors raised it."""
    packages = {
        part
        for frame in traceback.extract_tb(error.__traceback__)
        for part in PurePath(frame.filename).parts
    }
    return next((advice for name, advice in _LIBRARIES.items() if name in packages), None)


def _forget_results(fake: FakeTensorMode) -> None:
    """Keep no weak reference to results: `Module.to` swaps parameters, which forbids any."""
    converter = fake.fake_tensor_converter
    remember = converter.set_tensor_memo

    def remember_inputs(tensor: Any, result: Any) -> None:
        if not tensor.is_meta:
            remember(tensor, result)

    converter.set_tensor_memo = remember_inputs  # type: ignore[method-assign]


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
    # Modules, not parameters: `Module.to` swaps fake parameters, which no weak reference may hold.
    modules: weakref.WeakSet[Any] = weakref.WeakSet()
    optimizers: Any = torch.optim.Optimizer
    backward, create = torch.autograd.backward, optimizers.__init__

    def registered(module: Any, _name: str, parameter: Any) -> None:
        if parameter is not None:
            modules.add(module)
            tracker.mark([parameter], PARAMETERS)

    def recorded(*arguments: Any, **options: Any) -> Any:
        parameters = _parameters(modules)
        tracker.mark(parameters, PARAMETERS)  # again: they may have moved or changed their dtype
        tracker.trace.enter(BACKWARD)
        result = backward(*arguments, **options)
        tracker.mark([each.grad for each in parameters if each.grad is not None], GRADIENTS)
        tracker.trace.enter(FORWARD)
        return result

    def created(optimizer: Any, *arguments: Any, **options: Any) -> None:
        create(optimizer, *arguments, **options)
        fill = getattr(type(optimizer), "fill_qmap", None)
        if fill is not None:
            optimizer.fill_qmap = partial(_fill_levels, fill, optimizer, tracker)

    def before(optimizer: Any, *_call: Any) -> None:
        tracker.trace.enter(OPTIMIZER_STEP)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        tracker.mark(parameters, PARAMETERS)
        tracker.mark([each.grad for each in parameters if each.grad is not None], GRADIENTS)

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
    torch.autograd.backward, optimizers.__init__ = recorded, created
    try:
        yield
    finally:
        torch.autograd.backward, optimizers.__init__ = backward, create
        for handle in handles:
            handle.remove()


def _fill_levels(fill: Callable[[Any], None], optimizer: Any, tracker: Tracker) -> None:
    """Compute the levels of bitsandbytes' 8-bit states from real values, then make them fake."""
    with unset_fake_temporarily():
        fill(optimizer)
    for name, values in optimizer.name2qmap.items():
        optimizer.name2qmap[name] = tracker.fake_mode.from_tensor(values)


def _parameters(modules: Iterable[Any]) -> list[Any]:
    return [each for module in modules for each in module._parameters.values() if each is not None]
