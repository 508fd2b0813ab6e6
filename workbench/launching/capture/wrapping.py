"""Lets FSDP gather a script's own model block by block when no block class was given.

Hugging Face's models name their blocks (``_no_split_modules``). Of any other model Accelerate then
makes one unit: all weights are gathered at once, and no activation is recomputed. The repeated
block is found in the model itself, on every rank alike.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

_CONTAINERS = {"ModuleList", "ModuleDict", "Sequential"}


def patch(module: Any) -> None:
    """accelerate.utils.dataclasses."""
    plugin = module.FullyShardedDataParallelPlugin
    choose = plugin.set_auto_wrap_policy

    @functools.wraps(choose)
    def set_auto_wrap_policy(self: Any, model: Any) -> Any:
        names = self.transformer_cls_names_to_wrap
        by_class = getattr(self.auto_wrap_policy, "__name__", "") == "transformer_auto_wrap_policy"
        if by_class and not names and not getattr(model, "_no_split_modules", None):
            classes = block_classes(model)
            if classes:
                self.transformer_cls_names_to_wrap = classes
                _say(classes)
        return choose(self, model)

    plugin.set_auto_wrap_policy = set_auto_wrap_policy


def block_classes(model: Any) -> list[str]:
    """The classes of the model's repeated blocks; [] = it has none that FSDP could gather alone.

    Blocks are several modules of one class below one parent. Of blocks in blocks (experts,
    attention heads) the outermost count: every rank calls those, at the same place.
    """
    named = _named_by_parts(model)
    if named:
        return named
    owners = _owners(model)
    return list(dict.fromkeys(type(block).__name__ for block in _outermost(model, owners)))


def _named_by_parts(model: Any) -> list[str]:
    """What a model of Hugging Face inside the script's own module names."""
    present = {type(part).__name__ for part in model.modules()}
    named = [name for part in model.modules() for name in _no_split(part)]
    return [name for name in dict.fromkeys(named) if name in present]


def _no_split(part: Any) -> list[str]:
    return list(getattr(part, "_no_split_modules", None) or ())


def _outermost(parent: Any, owners: Counter[int]) -> Iterator[Any]:
    children: list[Any] = list(parent.children())
    counts = Counter(child.__class__ for child in children)
    for child in children:
        if counts[child.__class__] < 2 or not _is_block(child):
            yield from _outermost(child, owners)
        elif _has_weights_alone(child, owners):
            yield child


def _is_block(module: Any) -> bool:
    """Whether it is made of parts and is called as one module."""
    if type(module).__name__ in _CONTAINERS or not any(True for _ in module.children()):
        return False
    return getattr(module.__class__.forward, "__name__", "") != "_forward_unimplemented"


def _has_weights_alone(block: Any, owners: Counter[int]) -> bool:
    """Whether it has weights, none of them another module's too: such a one is of no one unit."""
    inside = _owners(block)
    return bool(inside) and all(owners[value] == count for value, count in inside.items())


def _owners(model: Any) -> Counter[int]:
    """Of each parameter, at how many places of the model it stands."""
    parts = [part for _, part in model.named_modules(remove_duplicate=False)]
    return Counter(id(parameter) for part in parts for parameter in part.parameters(recurse=False))


def _say(names: list[str]) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(
            f"workbench: FSDP gathers {', '.join(names)} one by one, the repeated block of the "
            f"model. Where the workbench is not used, name it to Accelerate: "
            f"fsdp_transformer_layer_cls_to_wrap: {','.join(names)} (--wrap here).\n"
        )
