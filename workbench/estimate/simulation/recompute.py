"""Activation checkpointing: whole blocks as transformers does it, or parts of them."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from workbench.describe import Strategy
from workbench.estimate.simulation.build import Trainee, blocks_of
from workbench.estimate.simulation.refusal import CannotSimulateError

_OPTIONS: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
_ATEN = torch.ops.aten
_SAVED_OPERATIONS = {
    _ATEN.mm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001
}


def apply_recompute(trainee: Trainee, strategy: Strategy) -> None:
    """Set up what `strategy` computes again in backward.

    Raises:
        CannotSimulateError: a part that the model's blocks do not have under a known name.
    """
    if strategy.recompute == "none":
        return
    blocks = blocks_of(trainee)
    if strategy.recompute == "full":
        count = strategy.recompute_layers
        for block in blocks if count is None else blocks[:count]:
            _checkpoint_block(block, partial(checkpoint, **_OPTIONS))
        return
    for part in strategy.recompute_parts:
        for block in blocks:
            _part(block, part)


def offload_activations(trainee: Trainee, strategy: Strategy) -> None:
    """Keep what each block saves for backward in host memory, its weights left out.

    A saved tensor leaves the card when it is saved and comes back, as a tensor of its own, when the
    operation that needs it runs in backward (TRL's and torchtune's OffloadActivations; torch's
    `save_on_cpu` moves the weights too).
    """
    if "activations" not in strategy.offload:
        return
    block: Any
    for block in blocks_of(trainee):
        if getattr(block, "gradient_checkpointing", False):  # around it: its input is what moves
            recompute = block._gradient_checkpointing_func  # noqa: SLF001  (transformers' own hook)
            block._gradient_checkpointing_func = partial(_on_host, recompute)  # noqa: SLF001
        else:
            block.forward = partial(_on_host, block.forward)


def _on_host(forward: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(_leave, _come_back):
        return forward(*args, **kwargs)


def _leave(tensor: Any) -> Any:
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    return tensor.size(), tensor.stride(), tensor.dtype


def _come_back(packed: Any) -> Any:
    if isinstance(packed, torch.Tensor):
        return packed
    size, stride, dtype = packed
    return torch.empty_strided(size, stride, dtype=dtype)


def _checkpoint_block(block: Any, function: Any) -> None:
    block.gradient_checkpointing = True
    block._gradient_checkpointing_func = function  # noqa: SLF001  (transformers' own hook)


def _part(block: Any, part: str) -> None:
    if part == "op":
        _checkpoint_block(block, partial(checkpoint, **_OPTIONS, context_fn=_every_second_matmul))
        return
    chosen = [
        child
        for name, child in block.named_children()
        if (part == "mlp" and name in {"mlp", "feed_forward"})
        or (part == "norm" and ("norm" in name or name.startswith("ln_")))
    ]
    if part == "attention":
        chosen = [child for name, child in block.named_modules() if name in {"self_attn", "attn"}]
        for child in chosen:
            child.recompute_core = True
    if not chosen:
        raise CannotSimulateError(f"recompute of {part!r} in {type(block).__name__}.")
    for child in chosen if part != "attention" else ():
        child.forward = partial(checkpoint, child.forward, **_OPTIONS)


def checkpointed_attention(attention: Any) -> Any:
    """`attention` so that modules marked with ``recompute_core`` run it again in backward."""

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(module, "recompute_core", False) and torch.is_grad_enabled():
            return checkpoint(attention, module, *args, **_OPTIONS, **kwargs)
        return attention(module, *args, **kwargs)

    return call


def _every_second_matmul() -> Any:
    """Torchtitan's op-level policy: keep attention, reductions and every second matmul."""
    seen = {True: 0, False: 0}

    def policy(context: Any, function: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if function is _ATEN.mm.default:
            seen[context.is_recompute] += 1
        keep = function in _SAVED_OPERATIONS and not (
            function is _ATEN.mm.default and seen[context.is_recompute] % 2 == 0
        )
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
