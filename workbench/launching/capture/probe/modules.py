"""The module tree of a measured step: what each module holds, reads and keeps for backward."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .ledger import Ledger, Storage

MAX_ROWS = 20_000  # of the record: what a reader needs are blocks, not every layer of thousands


class Call:
    """One forward of one module that has not ended."""

    __slots__ = ("module", "saved")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.saved: set[Storage] = set()


class Calls:
    """Watches the forward of every module while the step is traced."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.roots: dict[nn.Module, list[Any]] = {}  # with the shapes of their first inputs
        self.counts: dict[nn.Module, int] = {}
        self.saved: dict[nn.Module, int] = {}
        self.inputs: dict[nn.Module, int] = {}
        self.autocast: str | None = None
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    def close(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        self._ledger.calls.clear()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        kind = self._ledger.device.type
        if not self._ledger.calls and torch.is_autocast_enabled(kind):
            self.autocast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        self._ledger.calls.append(Call(module))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        """A module returned, or it or one inside it raised."""
        calls = self._ledger.calls
        call = calls.pop()
        while call.module is not module and calls:
            call = calls.pop()
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not calls and module not in self.roots:
            self.roots[module] = [
                [list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in leaves
            ]
        lives = {self._ledger.life_of(leaf) for leaf in leaves}
        inputs = {life for life in lives if life is not None and life.kind in {"made", "input"}}
        self.counts[module] = self.counts.get(module, 0) + 1
        for sizes, storages in ((self.saved, call.saved - inputs), (self.inputs, inputs)):
            sizes[module] = sizes.get(module, 0) + sum(life.nbytes for life in storages)

    def outermost(self) -> list[nn.Module]:
        """The modules with parameters that the script called itself, in the order of their calls.

        One that a later call reaches through another (the network inside its DDP wrapper) counts
        with that one; a loss has no parameters.
        """
        inner: set[nn.Module] = set()
        for root in self.roots:
            for child in root.children():
                inner.update(child.modules())
        own = [root for root in self.roots if root not in inner]
        return [root for root in own if next(iter(root.parameters()), None) is not None]

    def tree(self, root: nn.Module) -> list[dict[str, Any]]:
        """What each module in `root` holds, reads and keeps."""
        named = cast("list[tuple[str, nn.Module]]", list(root.named_modules()))  # pyright: ignore[reportUnknownArgumentType]
        return [self._row(path, module) for path, module in named[:MAX_ROWS]]

    def _row(self, path: str, module: nn.Module) -> dict[str, Any]:
        weights = list(module.parameters())
        return {
            "path": path,
            "class": type(module).__name__,
            "container": isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict),
            "parameters": sum(weight.numel() for weight in weights),
            "trained": sum(weight.numel() for weight in weights if weight.requires_grad),
            "calls": self.counts.get(module, 0),
            "saved_bytes": self.saved.get(module, 0),
            "input_bytes": self.inputs.get(module, 0),
        }
