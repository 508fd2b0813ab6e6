"""Every module can be imported, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "workbench"
# The hook is imported inside a run only; the others are scripts or start something.
SKIPPED = ("gpt", "__main__", "sitecustomize")


def modules() -> dict[str, Path]:
    """Module name -> file. Recipes are scripts that load large libraries: only those with examples."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if "capture" in name or name.endswith(SKIPPED):
            continue
        if "recipes" not in parts or ">>>" in path.read_text():
            found[name] = path
    return found


def test_examples(capsys: pytest.CaptureFixture[str]) -> None:
    failed: list[str] = []
    with_examples = 0
    for name, path in modules().items():
        module = importlib.import_module(name)
        if ">>>" in path.read_text():
            result = doctest.testmod(module)
            failed += [name] if result.failed else []
            with_examples += bool(result.attempted)
    assert not failed, capsys.readouterr().out
    assert with_examples >= 60
