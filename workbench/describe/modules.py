"""Any PyTorch module -> `Model`: parameters, its repeated blocks, and what autograd keeps.

Nothing is computed and no memory is taken: the forward pass runs on fake copies of the parameters
(`tracing`), so that modules on the meta device work as well and buffers stay untouched.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from workbench.describe.configs import read_config
from workbench.describe.model import Model, Traced
from workbench.describe.tracing import Saved, trace
from workbench.errors import UsageError

LAYERS = (
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.GroupNorm),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)  # bare layers: lists of them count as blocks only where there is nothing better

PARALLEL: tuple[type[nn.Module], ...] = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def from_module(
    module: nn.Module,
    example_inputs: Any = None,
    name: str | None = None,
    block_types: Sequence[type[nn.Module]] | None = None,
) -> Model:
    """Describe a module; see `Model.from_module`."""
    if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]  (callers are not type-checked)
        raise UsageError(
            f"A module must be a torch.nn.Module, not {type(module).__name__}. For a config use "
            "Model.from_config, for a published shape Model.catalog."
        )
    module = _unwrapped(module)
    total = count(module)
    published = _from_transformers(module, total) if block_types is None else None
    if published is not None:
        return replace(published, name=name or published.name)
    repeated = blocks(module, block_types)
    saved = None if example_inputs is None else trace(module, repeated, example_inputs)
    return Model(
        name=name or type(module).__name__,
        kind="module",
        layers=len(repeated),
        hidden=1,
        heads=1,
        mlp_hidden=1,
        vocab=1,
        traced=_facts(module, total, repeated, saved),
    )


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch.compile's and data parallelism's wrappers."""
    while True:
        inner: object = getattr(module, "_orig_mod", None)
        if isinstance(module, PARALLEL):
            inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _facts(module: nn.Module, total: int, repeated: list[nn.Module], saved: Saved | None) -> Traced:
    sizes = Counter[int]()
    for weight in module.parameters():
        sizes[weight.element_size()] += weight.numel()
    return Traced(
        parameters=total,
        largest_block_parameters=max(count(block) for block in repeated),
        blocks=len(repeated),
        saved_bytes=saved.total if saved else None,
        largest_block_saved_bytes=saved.largest_block if saved else None,
        boundary_bytes=saved.boundaries if saved else None,
        precision_bytes=sizes.most_common(1)[0][0],
    )


def count(module: nn.Module) -> int:
    """Number of parameters, shared ones once.

    Raises:
        UsageError: none at all, or some whose shape is not known before the first forward pass.
    """
    weights = list(module.parameters())
    if any(nn.parameter.is_lazy(weight) for weight in weights):
        raise UsageError(
            f"{type(module).__name__} has lazy parameters without a shape. Run it once on a batch, "
            "then describe it."
        )
    total = sum(weight.numel() for weight in weights)
    if not total:
        raise UsageError(f"{type(module).__name__} has no parameters: there is nothing to train.")
    return total


def blocks(
    module: nn.Module, block_types: Sequence[type[nn.Module]] | None = None
) -> list[nn.Module]:
    """The repeated blocks, outermost first: what FSDP wraps and recompute runs again.

    Without `block_types` they are the classes of the children of the ModuleList or Sequential that
    has most children of one class (then: most parameters). A module without any is its own block.

    Raises:
        UsageError: no module of `block_types`.
    """
    if block_types is not None:
        kinds = tuple(block_types)
        outermost = list(_outermost(module, kinds)) if kinds else []
        if not outermost:
            classes = Counter(
                type(child).__name__ for child in module.modules() if child is not module
            )
            names = ", ".join(name for name, _ in classes.most_common(10)) or "none"
            types = ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds) or "nothing"
            raise UsageError(
                f"{type(module).__name__} has no block of the type {types}. It has: {names}. Give "
                "one of these classes, or leave block_types out."
            )
        return outermost
    chosen = max(_lists(module), key=_rank, default=[module])
    kinds = tuple({type(child) for child in chosen if not isinstance(child, LAYERS)})
    if chosen == [module] or not kinds:
        return chosen
    return list(_outermost(module, kinds))


def _lists(module: nn.Module) -> Iterator[list[nn.Module]]:
    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential):
            # A list inside a list is judged itself; it is never called, so it is not a block.
            children = [
                child
                for child in part
                if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList)
            ]
            if len(children) >= 2:
                yield children


def _rank(children: list[nn.Module]) -> tuple[bool, int, int]:
    """Blocks before bare layers, then the longest run of one class, then the most parameters."""
    same = Counter(type(child) for child in children).most_common(1)[0]
    composed = not issubclass(same[0], LAYERS)
    return composed and same[1] > 1, same[1], sum(count(child) for child in children)


def _outermost(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, kinds):
            yield child
        else:
            yield from _outermost(child, kinds)


def _from_transformers(module: nn.Module, counted: int) -> Model | None:
    """The shape by the model's own config; None for other modules and families without words."""
    library = sys.modules.get("transformers")
    base = getattr(library, "PreTrainedModel", None)
    config = getattr(module, "config", None)
    if base is None or not isinstance(module, base) or config is None:
        return None
    values: Mapping[str, Any] = config.to_dict()
    try:
        read = read_config({**values, "architectures": [type(module).__name__]})
    except UsageError:
        return None
    for note in read.notes:
        warnings.warn(note, stacklevel=5)
    difference = counted - read.model.parameters
    if difference:
        warnings.warn(
            f"{type(module).__name__} has {counted:,} parameters, its config describes "
            f"{read.model.parameters:,}: described as a traced module instead. Give example_inputs "
            "to measure what its backward pass keeps.",
            stacklevel=5,
        )
        return None
    return read.model
