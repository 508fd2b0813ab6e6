"""The record of a traced step: plain values for JSON."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from .ledger import Ledger, Storage

_STATIC = {"parameter", "state"}
_WORKBENCH = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def account(ledger: Ledger) -> dict[str, Any]:
    """The bytes alive at every operator, and what each phase computed."""
    lives = ledger.storages
    gradients = [storage for storage in lives if storage.kind == "gradient"]
    others = [storage for storage in lives if storage.kind not in _STATIC | {"gradient"}]
    count = ledger.now
    return {
        "phases": _runs(ledger.phases),
        "gradient_bytes": _alive(gradients, count),
        "other_bytes": _alive(others, count),
        "held": {
            kind: sum(storage.nbytes for storage in lives if storage.kind == kind)
            for kind in ("parameter", "state", "buffer", "gradient", "input")
        },
        "saved_bytes": sum(storage.nbytes for storage in lives if storage.saved),
        "work": {
            phase: {
                "operators": work.operators,
                "flops": work.flops,
                "moved_bytes": work.moved_bytes,
            }
            for phase, work in ledger.work.items()
        },
        "uncounted": sorted(ledger.unknown),
    }


def _alive(lives: list[Storage], count: int) -> list[int]:
    """Bytes alive at each operator: from the one at which they came to the last before they went.

    Operators are numbered from 1; what was there before the first counts from it on.
    """
    change = [0] * (count + 2)
    for storage in lives:
        change[max(1, storage.birth)] += storage.nbytes
        if storage.death is not None:
            change[max(1, storage.death) + 1 if storage.death else 1] -= storage.nbytes
    return list(accumulate(change))[1 : count + 1]


def _runs(phases: list[str]) -> list[list[Any]]:
    """The phases of consecutive operators, as [phase, operators]."""
    runs: list[list[Any]] = []
    for phase in phases:
        if runs and runs[-1][0] == phase:
            runs[-1][1] += 1
        else:
            runs.append([phase, 1])
    return runs


def facts_of_parameters(trained: list[torch.Tensor], roots: list[nn.Module]) -> dict[str, Any]:
    """Elements and bytes of what is trained and what is frozen, by type of element."""
    trained_by_id = {id(weight): weight for weight in trained}
    frozen = {
        id(weight): weight
        for root in roots
        for weight in root.parameters()
        if id(weight) not in trained_by_id
    }
    return {
        "trained": _sizes(list(trained_by_id.values())),
        "frozen": _sizes(list(frozen.values())),
    }


def _sizes(weights: list[torch.Tensor]) -> dict[str, Any]:
    dtypes = Counter[str]()
    for weight in weights:
        dtypes[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    return {
        "elements": sum(weight.numel() for weight in weights),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        "dtypes": dict(dtypes.most_common()),
        "largest": max((weight.numel() for weight in weights), default=0),
        "tensors": len(weights),
    }


def facts_of_optimizers(
    stepped: list[Optimizer], trained: list[torch.Tensor]
) -> list[dict[str, Any]]:
    """Class, kernels, and bytes of state beside the trained elements that they are for."""
    facts: list[dict[str, Any]] = []
    updated = {id(weight) for weight in trained}
    for optimizer in stepped:
        every = [weight for group in optimizer.param_groups for weight in group["params"]]
        weights = [weight for weight in every if id(weight) in updated]
        tensors = list(states_of(optimizer))
        facts.append(
            {
                "class": type(getattr(optimizer, "optimizer", optimizer)).__name__,
                "elements": sum(weight.numel() for weight in weights),
                "state_bytes": sum(value.numel() * value.element_size() for value in tensors),
                "fused": bool(optimizer.defaults.get("fused")),
                "foreach": optimizer.defaults.get("foreach"),
            }
        )
    return facts


def states_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's states."""
    states: Mapping[Any, Any] = optimizer.state
    for state in states.values():
        if isinstance(state, Mapping):
            values = cast("Mapping[str, Any]", state)
            yield from (value for value in values.values() if isinstance(value, torch.Tensor))


def imported_files(script: Any) -> dict[str, str]:
    """The files that the script has imported and that are not installed: relative path -> hash.

    Also those of another folder (a package beside it, ``PYTHONPATH``): a model is often there.
    """
    if not isinstance(script, str):
        return {}
    folder = os.path.dirname(os.path.abspath(script))
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    installed |= {os.path.dirname(torch.__file__), _WORKBENCH}
    own = tuple(os.path.join(path, "") for path in installed)
    hashes: dict[str, str] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        if path == os.path.abspath(script) or path.startswith(own):
            continue
        if "site-packages" in path or "dist-packages" in path:
            continue
        try:
            with open(path, "rb") as file:
                hashes[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue
    return hashes
