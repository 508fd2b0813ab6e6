"""Which trainer a script uses, read from its imports; the script is parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workbench.describe.trainers.table import Trainer, trainers


def imported_trainer(tree: ast.AST) -> Trainer | None:
    """The most specific trainer that a script's tree imports anywhere; None = none that is known.

    A script that imports TRL uses TRL, though it imports transformers and torch too: of several
    trainers the one that is based on the others counts, then the one imported with more words.
    """
    modules = set(_imported(tree))
    matches = [
        (len(trainer.lineage), len(name), trainer)
        for trainer in trainers().values()
        for name in trainer.imports
        if any(module == name or module.startswith(f"{name}.") for module in modules)
    ]
    return max(matches, key=lambda item: item[:2])[2] if matches else None


def _imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported, functions and classes of a module among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
