"""Sees every storage that one fake training step creates, and when it goes.

Peak memory follows from storages, not tensors: views share one. A storage is known by its C++
address; a weak reference tells its end. FSDP2 frees by ``resize_(0)``, so that is watched too.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeArgument=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.estimate.simulation.cuda import on_card
from workbench.estimate.simulation.trace import UNSHARDED, Trace

_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001  (its only name)


class _Reference(weakref.ref):
    """A weak reference that knows the key and the place of its storage."""

    __slots__ = ("key", "on_cpu")


class Tracker(TorchDispatchMode):
    """Records allocations and releases into `trace` while it is the active mode."""

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()
        self.trace = Trace()
        self.fake_mode = fake_mode
        self._live: dict[int, tuple[int, Any]] = {}
        self._streams: dict[int, tuple[int, Any]] = {}
        self._resize = torch.UntypedStorage.resize_
        self._stream_of = torch.cpu.current_stream

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # DTensor first turns the call into calls on its local tensors
        # A fake collective's result is its input; waiting for it would make a copy.
        result = args[0] if func is _WAIT else func(*args, **(kwargs or {}))
        if active_fake_mode() is self.fake_mode:  # else DTensor is only working out shapes
            if isinstance(result, torch.Tensor):
                self.add(result)
            elif isinstance(result, list | tuple):
                for item in result:
                    if isinstance(item, torch.Tensor):
                        self.add(item)
        return result

    def __enter__(self) -> Any:
        resize, tracker = self._resize, self

        def watched(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            tracker.resized(storage, size)
            return result

        torch.UntypedStorage.resize_ = watched  # pyright: ignore[reportAttributeAccessIssue]
        return super().__enter__()

    def __exit__(self, *details: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*details)

    def add(self, tensor: Any, part: str | None = None) -> None:
        """Record the storage of `tensor`, if it is new and not on the meta device."""
        if tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  (the identity of a storage)
        if key not in self._live:
            self._born(key, storage, storage.nbytes(), on_cpu=not on_card(tensor))
        if part is not None:
            number = self._live[key][0]
            if number >= 0:
                self.trace.blocks[number].part = part

    def mark(self, tensors: Iterable[Any], part: str, *, host: bool = False) -> None:
        """Say what the storages of `tensors` are, for their whole life."""
        for tensor in tensors:
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001
            entry = self._live.get(local.untyped_storage()._cdata)  # noqa: SLF001
            if entry is not None and entry[0] >= 0:
                self.trace.blocks[entry[0]].part = part
                self.trace.blocks[entry[0]].host = host

    def resized(self, storage: Any, size: int) -> None:
        """A storage was resized in place: free the old bytes, allocate the new ones."""
        entry = self._live.get(storage._cdata)  # noqa: SLF001
        if entry is None:
            return
        number, reference = entry
        on_cpu = reference.on_cpu
        if number >= 0:
            self.trace.free(number)
        number = -1
        if size:
            number = self._allocate(size, on_cpu=on_cpu)
            self.trace.blocks[number].part = UNSHARDED
        self._live[storage._cdata] = (number, reference)  # noqa: SLF001

    def close(self) -> None:
        """Stop recording releases: what still lives at the end of the run belongs to it."""
        self._live.clear()

    def _born(self, key: int, storage: Any, size: int, *, on_cpu: bool) -> None:
        reference = _Reference(storage, self._gone)
        reference.key, reference.on_cpu = key, on_cpu
        self._live[key] = (self._allocate(size, on_cpu=on_cpu) if size else -1, reference)

    def _allocate(self, size: int, *, on_cpu: bool) -> int:
        stream = self._stream_of()
        number = self._streams.setdefault(id(stream), (len(self._streams), stream))[0]
        saving = torch.is_grad_enabled()
        return self.trace.allocate(size, number, saving=saving, on_cpu=on_cpu)

    def _gone(self, reference: Any) -> None:
        entry = self._live.pop(reference.key, None)
        if entry is not None and entry[0] >= 0:
            self.trace.free(entry[0])
