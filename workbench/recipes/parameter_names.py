"""What a model itself calls its weights, however it and its parts are wrapped.

Wrappers (DDP, FSDP1, activation checkpointing, torch.compile, DeepSpeed's engine …) put their own
attribute into every name: ``module.blocks.0._checkpoint_wrapped_module.up.weight``. A checkpoint
that kept such names could be read by the same wrapping only. So names are made here, in one place,
from the tree of modules: a wrapper is known by its type and adds nothing, in any order and nesting.
PEFT's model is none: its adapters and its names belong to the model in every layout.

torch alone, and no more of it than the process has loaded.
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn

# Where a wrapper's class is, and the attribute that holds the wrapped module. An instance exists
# only where its module has been imported, so nothing is imported to look for it.
_WRAPPERS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",  # of recompute and of offloaded activations
        "_checkpoint_wrapped_module",
    ),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.optim.swa_utils", "AveragedModel", "module"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "module"),
)


def trained_shapes(bare: nn.Module) -> dict[str, torch.Size]:
    """Of the weights that are trained, by the names of a model that is not wrapped yet."""
    return {
        name: parameter.shape
        for name, parameter in bare.named_parameters()
        if parameter.requires_grad
    }


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Of `named_parameters` those that are not frozen."""
    return {
        name: parameter
        for name, parameter in named_parameters(model).items()
        if parameter.requires_grad
    }


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """As ``model.named_parameters()`` of the bare model: each weight once, by its first name."""
    parameters, seen = dict[str, nn.Parameter](), set[nn.Parameter]()
    for prefix, module in _bare_modules(model, "", set(), _loaded_wrappers()):
        for name, weight in module.named_parameters(recurse=False):
            if weight not in seen:
                seen.add(weight)
                parameters[prefix + name] = weight
    return parameters


def _bare_modules(
    module: nn.Module, prefix: str, seen: set[nn.Module], kinds: dict[type, str]
) -> Iterator[tuple[str, nn.Module]]:
    """Every module that is not a wrapper, once, with what stands before its parameters' names."""
    while (inner := _inner(module, kinds)) is not None:
        module = inner
    if module in seen:
        return
    seen.add(module)
    yield prefix, module
    for name, child in module.named_children():
        yield from _bare_modules(child, f"{prefix}{name}.", seen, kinds)


def _inner(module: nn.Module, kinds: dict[type, str]) -> nn.Module | None:
    """What a wrapper wraps; None: it is not one."""
    for kind, attribute in kinds.items():
        if isinstance(module, kind):
            return getattr(module, attribute)
    return None


def _loaded_wrappers() -> dict[type, str]:
    kinds = dict[type, str]()
    for name, kind, attribute in _WRAPPERS:
        wrapper: type | None = getattr(sys.modules.get(name), kind, None)
        if wrapper is not None:
            kinds[wrapper] = attribute
    return kinds
