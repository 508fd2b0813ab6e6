"""Every name that a notebook imports from the workbench is there; the full tests execute them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def imported(notebook: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each ``from workbench… import …``."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
        if cell.cell_type != "code" or cell.source.startswith("%%"):
            continue
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
                yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_what_it_imports_is_there(notebook: Path) -> None:
    for module, name in imported(notebook):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
