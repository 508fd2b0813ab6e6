"""Changes to private names of torch and transformers that fake tensors need, guarded by version.

Each patch says what goes wrong without it. Where the name is gone, the simulation goes on and the
result says in its assumptions what may be off.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh

from workbench.estimate.simulation.emulation import emulating_recompute, grouped_matmul
from workbench.estimate.simulation.recompute import checkpointed_attention


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


_PATCHES = (
    (
        # DTensor would work out shapes in OUR fake mode and the tracker would count whole,
        # unsharded tensors (8B optimizer step: 108 GiB instead of 21).
        "torch.distributed.tensor._sharding_prop",
        "detect_fake_mode",
        _nothing,
        "sharded operations may be counted at their unsharded size",
    ),
    (
        # transformers takes a fake tensor for tracing, cannot prove that a batch is not packed and
        # builds a mask: + 2 b s^2 bytes and expanded key/value heads in every block.
        "transformers.masking_utils",
        "find_packed_sequence_indices",
        _nothing,
        "an attention mask may be counted in every block",
    ),
    (
        # The fake kernel refuses fp32, which autocast and FSDP's shards are in.
        "transformers.integrations.moe",
        "_grouped_mm",
        grouped_matmul,
        "experts can only be simulated in bf16",
    ),
)


def apply_patches() -> list[str]:
    """Patch what is there; return a sentence for everything that is not."""
    missing: list[str] = []
    for module, name, replacement, consequence in _PATCHES:
        try:
            home = importlib.import_module(module)
        except ImportError:
            home = None
        if home is None or not callable(getattr(home, name, None)):
            missing.append(f"{module}.{name} is not in this version: {consequence}")
        else:
            setattr(home, name, replacement)
    return [*missing, *_patch_attention(), *_patch_meshes(), *_patch_checkpoint()]


def _patch_checkpoint() -> list[str]:
    name = "_checkpoint_without_reentrant_generator"
    generator = getattr(torch.utils.checkpoint, name, None)
    if generator is None:
        return [f"torch.utils.checkpoint.{name} is not in this version: recompute may fail"]
    if not getattr(generator, "emulates", False):
        replacement = emulating_recompute(generator)
        replacement.emulates = True
        setattr(torch.utils.checkpoint, name, replacement)
    return []


def _patch_meshes() -> list[str]:
    """Let a step function build its device mesh, which reads real ranks, inside the fake mode."""
    create = DeviceMesh.__init__
    if "_rank_map" not in inspect.signature(create).parameters:
        return ["device meshes must be built before the simulation: this version hides its ranks"]
    if getattr(create, "outside_fake_mode", False):
        return []

    def create_outside(mesh: Any, *arguments: Any, **options: Any) -> None:
        with unset_fake_temporarily():
            ranks = options.get("_rank_map")
            if isinstance(ranks, FakeTensor):
                options["_rank_map"] = torch.arange(ranks.numel(), dtype=torch.int)
            create(mesh, *arguments, **options)

    create_outside.outside_fake_mode = True  # type: ignore[attr-defined]
    create_outside.__signature__ = inspect.signature(create)  # type: ignore[attr-defined]
    DeviceMesh.__init__ = create_outside  # type: ignore[method-assign]
    return []


def _patch_attention() -> list[str]:
    """Let selective recompute run attention's core alone again."""
    try:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415

        for name in ("sdpa",):
            attention = ALL_ATTENTION_FUNCTIONS[name]
            if not getattr(attention, "recomputes", False):
                replacement = checkpointed_attention(attention)
                replacement.recomputes = True
                ALL_ATTENTION_FUNCTIONS[name] = replacement
    except (ImportError, KeyError):
        return ["attention functions are elsewhere: its selective recompute is not simulated"]
    return []
