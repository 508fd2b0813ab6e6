"""A CUDA device without a GPU: tensors that say they are on one, and a device that lags behind.

Operators run at once, on the CPU. What counts is what the host asks of the device: a copy to pinned
memory has ended when `run` was called since; whatever has to wait for the device is counted, and is
an error while a graph is captured, as asking whether a copy has ended is (cudaEventQuery).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as tree
from typing_extensions import Self

CAPTURE_ERROR = "CUDA error: operation not permitted when stream is capturing"


class Device:
    """What the host has asked for, and what is still to be done."""

    def __init__(self) -> None:
        self.waits = 0
        """How often the host had to wait for the device."""
        self.pinned = 0
        """How often pinned memory was allocated."""
        self.initialized, self.capturing, self.broken = True, False, False
        self._queue: list[Callable[[], object]] = []

    def wait(self) -> None:
        if self.capturing:
            raise RuntimeError(CAPTURE_ERROR)
        self.waits += 1
        self.run()

    def later(self, work: Callable[[], object]) -> None:
        self._queue.append(work)

    def run(self) -> None:
        """The device does all that it was given."""
        queue, self._queue = self._queue, []
        for work in queue:
            work()


device = Device()


class CudaTensor(torch.Tensor):
    """`plain` (on the CPU), as a tensor of cuda:0."""

    plain: torch.Tensor

    def __new__(cls, plain: torch.Tensor) -> Self:
        place: Any = torch.device("cuda:0")
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, plain.size(), strides=plain.stride(), dtype=plain.dtype, device=place
        )
        made.plain = plain
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        device.wait()
        return f"cuda {self.plain!r}"

    def __getitem__(self, index: Any) -> CudaTensor:
        return CudaTensor(self.plain[index])  # Python's own asks for a real device

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in {"_local_scalar_dense", "is_nonzero", "equal"}:
            device.wait()
        plain_args, plain = tree.tree_map_only(CudaTensor, lambda one: one.plain, (args, kwargs))
        if name == "copy_" and not isinstance(args[0], CudaTensor):
            if not (kwargs.get("non_blocking") or True in args[2:]):
                device.wait()
            source = plain_args[1].clone()
            device.later(functools.partial(plain_args[0].copy_, source))
            return args[0]
        to_cpu = name == "_to_copy" and torch.device(kwargs.get("device") or "cuda").type == "cpu"
        if to_cpu:
            device.wait()
        plain.pop("device", None)
        result = func(*plain_args, **plain)
        return result if to_cpu else tree.tree_map_only(torch.Tensor, CudaTensor, result)


class Event:
    """Has happened when the device has come to where it was recorded."""

    def __init__(self) -> None:
        self._there = True

    def record(self) -> None:
        self._there = False
        device.later(lambda: setattr(self, "_there", True))

    def query(self) -> bool:
        if device.capturing:
            raise RuntimeError(CAPTURE_ERROR)
        if device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._there

    def synchronize(self) -> None:
        device.wait()


def use(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Let torch have that device."""
    device.__init__()
    empty = torch.empty

    def counted(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if pin_memory and device.capturing:
            raise RuntimeError(CAPTURE_ERROR)
        device.pinned += pin_memory
        return empty(*args, **kwargs).fill_(-1.0) if pin_memory else empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", counted)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: device.initialized)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: device.capturing)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device=None: 1 << 30)
    return device
