"""Observes torch and accelerate after the script has imported them; changes nothing they compute.

Each patch is applied when its module has been loaded, by a finder at the front of ``sys.meta_path``
that steps aside once it has wrapped the module's loader. Values on a GPU are copied to pinned
memory without blocking and read when the copy has ended, at the earliest one step later, so that
nothing synchronises the device.
"""

from __future__ import annotations

import collections
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .recorder import Recorder

_DRAIN_SECONDS = 3.0
_MAX_WAITING = 64  # steps a device may lag before its values are waited for


def arm(recorder: Recorder) -> None:
    """Patch each library as soon as the script imports it."""
    sys.meta_path.insert(
        0,
        _AfterImport(
            {
                "torch": functools.partial(_patch_torch, recorder),
                "torch.distributed.distributed_c10d": functools.partial(_patch_group, recorder),
                "accelerate.accelerator": functools.partial(_patch_accelerate, recorder),
            }
        ),
    )


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls an action with the module once one of the named modules has been executed."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in self._actions:
            return None
        action = self._actions.pop(fullname)
        if not self._actions:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            try:
                action(module)
            except Exception as error:
                if os.environ.get("WORKBENCH_CAPTURE_DEBUG"):
                    sys.stderr.write(f"workbench capture hook, {fullname}: {error!r}\n")

        spec.loader.exec_module = exec_module
        return spec


class _Depth:
    """How many observed backward calls are on the stack: only the outermost one counts."""

    backward = 0


def _patch_torch(recorder: Recorder, torch: Any) -> None:
    recorder.reader = ScalarReader(torch)
    _patch_backward(recorder, torch)
    _patch_grad_norm(recorder, torch)
    _patch_scaler(torch)
    hook_module = sys.modules["torch.optim.optimizer"]

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            lr = optimizer.param_groups[0].get("lr")
            recorder.step(float(lr) if isinstance(lr, int | float) else None)
        except Exception:
            return

    hook_module.register_optimizer_step_post_hook(after_step)


