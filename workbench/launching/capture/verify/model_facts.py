"""What the models of a rank are: wrappers, parameters, who optimizes them, the order of layers."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .parameters import Models, freeze_switches

_NORMS = nn.modules.batchnorm._NormBase  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "FSDPModule"}


def model_facts(
    models: Models, optimizers: Mapping[int, Any], ran: Iterable[Any]
) -> dict[str, Any]:
    """What the models are and who holds their parameters, as the trace ends.

    `optimizers`: those that have stepped, by id; `ran`: modules in the order of their first runs.
    """
    named, roots = models.named(), models.outermost()
    places = {id(value): name for name, value in named.items()}
    optimized = [key for one in optimizers.values() for key in parameters_of(one)]
    waiting = [
        key
        for item in gc.get_objects()
        if issubclass(type(item), torch.optim.Optimizer) and id(item) not in optimizers
        for key in parameters_of(item)
    ]
    modules = [module for root in roots for module in root.modules()]
    return {
        "wrappers": sorted(
            {base.__name__ for module in (*roots, *modules) for base in type(module).__mro__}
            & _WRAPPERS
        ),
        "own_buffers": any(getattr(root, "broadcast_buffers", True) is False for root in roots),
        "embeddings": [
            places[id(module.weight)]
            for module in modules
            if isinstance(module, nn.Embedding) and id(module.weight) in places
        ],
        "comm_hook": any(getattr(root, "_comm_hooks", None) for root in roots),
        "trainable": [name for name, value in named.items() if value.requires_grad],
        "optimized": [places[id(key)] for key in optimized if id(key) in places],
        "waiting": [places[id(key)] for key in waiting if id(key) in places],
        "outside": sum(id(key) not in places for key in optimized),
        "optimizer": next((type(optimizer).__name__ for optimizer in optimizers.values()), None),
        "batch_norm": sum(isinstance(module, _NORMS) for module in modules),
        "sync_batch_norm": sum(isinstance(module, nn.SyncBatchNorm) for module in modules),
        "order": _order(ran, roots, places),
        "switches": freeze_switches(roots),
    }


def parameters_of(optimizer: Any) -> list[Any]:
    """Those that an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _order(ran: Iterable[Any], roots: list[Any], places: dict[int, str]) -> list[str]:
    """The last parameter of each module that holds some, as they ran in models that are trained."""
    trained = {
        id(module)
        for root in roots
        if any(weight.requires_grad for weight in root.parameters())
        for module in root.modules()
    }
    return [
        places[id(own[-1])]
        for module in ran
        if id(module) in trained
        and (own := list(module.parameters(recurse=False)))
        and id(own[-1]) in places
    ]
