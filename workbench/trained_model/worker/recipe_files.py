"""The files of `workbench/recipes`, imported as the recipes import each other."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from workbench.recipes import find

HOME = find("gpt").path.parent


def recipe_module(name: str) -> Any:
    """A file beside the recipes, as a module; its head alone where it is a script."""
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    return importlib.import_module(name)