def _observed(recorder: Recorder, function: Callable[..., Any], loss_at: int) -> Callable[..., Any]:
    """Wrap a backward function: record its entry, and stop before it when a stop is due."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if sys.modules["torch"].compiler.is_compiling():  # a compiled step stays one graph
            return function(*args, **kwargs)
        if _Depth.backward == 0 and os.getpid() == recorder.owner:
            if recorder.stop_due():
                _stop(recorder)
            loss = args[loss_at] if len(args) > loss_at else kwargs.get("loss")
            recorder.backward(_unscaled(loss))
        _Depth.backward += 1
        try:
            return function(*args, **kwargs)
        finally:
            _Depth.backward -= 1

    return wrapper


def _patch_backward(recorder: Recorder, torch: Any) -> None:
    torch.Tensor.backward = _observed(recorder, torch.Tensor.backward, 0)


def _patch_accelerate(recorder: Recorder, module: Any) -> None:
    accelerator_class = module.Accelerator
    accelerator_class.backward = _observed(recorder, accelerator_class.backward, 1)
    construct = accelerator_class.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        recorder.accelerator = self

    accelerator_class.__init__ = init
    clip = accelerator_class.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        norm = clip(self, *args, **kwargs)
        if norm is not None:
            recorder.grad_norm(norm)
        return norm

    accelerator_class.clip_grad_norm_ = clip_grad_norm_


def _patch_grad_norm(recorder: Recorder, torch: Any) -> None:
    clip = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        recorder.grad_norm(norm)
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_


_scaled: dict[int, Any] = {}


def _patch_scaler(torch: Any) -> None:
    """``scaler.scale(loss).backward()``: remember the loss behind the scaled one."""
    scaler_class = torch.amp.GradScaler
    scale = scaler_class.scale

    @functools.wraps(scale)
    def remember(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if isinstance(result, torch.Tensor):
            _scaled.clear()
            _scaled[id(result)] = (result, outputs)
        return result

    scaler_class.scale = remember


def _unscaled(loss: Any) -> Any:
    entry = _scaled.pop(id(loss), None)
    return entry[1] if entry is not None and entry[0] is loss else loss


def _patch_group(recorder: Recorder, module: Any) -> None:
    create = module.init_process_group

    @functools.wraps(create)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = create(*args, **kwargs)
        try:
            recorder.group_ready(module.get_world_size(), str(module.get_backend()))
        except Exception:
            return result
        return result

    module.init_process_group = init_process_group


def _stop(recorder: Recorder) -> None:
    """Leave at the agreed step: save what Accelerate knows how to save, then exit cleanly."""
    recorder.stopped_at = recorder.steps
    accelerator = recorder.accelerator
    if accelerator is not None:
        folder = os.path.join(os.environ["WORKBENCH_RUN_DIR"], "checkpoints")
        final = os.path.join(folder, f"step-{recorder.steps:08d}")
        partial = os.path.join(folder, f"partial-step-{recorder.steps:08d}")
        if not os.path.exists(final):
            saved = accelerator.save_state(partial)
            accelerator.wait_for_everyone()
            if os.path.abspath(saved) != os.path.abspath(partial):
                final = saved  # the script's own automatic naming wins
            elif accelerator.is_main_process:
                os.rename(partial, final)
            accelerator.wait_for_everyone()
        recorder.checkpoint = final
        accelerator.end_training()
    print(f"\nworkbench: stopped at step {recorder.steps} as asked", flush=True)  # noqa: T201
    raise SystemExit(0)


class ScalarReader:
    """Turns loss and gradient-norm tensors into numbers without ever waiting for a device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device: Any = None
        self._waiting: collections.deque[tuple[dict[str, Any], Any, Any]] = collections.deque()

    def add(self, line: dict[str, Any], losses: list[Any], norm: Any) -> list[dict[str, Any]]:
        """Queue `line` with its values; return the lines whose values have arrived."""
        norm = self.scalar(norm)
        on_device = [value for value in (*losses, norm) if getattr(value, "is_cuda", False)]
        if not on_device:
            self._fill(line, [float(one) for one in losses], None if norm is None else float(norm))
            return [*self._arrived(keep=0), line] if self._waiting else [line]
        try:
            self._device = on_device[0].device
            with self._torch.cuda.device(self._device):
                if not self._torch.cuda.is_current_stream_capturing():
                    self._enqueue(line, losses, norm)
                    return self._arrived(keep=_MAX_WAITING)
        except Exception:  # values on several devices: the step still counts
            return [line]
        return [line]

    def _enqueue(self, line: dict[str, Any], losses: list[Any], norm: Any) -> None:
        """Copy mean loss and norm to pinned memory without blocking, and mark the copy's end."""
        torch = self._torch

        def on_device(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                value = torch.full((), float(value), device=self._device)
            return value.float().to(self._device, non_blocking=True)

        unknown = float("nan")
        mean = torch.stack([on_device(one) for one in losses]).mean() if losses else unknown
        pair = [on_device(mean), on_device(unknown if norm is None else norm)]
        buffer = torch.empty(2, dtype=torch.float32, pin_memory=True)
        buffer.copy_(torch.stack(pair), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((line, (buffer, bool(losses), norm is not None), event))

    def drain(self) -> list[dict[str, Any]]:
        """All lines that still wait, at the end of the process; a hung device is not waited for."""
        ready: list[dict[str, Any]] = []
        deadline = time.monotonic() + _DRAIN_SECONDS
        try:
            while self._waiting and time.monotonic() < deadline:
                ready += self._arrived(keep=_MAX_WAITING)
                time.sleep(0.005)
        except Exception:
            self._waiting.clear()
        return [*ready, *(line for line, _, _ in self._waiting)]

    def device_memory(self) -> int | None:
        """Peak allocated on this rank's GPU; None on CPU. Reads a counter, no synchronisation."""
        if self._device is None or not self._torch.cuda.is_initialized():
            return None
        return self._torch.cuda.max_memory_allocated(self._device)

    def _arrived(self, *, keep: int) -> list[dict[str, Any]]:
        """Lines whose copies have ended; the oldest are waited for when over `keep` are queued."""
        ready: list[dict[str, Any]] = []
        while self._waiting and (len(self._waiting) > keep or self._waiting[0][2].query()):
            line, (buffer, has_loss, has_norm), event = self._waiting.popleft()
            event.synchronize()
            loss, norm = buffer.tolist()
            self._fill(line, [loss] if has_loss else [], norm if has_norm else None)
            ready.append(line)
        return ready

    @staticmethod
    def _fill(line: dict[str, Any], losses: list[float], norm: float | None) -> None:
        if losses:
            line["loss"] = sum(losses) / len(losses)
        if norm is not None:
            line["grad_norm"] = norm

    def scalar(self, value: Any) -> Any:
        """A detached one-element tensor or a number; None for anything else."""
        if isinstance(value, (int, float)):
            return value
        if not isinstance(value, self._torch.Tensor) or value.numel() != 1:
            return None
        local = getattr(value.detach(), "_local_tensor", value.detach())
        return local.reshape(()) if local.numel() == 1 else None
