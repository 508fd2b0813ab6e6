"""Observes wrapped models: when the step's forward begins, and parameters that get no gradient."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, ClassVar

from . import failures, norms
from .recorder import Recorder

_LOOKS = 16  # optimizer steps at which parameters without a gradient are looked for


class _Unused:
    """DDP models that are still looked at, with what was seen of each, and how often."""

    models: ClassVar[weakref.WeakKeyDictionary[Any, _Unused]] = weakref.WeakKeyDictionary()
    steps = 0
    waiting = False  # asking the dictionary costs two calls a step

    def __init__(self) -> None:
        self.first: int | None = None  # step
        self.looks = 0
        self.never: set[str] = set()  # got a gradient in no step so far
        self.ever: set[str] = set()  # got none in some step

    def add(self, step: int, unused: set[str]) -> None:
        """What one step shows."""
        if self.first is None:
            self.first, self.never = step, set(unused)
        self.looks += 1
        self.never &= unused
        self.ever |= unused


def patch_ddp(recorder: Recorder, module: Any) -> None:
    """torch.nn.parallel.distributed."""
    owner = module.DistributedDataParallel
    observe_forward(recorder, owner)
    construct = owner.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        recorder.models.add(self)
        inner = sum(isinstance(module, owner) for module in self.module.modules())
        if inner:
            recorder.note(wrapped_inside=inner)
        _Unused.models[self] = _Unused()
        _Unused.steps, _Unused.waiting = 0, True

    owner.__init__ = init


def patch_fsdp(recorder: Recorder, module: Any) -> None:
    """torch.distributed.fsdp.fully_sharded_data_parallel."""
    owner = module.FullyShardedDataParallel
    observe_forward(recorder, owner)
    norms.patch_method(recorder, owner)


def patch_fsdp2(recorder: Recorder, module: Any) -> None:
    """torch.distributed.fsdp._fully_shard: hooks of its own, run before each sharded module."""
    owner = module.FSDPState
    enter = owner._root_pre_forward  # noqa: SLF001 - no public place sees the forward begin

    @functools.wraps(enter)
    def root_pre_forward(self: Any, entered: Any, *args: Any, **kwargs: Any) -> Any:
        if not sys.modules["torch"].compiler.is_compiling():
            recorder.forward(training=entered.training)
        return enter(self, entered, *args, **kwargs)

    owner._root_pre_forward = root_pre_forward  # noqa: SLF001


def observe_forward(recorder: Recorder, owner: Any) -> None:
    """Wrap a class' ``forward``, in which the step's forward pass begins."""
    forward = owner.forward

    @functools.wraps(forward)
    def observed_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not sys.modules["torch"].compiler.is_compiling():  # a compiled forward stays one graph
            recorder.forward(training=self.training)
        try:
            return forward(self, *args, **kwargs)
        except Exception as error:
            failures.note(recorder, "forward pass", error)
            raise

    owner.forward = observed_forward


def look_for_unused(recorder: Recorder) -> None:
    """In the first steps: which parameters of a DDP model took no part in the backward pass.

    A model none of whose parameters has a gradient has not been trained yet (the other half of a
    GAN). Where DDP looks for unused parameters other steps may use others (a head per task); where
    it does not, the first step tells of all.
    """
    if not _Unused.waiting:
        return
    _Unused.steps += 1
    _Unused.waiting = bool(_Unused.models) and _Unused.steps < _LOOKS
    for model, account in list(_Unused.models.items()):
        trained = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        unused = [name for name, parameter in trained if parameter.grad is None]
        if len(unused) == len(trained):
            continue
        account.add(recorder.steps, set(unused))
        searches = bool(getattr(model, "find_unused_parameters", False))
        last = not searches or not _Unused.waiting
        if last:
            _Unused.models.pop(model, None)
        if last or account.looks == 1:
            recorder.note(
                unused_parameters={
                    "count": len(account.never),
                    "first": next((name for name in unused if name in account.never), None),
                    "sometimes": len(account.ever - account.never),
                    "parameters": len(trained),
                    "find_unused_parameters": searches,
                    "step": account.first,
                    "looks": account.looks,
                    "last": last,
                }
            )
