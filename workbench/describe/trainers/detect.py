"""Which trainer a script uses, read from what it imports."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.describe.trainers.table import Trainer, trainers


def imported_trainer(names: Iterable[str]) -> Trainer | None:
    """The most specific trainer that a script imports; None = none that is known.

    A script that imports TRL uses TRL, though it imports transformers and torch too: of several
    trainers the one that is based on the others counts, then the one imported with more words.

    Args:
        names: Dotted names of what is imported, functions and classes of a module among them.
    """
    imported = set(names)
    matches = [
        (len(trainer.lineage), len(name), trainer)
        for trainer in trainers().values()
        for name in trainer.imports
        if any(module == name or module.startswith(f"{name}.") for module in imported)
    ]
    return max(matches, key=lambda item: item[:2])[2] if matches else None
