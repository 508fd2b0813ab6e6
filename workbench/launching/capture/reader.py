"""Reads losses and gradient norms off a device without ever waiting for it.

Values on a GPU are copied to pinned memory without blocking and read when the copy has ended, at
the earliest one step later, so that nothing synchronises the device.
"""

from __future__ import annotations

import collections
import time
from typing import Any

_DRAIN_SECONDS = 3.0
_AT_HAND = {float, type(None)}
_STEPS_UNASKED = 16
_MAX_WAITING = 64  # steps a device may lag before its values are waited for


class ScalarReader:
    """Turns loss and gradient-norm tensors into numbers without ever waiting for a device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device: Any = None
        self._plain: type[Any] = torch.Tensor
        self._unasked = 0  # steps before it is asked again whether there is a GPU at work
        self._waiting: collections.deque[tuple[dict[str, Any], Any, Any]] = collections.deque()

    def waits_for(self, losses: list[Any], norm: Any) -> bool:
        """Whether a line with these values has to wait for a device, or for lines before it.

        `norm` is what `scalar` made of it.
        """
        return bool(self._waiting) or not _AT_HAND.issuperset(map(type, (*losses, norm)))

    def add(self, line: dict[str, Any], losses: list[Any], norm: Any) -> list[dict[str, Any]]:
        """Queue `line` with its values; return the lines whose values have arrived.

        The step's loss is the sum of `losses`.
        """
        norm = self.scalar(norm)
        on_device = [value for value in (*losses, norm) if getattr(value, "is_cuda", False)]
        if not on_device:
            loss = sum(map(float, losses)) if losses else None
            self._fill(line, loss, None if norm is None else float(norm))
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
        """Copy loss and norm to pinned memory without blocking, and mark the copy's end."""
        torch = self._torch

        def on_device(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                value = torch.full((), float(value), device=self._device)
            return value.float().to(self._device, non_blocking=True)

        unknown = float("nan")
        loss = torch.stack([on_device(loss) for loss in losses]).sum() if losses else unknown
        pair = [on_device(loss), on_device(unknown if norm is None else norm)]
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
        if self._unasked:
            self._unasked -= 1
            return None
        if not self._torch.cuda.is_initialized():
            self._unasked = _STEPS_UNASKED
            return None
        return self._torch.cuda.max_memory_allocated(self._device)  # None: the current one

    def _arrived(self, *, keep: int) -> list[dict[str, Any]]:
        """Lines whose copies have ended; the oldest are waited for when over `keep` are queued."""
        ready: list[dict[str, Any]] = []
        while self._waiting and (len(self._waiting) > keep or self._waiting[0][2].query()):
            line, (buffer, has_loss, has_norm), event = self._waiting.popleft()
            event.synchronize()
            loss, norm = buffer.tolist()
            self._fill(line, loss if has_loss else None, norm if has_norm else None)
            ready.append(line)
        return ready

    @staticmethod
    def _fill(line: dict[str, Any], loss: float | None, norm: float | None) -> None:
        if loss is not None:
            line["loss"] = loss
        if norm is not None:
            line["grad_norm"] = norm

    def scalar(self, value: Any) -> Any:
        """A number, or a detached one-element tensor on a device; None for anything else."""
        if type(value) is self._plain and not value.is_cuda:  # by far the most usual
            return float(value.item()) if value.numel() == 1 else None
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, self._torch.Tensor) or value.numel() != 1:
            return None
        local = value.detach()
        if hasattr(local, "full_tensor"):  # a norm over shards; every rank that clips is here
            local = local.full_tensor()
        if local.numel() != 1:
            return None
        return local.reshape(()) if local.is_cuda else float(local)
