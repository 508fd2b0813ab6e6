"""Scripts that make their model parallel themselves: recognised in their source."""

from __future__ import annotations

import ast
from pathlib import Path

from workbench.launching.prepare.rank_starters import LAUNCHERS_OWN
from workbench.store.python_source import imported_packages, readable_tree

_DDP = "DistributedDataParallel"
_WRAPPERS = {
    *("accelerate", "transformers", "trl", "deepspeed", "lightning", "pytorch_lightning"),
    *("composer", "colossalai", "fairscale", "diffusers"),
}
"""Packages that wrap a model as the launcher's configuration says, or may."""
_SHARDS = {"FullyShardedDataParallel", "fully_shard"}


def wraps_in_ddp(path: Path) -> bool:
    """Whether the script wraps its model in torch's DDP and uses nothing that reads a strategy.

    False too where it cannot be read, and where it can also shard: by options of its own.
    """
    names: set[str] = set()
    for node in _own_nodes(path):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    return _DDP in names and names.isdisjoint(_SHARDS)


def wants_launcher(path: Path) -> bool:
    """Whether the script always makes a process group from torchrun's variables.

    One that asks whether there are any (``os.environ.get("RANK")``) does without.
    """
    nodes = _own_nodes(path)
    subscript_ids = {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
    constants = (node for node in nodes if isinstance(node, ast.Constant))
    named = [node for node in constants if node.value in LAUNCHERS_OWN]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    begins = any(
        (isinstance(function, ast.Attribute) and function.attr == "init_process_group")
        or (isinstance(function, ast.Name) and function.id == "init_process_group")
        for function in called
    )
    return begins and all(id(node) in subscript_ids for node in named)


def _own_nodes(path: Path) -> list[ast.AST]:
    """The script's tree; empty where it cannot be read, or leaves the ranks to a package."""
    tree = readable_tree(path)
    if tree is None or imported_packages(tree) & _WRAPPERS:
        return []
    return list(ast.walk(tree))
