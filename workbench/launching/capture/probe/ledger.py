"""Every storage of one optimizer step: its birth and its death, counted in operators.

A dispatch mode sees each operator with the tensors that it makes; a weak reference to their storage
tells when it is freed. So the bytes alive at every operator are known without an allocator, on a
CPU as on a GPU. What a storage was is known only at the end of the step (a gradient is one that a
parameter's `grad` has then), so the account keeps the storages and sums later.

What lies in memory before the step begins is counted by what it is: parameters, buffers, gradients,
optimizer states. A tensor that was not made in the step and that a module reads all the same (a
batch fetched ahead, a mask) counts as an input from where it is first read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

FORWARD, BACKWARD, STEP = "forward", "backward", "step"
_NO_KERNEL = {"_unsafe_view", "lift_fresh", "t_", "transpose_", "squeeze_", "unsqueeze_", "detach_"}
"""Operators that move nothing, though their schema does not call them views."""
_LOOKUPS = {"embedding", "_embedding_bag", "index", "index_select", "gather"}
"""Operators that read only the rows of their table that they return."""
_KNOWN_NAMESPACES = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp"}
"""Of torch: what has no formula there is no matrix product. A kernel of others may be one."""


class Storage:
    """One storage's life."""

    __slots__ = ("birth", "death", "kind", "nbytes", "saved")

    def __init__(self, birth: int, nbytes: int, kind: str) -> None:
        self.birth, self.nbytes, self.kind = birth, nbytes, kind
        self.death: int | None = None
        self.saved = False


class Work:
    """What one phase of the step computes."""

    def __init__(self) -> None:
        self.operators = 0
        self.flops: dict[str, float] = {}
        self.moved_bytes = 0.0


class Ledger(TorchDispatchMode):
    """The account of one step on one device."""

    def __init__(self, device: torch.device) -> None:
        """Begin at the end of a step."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.device = device
        self.storages: list[Storage] = []
        self.phases: list[str] = []
        self.work = {phase: Work() for phase in (FORWARD, BACKWARD, STEP)}
        self.in_step = 0
        self.calls: list[Any] = []  # of modules, the outermost first
        self.paused = False
        self.unknown: set[str] = set()
        self._living: dict[int, tuple[Storage, Any]] = {}

    @property
    def now(self) -> int:
        """Operators so far."""
        return len(self.phases)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.paused:
            self._operator(func, args, kwargs, result)
        return result

    def _operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        phase = self._phase()
        self.phases.append(phase)
        inputs = list(self._tensors((args, kwargs)))
        if self.calls:
            self.read(inputs)
        outputs = list(self._tensors(result))
        for tensor in outputs:
            self._note(tensor, "made")
        self._count(self.work[phase], func, (args, kwargs, result), (inputs, outputs))

    def keep(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Tensors that live before the step begins, and what they are; the first name counts."""
        for tensor in self._tensors(list(tensors)):
            self._note(tensor, kind)

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """What storages that were made in the step have turned out to be."""
        for tensor in tensors:
            life = self.life_of(tensor)
            if life is not None and life.kind == "made":
                life.kind = kind

    def _phase(self) -> str:
        if self.in_step:
            return STEP
        return BACKWARD if torch._C._current_graph_task_id() != -1 else FORWARD  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def _tensors(self, value: Any) -> Iterator[torch.Tensor]:
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self.device.type:
                yield leaf

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tensors that are there: those that no one made in this step are inputs."""
        for tensor in tensors:
            self._note(tensor, "input")

    def batch(self, value: Any) -> None:
        """A loader handed over a batch, made while the account was paused."""
        self.read(self._tensors(value))

    def _note(self, tensor: torch.Tensor, kind: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  (its identity)
        size = storage.nbytes()
        entry = self._living.get(key)
        if entry is not None and entry[0].nbytes == size:
            return
        if entry is not None:  # resized
            entry[0].death = self.now
        life = Storage(self.now, size, kind)
        self.storages.append(life)
        self._living[key] = (life, weakref.ref(storage, lambda _: self._freed(key, life)))

    def _freed(self, key: int, life: Storage) -> None:
        life.death = self.now
        entry = self._living.get(key)
        if entry is not None and entry[0] is life:
            del self._living[key]

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep a tensor for backward, as autograd does, and note it."""
        life = self.life_of(tensor)
        if life is not None and life.kind in {"made", "input"}:
            life.saved = True
            for call in self.calls:
                call.saved.add(life)
        return tensor

    def life_of(self, tensor: torch.Tensor) -> Storage | None:
        """The account of the storage of `tensor`; None for one that lived before, or elsewhere."""
        if tensor.device.type != self.device.type:
            return None
        entry = self._living.get(tensor.untyped_storage()._cdata)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return None if entry is None else entry[0]

    def _count(self, work: Work, func: Any, call: Any, tensors: tuple[Any, Any]) -> None:
        packet = func._overloadpacket  # noqa: SLF001
        name = packet.__name__
        if func.is_view or name in _NO_KERNEL:
            return
        work.operators += 1
        formula = _formula(packet, name)
        if formula is None:
            work.moved_bytes += _moved_bytes(name, *tensors)
            if "rnn" in name or "lstm" in name or "gru" in name:
                self.unknown.add(name)
            elif func.namespace not in _KNOWN_NAMESPACES:
                self.unknown.add(f"{func.namespace}.{name}")
            return
        args, kwargs, result = call
        kind = _kind(name)
        work.flops[kind] = work.flops.get(kind, 0.0) + formula(*args, **kwargs, out_val=result)


def _formula(packet: Any, name: str) -> Any:
    """FLOPs of an operator; torch has none of the CPU's attention, which is called as CUDA's is."""
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        packet = getattr(torch.ops.aten, name.replace("_for_cpu", ""))
    return flop_registry.get(packet)


def _moved_bytes(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    read = outputs if name in _LOOKUPS else inputs
    return sum(tensor.numel() * tensor.element_size() for tensor in (*read, *outputs))


def _kind(name: str) -> str:
    if "conv" in name:
        return "convolution"
    return "attention" if "attention" in name else "matmul"
