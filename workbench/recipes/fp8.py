"""fp8 by torchao: the linear layers of the blocks multiply in 8 bits, scaled tensor by tensor.

Weights and optimizer states stay in fp32; the head and attention itself compute in bf16. Accelerate
swaps the layers when it prepares the model. Under FSDP the weights are gathered in 8 bits too, in a
tensor of torchao's own that wraps each shard. A CPU has no 8-bit units: there the numbers are
rounded to 8 bits and multiplied in fp32.
"""

# Accelerate and torchao have no type stubs, so whatever they return is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import importlib
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_LEAST_CAPABILITY = (8, 9)  # Ada; 9.0 is Hopper


def convertible(module: nn.Module, name: str) -> bool:
    """Whether torchao swaps that layer: the linears of blocks, not the head."""
    return isinstance(module, nn.Linear) and name.startswith("blocks.")


def arguments() -> list[Any]:
    """What Accelerate is to be told for fp8; leaves with a sentence where it cannot be."""
    from accelerate.utils import AORecipeKwargs  # noqa: PLC0415 - only where fp8 is asked for

    emulated = not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU") == "true"
    if not emulated and torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        sys.exit(
            f"--precision fp8: {torch.cuda.get_device_name()} has no fp8 matmuls (compute "
            "capability 8.9 or newer has). Use --precision bf16."
        )
    config = _torchao().Float8LinearConfig(
        emulate=emulated,
        enable_fsdp_float8_all_gather=os.environ.get("ACCELERATE_USE_FSDP") == "true",
    )
    return [AORecipeKwargs(config=config, module_filter_func=convertible)]


def _torchao() -> Any:
    """Load torchao's fp8 training without its words on CUDA libraries that a CPU lacks."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        return importlib.import_module("torchao.float8")
    except ImportError:
        sys.exit(f"--precision fp8 needs torchao. Next: {sys.executable} -m pip install torchao")
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def description(model: nn.Module) -> str:
    """Which layers compute in 8 bits, which do not, and whether it is real."""
    linears = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    swapped = [part for part in linears.values() if hasattr(part, "linear_mm_config")]
    unswapped = sorted(
        {name.rsplit(".", 1)[-1] for name, part in linears.items() if part not in swapped}
    )
    config: Any = swapped[0].config if swapped else None
    sentence = f"fp8: {len(swapped)} of {len(linears)} linear layers by torchao"
    sentence += f"; in bf16: {', '.join(unswapped)}" if unswapped else ""
    if config is not None and config.emulate:
        sentence += "; emulated on this CPU (rounded to 8 bits, multiplied in fp32, no faster)"
    return sentence


def unwrapped(weight: Tensor) -> Tensor:
    """A weight without torchao's wrapper, which FSDP's shards have; it shares their memory."""
    if not isinstance(weight, DTensor):
        return weight
    inner: Any = getattr(_local(weight), "_tensor", None)
    if inner is None:
        return weight
    return DTensor.from_local(
        inner,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def forget_scales(weights: Iterable[Tensor]) -> None:
    """Have the scales of gathered weights computed again after the weights were replaced."""
    for weight in weights:
        local = _local(weight)
        if getattr(local, "_precomputed_scale", None) is not None:
            local._precomputed_scale = None  # noqa: SLF001 - torchao offers no other way


def _local(weight: Tensor) -> Any:
    """A rank's shard as it is kept, in torchao's wrapper; None where nothing is sharded."""
    return getattr(weight, "_local_tensor", None)
