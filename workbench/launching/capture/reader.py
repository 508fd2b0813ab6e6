"""Reads losses and gradient norms off a device without ever waiting for it.

Values on a GPU are read when their copy has ended (see `device_values`), usually one step later, so
that nothing synchronises the device. A step whose values cannot be had is recorded without them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from .device_values import DeviceValues
from .step_line import UNKNOWN_MEMORY

_DRAIN_SECONDS = 3.0
_AT_HAND = {float, type(None)}
_STEPS_UNASKED = 16

_Step: TypeAlias = tuple[dict[str, Any], list[float | None], int]
"""A line, its values with None for those on a device, and how many of them are losses."""


class ScalarReader:
    """Turns loss and gradient-norm tensors into numbers without ever waiting for a device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device: Any = None
        self._plain: type[Any] = torch.Tensor
        self._unasked = 0  # steps before it is asked again whether there is a GPU at work
        self._counts = True  # the allocator tells how much it has given out
        self._waiting: DeviceValues[_Step] = DeviceValues()

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
        values = [*losses, *(() if norm is None else (norm,))]
        on_device = [value for value in values if getattr(value, "is_cuda", False)]
        if on_device:
            self._device = on_device[0].device
        else:
            self._fill(line, [float(value) for value in values], len(losses))
            if not self._waiting:
                return [line]
        tensors = [value for value in values if isinstance(value, self._torch.Tensor)]
        numbers = [None if isinstance(value, self._torch.Tensor) else value for value in values]
        self._waiting.put((line, numbers, len(losses)), tensors if on_device else ())
        return self._lines(self._waiting.arrived())

    def drain(self) -> list[dict[str, Any]]:
        """All lines that still wait, at the end of the process; a hung device is not waited for."""
        return self._lines(self._waiting.drain(_DRAIN_SECONDS))

    def _lines(self, arrived: list[tuple[_Step, list[float] | None]]) -> list[dict[str, Any]]:
        """Lines with what has arrived of them; without values where the device has none."""
        for (line, numbers, losses), found in arrived:
            if found is not None:
                left = iter(found)
                values = [next(left) if number is None else number for number in numbers]
                self._fill(line, values, losses)
        return [line for (line, _, _), _ in arrived]

    @staticmethod
    def _fill(line: dict[str, Any], values: list[float], losses: int) -> None:
        """The sum of the first `losses` values, and the norm behind them, where there is one."""
        if losses:
            line["loss"] = sum(values[:losses])
        if len(values) > losses:
            line["grad_norm"] = values[losses]

    def device_memory(self) -> int | None:
        """Peak allocated on this rank's GPU; None on CPU. Reads a counter, no synchronisation.

        An allocator of the script's own (`CUDAPluggableAllocator`) has no counter, and raises: what
        is used is unknown then.
        """
        if self._unasked:
            self._unasked -= 1
            return None
        if not self._torch.cuda.is_initialized():
            self._unasked = _STEPS_UNASKED
            return None
        if self._counts:
            try:  # of the current device where no value has told which one is this rank's
                return self._torch.cuda.max_memory_allocated(self._device)
            except Exception:
                self._counts = False
        return UNKNOWN_MEMORY

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
