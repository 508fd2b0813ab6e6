"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import workbench

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(workbench.__path__, "workbench.")
    # The hook is imported inside a run only; gpt.py is a script.
    if "capture" not in info.name and not info.name.endswith(("gpt", "__main__", "sitecustomize"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    found = [test for module in modules for test in doctest.DocTestFinder().find(module)]
    assert sum(bool(test.examples) for test in found) >= 10
