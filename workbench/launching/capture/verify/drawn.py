"""Which weights are as this process drew them: no checkpoint was loaded into them.

A new head that is frozen by mistake is as it was drawn. A frozen network that follows trained ones
on purpose (a perceptual loss, a reward model, a decoder) was trained before, and so was loaded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

_ELEMENTS = 8  # the first ones: of a parameter that is sharded later, rank 0 keeps them
_MOST = 20_000  # draws that are kept
_METHODS = ("normal_", "uniform_")  # of a tensor: weight.data.normal_() calls no torch.nn.init


class Drawn:
    """Watches the functions that draw weights, until the first step begins."""

    def __init__(self) -> None:
        self._marks = set[tuple[float, ...]]()
        self._restores: list[Callable[[], None]] = []
        owner: Any = torch.nn.init
        for name in dir(owner):
            # What is private is called by those, too, who have imported a public one before.
            if name.endswith("_") and (name[0] != "_" or name.startswith("_no_grad_")):
                self._watch(owner, name)
        for name in _METHODS:
            self._watch(torch.Tensor, name)

    def _watch(self, owner: Any, name: str) -> None:
        draw = getattr(owner, name)

        @functools.wraps(draw)
        def noted(*args: Any, **kwargs: Any) -> Any:
            tensor = draw(*args, **kwargs)
            with contextlib.suppress(Exception):  # a fake tensor has no elements
                mark = _mark(tensor)
                if mark is not None and self._restores and len(self._marks) < _MOST:
                    self._marks.add(mark)
            return tensor

        own = name in vars(owner)  # the methods of a tensor are inherited
        setattr(owner, name, noted)
        self._restores.append(
            functools.partial(setattr, owner, name, draw)
            if own
            else functools.partial(delattr, owner, name)
        )

    def among(self, named: Mapping[str, Any]) -> list[str]:
        """Of these parameters, those that are as they were drawn; what is drawn later is noise."""
        for restore in self._restores:
            restore()
        self._restores.clear()
        return [name for name, value in named.items() if _mark(value) in self._marks]


def _mark(tensor: Any) -> tuple[float, ...] | None:
    """Tells a drawn tensor from all others, whatever it was converted to; None of a constant."""
    local = tensor.detach()
    local = local.to_local() if hasattr(local, "placements") else local
    if local.is_meta or not local.is_floating_point():
        return None
    first = local.flatten()[:_ELEMENTS].to(torch.bfloat16).tolist()
    return tuple(first) if len(set(first)) > 1 else None
