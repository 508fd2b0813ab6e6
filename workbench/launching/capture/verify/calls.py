"""What is seen of the model's calls: mode, dropout, autocast, how many targets a loss counts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Calls:
    """Watches every module's forward; dropout is off, so that two runs can be compared."""

    def __init__(
        self, trains: Callable[[Any, Any, Any], None], enters: Callable[[Any], None]
    ) -> None:
        self._trains, self._enters = trains, enters
        self._stack: list[Any] = []
        self.dropouts = 0
        """Calls with a probability in the training; none was carried out."""
        self.eval_dropouts: dict[str, int] = {}
        """Calls inside a module that is in evaluation mode, by its class."""
        self.modes: list[bool] = []
        """Of the model, in each forward pass of the training in this step."""
        self.evaluated = False
        """Whether there was a forward pass without gradients."""
        self.autocast: str | None = None
        self.products: dict[str, int] = {}
        """Elements of weights of matrix products, by the data type of what came out."""
        self.ran: dict[int, Any] = {}
        """Modules in the order in which they first ran with gradients."""
        self.targets: list[dict[str, Any]] = []
        """Of each cross entropy in this step."""
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)
        self._patch_functions(torch.nn.functional)

    def next_step(self) -> None:
        """Begin the account of a step."""
        self.modes, self.targets = [], []

    def _patch_functions(self, functional: Any) -> None:
        for name in _DROPOUTS:
            setattr(functional, name, self._without(getattr(functional, name)))
        attention = functional.scaled_dot_product_attention

        @functools.wraps(attention)
        def attend(*args: Any, **kwargs: Any) -> Any:
            positional = list(args)
            probability = positional[4] if len(positional) > 4 else kwargs.get("dropout_p", 0.0)
            if probability:
                self._dropped()
                if len(positional) > 4:
                    positional[4] = 0.0
                else:
                    kwargs["dropout_p"] = 0.0
            return attention(*positional, **kwargs)

        functional.scaled_dot_product_attention = attend
        entropy = functional.cross_entropy

        @functools.wraps(entropy)
        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self._entropy(*args, **kwargs)
            return entropy(*args, **kwargs)

        functional.cross_entropy = cross_entropy

    def _without(self, function: Any) -> Any:
        @functools.wraps(function)
        def dropout(values: Any = None, *args: Any, **kwargs: Any) -> Any:
            options = dict(zip(("p", "training", "inplace"), args, strict=False))
            options = {"p": 0.5, "training": True, "inplace": False, **kwargs, **options}
            values = options.pop("input", values)
            if options["training"] and options["p"]:
                self._dropped()
            return function(values, **{**options, "training": False})

        return dropout

    def _dropped(self) -> None:
        inner = self._stack[-1] if self._stack else None
        # The outermost mode too: a submodule alone in evaluation mode may be meant so.
        if inner is not None and not inner.training and not self._stack[0].training:
            name = type(inner).__name__
            self.eval_dropouts[name] = self.eval_dropouts.get(name, 0) + 1
        else:
            self.dropouts += 1

    def _entropy(
        self, _input: Any, target: Any, *positional: Any, reduction: str = "mean", **kwargs: Any
    ) -> None:
        if target.is_floating_point() or not torch.is_grad_enabled():
            return
        ignored = kwargs.get("ignore_index", positional[2] if len(positional) > 2 else -100)
        valid = int((target != ignored).sum())
        self.targets.append({"reduction": reduction, "all": target.numel(), "valid": valid})

    def _enter(self, module: Any, _args: Any) -> None:
        if _in_backward():  # recomputed
            return
        with contextlib.suppress(Exception):
            if not self._stack:
                self._enters(module)
            self._note_autocast(module)
            if torch.is_grad_enabled():
                self.ran.setdefault(id(module), module)
            if isinstance(module, nn.RNNBase) and module.training and module.dropout:
                module.dropout = 0.0  # between its layers: the function of dropout is not called
                self.dropouts += 1
        self._stack.append(module)

    def _note_autocast(self, module: Any) -> None:
        kind = next(
            (parameter.device.type for parameter in module.parameters(recurse=False)), "cpu"
        )
        if torch.is_autocast_enabled(kind):
            self.autocast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    def _leave(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if _in_backward() or not self._stack:
            return
        while self._stack and self._stack.pop() is not module:
            pass  # one inside it raised
        with contextlib.suppress(Exception):
            if isinstance(module, _PRODUCTS) and torch.is_grad_enabled():
                kind = str(output.dtype).removeprefix("torch.")
                self.products[kind] = self.products.get(kind, 0) + module.weight.numel()
            if self._stack or next(module.parameters(), None) is None:
                return
            if not torch.is_grad_enabled():
                self.evaluated = True
            elif _leads_back(output):
                self.modes.append(module.training)
                self._trains(module, (args, kwargs), output)


def _leads_back(output: Any) -> bool:
    """Whether a backward pass can begin there; a frozen model (a teacher, a reward) trains not."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return not tensors or any(tensor.requires_grad for tensor in tensors)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
