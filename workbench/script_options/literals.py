"""Values that a source shows without being run."""

from __future__ import annotations

import ast
import contextlib
import shlex
from collections.abc import Mapping

from workbench.script_options.values import Default

Constants = Mapping[str, ast.expr]
"""Name of a module's constant -> the expression that it is set to."""


def constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """What names are set to, once, at the top of a module."""
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            constants[node.target.id] = node.value
    return constants


def call_name(function: ast.expr) -> str:
    """The last name of ``a.b.c``."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def literal(node: ast.expr | None, constants: Constants = {}) -> object:  # noqa: B006 - read only
    """The value of a literal, of a constant, or of a path made of one; None = it is computed."""
    steps = 0
    while isinstance(node, ast.Name) and node.id in constants and steps < len(constants):
        node, steps = constants[node.id], steps + 1
    if isinstance(node, ast.Call) and len(node.args) == 1 and call_name(node.func) in _WRAPPERS:
        return literal(node.args[0], constants)
    if isinstance(node, ast.Call) and call_name(node.func) == "keys":
        node = node.func.value if isinstance(node.func, ast.Attribute) else node
        return literal(node, constants)
    if node is not None:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return ast.literal_eval(node)
    return None


_WRAPPERS = {"Path", "list", "tuple", "sorted", "set"}


def plain(value: object) -> Default:
    """A default as it is shown; several values as one text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items: list[object] = [*value]
        return shlex.join(map(str, items)) if items else None
    return str(value)
