"""No face repeats what is declared: defaults, choices and limits stand with the fields alone.

Faces are the command line, the widgets and the engines. A default that means "not given" (None, "",
False) is allowed, and so is a first value where the declaration has none (model, GPU).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from workbench.describe.job import options
from workbench.describe.option import Declared, declared, flattened
from workbench.engines.export_request import ExportRequest
from workbench.launching.prepare.options import LaunchOptions

ROOT = Path(__file__).parents[1]
FACES = ("workbench/cli", "workbench/engines", "widgets/workbench_widgets")
FIELDS: Mapping[str, Declared] = {
    **declared(ExportRequest),
    **{name: one for name, (_, one) in flattened(LaunchOptions).items()},
    **options(),
}
WITHOUT_DEFAULT = {"model", "gpu", "name"}
EXPERIMENTS = "workbench_widgets/faults/"  # scenarios with values of their own
CHOICES = [set(one.option.choices) - {None} for one in FIELDS.values() if one.option.choices]
LIMITED = {name for name, one in FIELDS.items() if one.option.least is not None}
CHECKS = {"require_positive", "require_at_least", "require_at_most", "require_above"}
CONTROLS = {"number", "amount", "check"}


def literal(node: ast.expr | None) -> Any:
    """The value of a constant, or of a collection of constants; None for anything else."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def defaults(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None, int]]:
    """Name, default and line of the fields of classes and the parameters of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    is_declaration = "Option(" in ast.unparse(one.annotation)
                    yield one.target.id, None if is_declaration else one.value, one.lineno
        elif isinstance(node, ast.FunctionDef):
            spec = node.args
            pairs = [
                *zip(
                    reversed([*spec.posonlyargs, *spec.args]), reversed(spec.defaults), strict=False
                )
            ]
            for argument, value in (*pairs, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)):
                yield argument.arg, value, argument.lineno


def repeated_defaults(tree: ast.AST) -> Iterator[str]:
    for name, node, line in defaults(tree):
        value = literal(node)
        if name in FIELDS.keys() - WITHOUT_DEFAULT and value not in (None, "", False, (), []):
            yield f"{line}: the default of {name} is written out: {value!r}"


def repeated_choices(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        value = literal(node) if isinstance(node, ast.Tuple | ast.List | ast.Set) else None
        if value and all(isinstance(one, str) for one in value) and set(value) in CHOICES:
            yield f"{node.lineno}: these are the choices of a declared field: {value}"
        if isinstance(node, ast.Call) and name_of(node.func) in {"select", "require_choice"}:
            given = literal(node.args[-1]) if len(node.args) > 1 else None
            if isinstance(given, tuple) and any(set(given) <= one for one in CHOICES):
                yield f"{node.lineno}: a part of a declared field's choices: {given}"


def repeated_limits(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and str(literal(node.args[0])) in FIELDS:
            called, field = name_of(node.func), literal(node.args[0])
            if (called in CHECKS and field in LIMITED) or (
                called in CONTROLS and len(node.args) > 2
            ):
                yield f"{node.lineno}: {called}({field!r}, …) repeats its declaration"
        if isinstance(node, ast.If) and any(isinstance(one, ast.Raise) for one in node.body):
            for one in ast.walk(node.test):
                if isinstance(one, ast.Compare) and is_limit(one):
                    yield f"{node.lineno}: a limit of a declared field: {ast.unparse(one)}"


def is_limit(node: ast.Compare) -> bool:
    sides = (node.left, *node.comparators)
    names = {name_of(one) for one in sides}
    numbers = [one for one in sides if isinstance(literal(one), int | float)]
    ordered = any(isinstance(one, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for one in node.ops)
    is_several = isinstance(node.ops[0], ast.Gt) and literal(node.comparators[0]) == 1
    return bool(names & LIMITED and numbers and ordered and not is_several)


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name; "" for other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def repeated(tree: ast.AST) -> list[str]:
    return [*repeated_defaults(tree), *repeated_choices(tree), *repeated_limits(tree)]


def test_no_face_repeats_a_declaration() -> None:
    files = sorted(
        path
        for face in FACES
        for path in (ROOT / face).rglob("*.py")
        if EXPERIMENTS not in path.as_posix()
    )
    assert len(files) > 100
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in repeated(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "class Choice:\n    micro_batch: int = 1",
        "def ask(*, strategy='ddp'): ...",
        "def ask(precision='bf16'): ...",
        "HOOKS = ('fp16', 'bf16', 'powersgd', 'topk')",
        "select('recompute', 'Recompute', ('none', 'full'))",
        "number('gpus', 'GPUs', 1, 128)",
        "require_positive('nodes', nodes)",
        "if asked.nodes < 1:\n    raise ValueError",
    ],
)
def test_a_repetition_is_found(text: str) -> None:
    assert len(repeated(ast.parse(text))) == 1
