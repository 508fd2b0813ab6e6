"""Changes to private names of torch and transformers that fake tensors need, guarded by version.

Each patch says what goes wrong without it. Where the name is gone, the simulation goes on and the
result says in its assumptions what may be off.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
from typing import Any

_PATCHES = (
    (
        # DTensor would work out shapes in OUR fake mode and the tracker would count whole,
        # unsharded tensors (8B optimizer step: 108 GiB instead of 21).
        "torch.distributed.tensor._sharding_prop",
        "detect_fake_mode",
        "sharded operations may be counted at their unsharded size",
    ),
    (
        # transformers takes a fake tensor for tracing, cannot prove that a batch is not packed and
        # builds a mask: + 2 b s^2 bytes and expanded key/value heads in every block.
        "transformers.masking_utils",
        "find_packed_sequence_indices",
        "an attention mask may be counted in every block",
    ),
)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def apply_patches() -> list[str]:
    """Patch what is there; return a sentence for everything that is not."""
    missing: list[str] = []
    for module, name, consequence in _PATCHES:
        try:
            home = importlib.import_module(module)
        except ImportError:
            home = None
        if home is None or not callable(getattr(home, name, None)):
            missing.append(f"{module}.{name} is not in this version: {consequence}")
        else:
            setattr(home, name, _nothing)
    return missing
