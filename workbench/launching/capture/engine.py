"""Observes DeepSpeed's engine, which owns accumulation, scaling, clipping and the step itself."""

from __future__ import annotations

import functools
from typing import Any

from .backward import observed
from .losses import divided
from .models import observe_forward
from .recorder import Recorder
from .rewinds import patch_engine


def patch(recorder: Recorder, module: Any) -> None:
    """deepspeed.runtime.engine: the loss as it is divided; a step where it really steps."""
    owner = module.DeepSpeedEngine
    owner.backward = observed(recorder, owner.backward, _divided)
    owner.step = _observed_step(recorder, owner.step)
    construct = owner.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.engine_depth += 1  # ZeRO steps once to make its states
        try:
            construct(self, *args, **kwargs)
        finally:
            recorder.engine_depth -= 1
        recorder.models.add(self.module)

    owner.__init__ = init
    observe_forward(recorder, owner)
    patch_engine(recorder, owner)


def _divided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What ``engine.backward(loss)`` differentiates, before its own scaling of fp16."""
    owner = args[0]
    loss = args[1] if len(args) > 1 else kwargs.get("loss")
    undivided = kwargs.get("scale_wrt_gas") is False
    return [divided(loss, 1 if undivided else owner.gradient_accumulation_steps())]


def _observed_step(recorder: Recorder, function: Any) -> Any:
    """One call per micro-batch; the step is where the engine's own count continues.

    fp16 overflow skips the update: no step. The gradient norm is known only afterwards.
    """

    @functools.wraps(function)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, rate = _counts(self), _rate(self)
        if recorder.looks is not None and self.is_gradient_accumulation_boundary():
            recorder.looks.finish()
        recorder.engine_depth += 1
        try:
            result = function(self, *args, **kwargs)
        finally:
            recorder.engine_depth -= 1
        after = _counts(self)
        if after[0] > before[0] and after[1] == before[1]:
            norm = getattr(self, "_global_grad_norm", None)
            if norm is not None:
                recorder.grad_norm(norm)
            used = recorder.overrides
            recorder.step(rate if used is None or used.rate is None else used.rate, self)
        elif after[1] > before[1]:
            recorder.drop_losses()
        return result

    return step


def _counts(engine: Any) -> tuple[int, int]:
    return getattr(engine, "global_steps", 0), getattr(engine, "skipped_steps", 0)


def _rate(engine: Any) -> float | None:
    try:
        return float(engine.get_lr()[0])
    except Exception:
        return None
