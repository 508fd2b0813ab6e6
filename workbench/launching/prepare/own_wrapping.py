"""Scripts that make their model parallel themselves: recognised in their source."""

from __future__ import annotations

import ast
from pathlib import Path

from workbench.store.python_source import script_tree

_DDP = "DistributedDataParallel"
_WRAPPERS = {
    *("accelerate", "transformers", "trl", "deepspeed", "lightning", "pytorch_lightning"),
    *("composer", "colossalai", "fairscale", "diffusers"),
}
"""Packages that wrap a model as the launcher's configuration says, or may."""


def wraps_in_ddp(path: Path) -> bool:
    """Whether the script wraps its model in torch's DDP and uses nothing that reads a strategy.

    False too where it cannot be read.
    """
    try:
        nodes = list(ast.walk(script_tree(path)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    modules = {
        *(alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names),
        *(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)),
    }
    if {module.partition(".")[0] for module in modules} & _WRAPPERS:
        return False
    return any(
        (isinstance(node, ast.Attribute) and node.attr == _DDP)
        or (isinstance(node, ast.ImportFrom) and any(alias.name == _DDP for alias in node.names))
        for node in nodes
    )
