"""Observes pipelines: torch's schedules and DeepSpeed's PipelineEngine.

In a pipeline no rank calls ``loss.backward()`` for itself, and only the last stage knows the loss.
Every rank counts its optimizer steps all the same, and records as "time of entering backward" when
it enters the schedule. Nothing is imported: the patches wait for the script to do it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .losses import divided
from .pulse import BACKWARD
from .recorder import Recorder

_MOST_WORKS = 1024  # that no one has waited for
Outermost = Callable[[Recorder], AbstractContextManager[bool]]
"""patches.outermost: whether no observed backward is on the stack yet."""


def patch_schedules(recorder: Recorder, outermost: Outermost, module: Any) -> None:
    """torch.distributed.pipelining.schedules: a step is entered, its losses are handed over."""
    for schedule in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        schedule.step = _entered(recorder, outermost, schedule.step)
    waits = getattr(module, "_wait_batch_p2p", None)
    if waits is not None:
        module._wait_batch_p2p = functools.partial(_timed, recorder, waits)  # noqa: SLF001
    base = module._PipelineSchedule  # noqa: SLF001 - no public place sees the losses
    update = base._update_losses  # noqa: SLF001

    @functools.wraps(update)
    def update_losses(self: Any, stages: Any, losses: Any) -> None:
        if getattr(self, "_has_backward", False):
            with contextlib.suppress(Exception):
                own = getattr(self, "_internal_losses", ())  # empty but at the last stage
                share = len(own) if getattr(self, "scale_grads", True) else 1
                for loss in own:
                    recorder.loss(divided(loss, share))
        update(self, stages, losses)

    base._update_losses = update_losses  # noqa: SLF001


def patch_messages(recorder: Recorder, module: Any) -> None:
    """torch.distributed.distributed_c10d: how long messages of peers are waited for (gloo).

    No flight recorder has them. What is sent in one batch is waited for at the first of its works.
    """
    send, wait, sent = module.batch_isend_irecv, module.Work.wait, set[int]()

    @functools.wraps(send)
    def batch_isend_irecv(*args: Any, **kwargs: Any) -> Any:
        works = send(*args, **kwargs)
        if len(sent) > _MOST_WORKS:
            sent.clear()
        sent.update(id(work) for work in works)  # a work keeps its tensors: hold none
        return works

    @functools.wraps(wait)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in sent:
            return wait(self, *args, **kwargs)
        sent.discard(id(self))
        return _timed(recorder, wait, self, *args, **kwargs)

    module.batch_isend_irecv, module.Work.wait = batch_isend_irecv, timed


def _timed(recorder: Recorder, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `wait`, and add what it took to the step's waiting, once."""
    begun, before = time.perf_counter(), recorder.waited
    try:
        return wait(*args, **kwargs)
    finally:
        recorder.waited = before + time.perf_counter() - begun


def _entered(recorder: Recorder, outermost: Outermost, function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "_has_backward", False):  # evaluation
            return function(self, *args, **kwargs)
        with outermost(recorder) as first:
            if first:
                recorder.backward()
            return function(self, *args, **kwargs)

    return step


def patch_deepspeed(recorder: Recorder, outermost: Outermost, module: Any) -> None:
    """deepspeed.runtime.pipe.engine: train_batch returns the mean loss on every rank.

    It steps the optimizer inside, before that loss is known: the whole batch is the step.
    """
    engine_class = module.PipelineEngine
    function = engine_class.train_batch

    @functools.wraps(function)
    def train_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with outermost(recorder) as first:
            entered, skipped = time.time(), getattr(self, "skipped_steps", None)
            if first:
                recorder.pulse.beat(BACKWARD, recorder.steps)
            recorder.engine_depth += 1
            try:
                loss = function(self, *args, **kwargs)
            finally:
                recorder.engine_depth -= 1
        if (
            first and getattr(self, "skipped_steps", None) == skipped
        ):  # fp16: an overflow is no step
            recorder.backward(loss, at=entered)
            recorder.step(_rate(self), self)
        return loss

    engine_class.train_batch = train_batch


def _rate(engine: Any) -> float | None:
    try:
        return float(engine.get_lr()[0])
    except Exception:
        return None
