"""What autograd keeps for backward, without computing: FakeTensorMode and saved-tensor hooks."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from workbench.errors import UsageError

Storages = dict[int, torch.UntypedStorage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Bytes for one sample."""

    total: int
    """All storages that autograd keeps, each once."""
    largest_block: int
    """Those of the block that keeps most, without its inputs."""
    boundaries: int
    """The blocks' inputs, each storage once."""


@dataclass(slots=True)
class _Ledger:
    """Storages by place. They are held on to, so that no address is used twice."""

    static: Storages
    saved: Storages = field(default_factory=Storages)
    boundaries: Storages = field(default_factory=Storages)
    open_blocks: list[tuple[nn.Module, Storages, Storages]] = field(
        default_factory=list[tuple[nn.Module, Storages, Storages]]
    )
    largest_block: int = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd keeps."""
        for key, storage in _storages((tensor,)).items():
            if key not in self.static:
                self.saved[key] = storage
                for _, _, own in self.open_blocks:
                    own[key] = storage
        return tensor

    def enter(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        """A block begins: its inputs are what full recompute keeps of it."""
        inputs = {
            key: storage
            for key, storage in _storages(tree_leaves((args, kwargs))).items()
            if key not in self.static
        }
        self.boundaries.update(inputs)
        self.open_blocks.append((block, inputs, Storages()))

    def leave(self, block: nn.Module, _args: Any, _output: Any) -> None:
        """A block is done."""
        ended, inputs, own = self.open_blocks.pop()
        assert ended is block
        saved = sum(storage.nbytes() for key, storage in own.items() if key not in inputs)
        self.largest_block = max(self.largest_block, saved)


def trace(module: nn.Module, blocks: Sequence[nn.Module], example_inputs: Any) -> Saved:
    """Run forward on fake tensors and weigh what autograd keeps, per sample of the first dimension.

    The module runs in its present mode (train or eval). The loss is the caller's and not included;
    neither is what a block hides by checkpointing itself.

    Raises:
        UsageError: inputs without a batch, inputs it cannot run, nothing that gets a gradient.
    """
    if not any(weight.requires_grad for weight in module.parameters()):
        raise UsageError(
            f"No parameter of {type(module).__name__} gets a gradient: autograd keeps nothing. "
            "Unfreeze what is trained first (requires_grad_)."
        )
    if not module.training:
        warnings.warn(
            f"{type(module).__name__} is in eval mode: dropout and batch norm keep nothing. Call "
            ".train() to describe training.",
            stacklevel=4,
        )
    batch = _batch_size(example_inputs)
    ledger = _run(module, blocks, example_inputs)
    return Saved(
        total=_per_sample(_weight(ledger.saved), batch),
        largest_block=_per_sample(ledger.largest_block, batch),
        boundaries=_per_sample(_weight(ledger.boundaries), batch),
    )


def _run(module: nn.Module, blocks: Sequence[nn.Module], example_inputs: Any) -> _Ledger:
    device = next(iter(module.parameters())).device
    device = torch.device("cpu") if device.type == "meta" else device

    def fake(value: object) -> Any:
        return _fake(value, device)

    with FakeTensorMode(allow_non_fake_inputs=True):
        state = {
            name: fake(tensor)
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        args, kwargs = _arguments(tree_map(fake, example_inputs))
        ledger = _Ledger(static=_storages(state.values()))
        try:
            # Compiled code under fake tensors ends the process; eager keeps what is described.
            with (
                torch.compiler.set_stance("force_eager"),
                _watched(blocks, ledger),
                _quiet(),
                saved_tensors_hooks(ledger.pack, lambda packed: packed),
            ):
                functional_call(module, state, args, kwargs)
        except Exception as error:
            first = str(error).strip().split("\n", 1)[0][:300].rstrip(".")
            raise UsageError(
                f"{type(module).__name__} could not run on the example inputs without computing: "
                f"{type(error).__name__}: {first}. Give one batch as its forward takes it (a "
                "tensor, a tuple, or a dict of keyword arguments); a forward that branches on "
                "values must be measured in a real run instead."
            ) from error
    return ledger


def _fake(value: object, device: torch.device) -> Any:
    """A tensor's twin on `device` (fake, in that mode); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    twin = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    twin.requires_grad_(value.requires_grad)
    return nn.Parameter(twin, value.requires_grad) if isinstance(value, nn.Parameter) else twin


@contextlib.contextmanager
def _watched(blocks: Sequence[nn.Module], ledger: _Ledger) -> Generator[None]:
    handles = [block.register_forward_pre_hook(ledger.enter, with_kwargs=True) for block in blocks]
    handles += [block.register_forward_hook(ledger.leave) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without torch's own log of a failure that the caller reports anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), cast("dict[str, Any]", inputs)
    if isinstance(inputs, tuple | list):
        return tuple(cast("Sequence[Any]", inputs)), {}
    return (inputs,), {}


def _batch_size(example_inputs: Any) -> int:
    for leaf in tree_leaves(example_inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0]:
            return leaf.shape[0]
    raise UsageError(
        "example_inputs holds no tensor with a batch in its first dimension. Give one batch: a "
        "tensor, a tuple, or a dict of keyword arguments."
    )


def _storages(values: Any) -> Storages:
    storages = Storages()
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage._cdata] = storage  # noqa: SLF001  # pyright: ignore  (the storage's identity)
    return storages


def _weight(storages: Storages) -> int:
    return sum(storage.nbytes() for storage in storages.values())


def _per_sample(count: int, batch: int) -> int:
    return -(-count // batch)
