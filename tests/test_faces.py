"""No face repeats what is declared: defaults, choices and limits stand with the fields alone.

Faces are the command line, the widgets and the engines. A default that means "not given" (None, "",
False) is allowed, and so is a first value where the declaration has none (model, GPU), once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from workbench.cli.cost_values import CostOptions
from workbench.cli.plan_values import PlanOptions
from workbench.compare.studies.bench import LAUNCHED as TRIALS
from workbench.compare.studies.compression import Compared
from workbench.compare.studies.sizes import Sizes
from workbench.compare.studies.tuning import Accumulate, BatchSize, Workers
from workbench.describe.job import options
from workbench.describe.option import DeclaredField, declared, flattened
from workbench.engines.export_request import ExportRequest
from workbench.launching.prepare.options import LaunchOptions

ROOT = Path(__file__).parents[1]
PLAIN = {"steps", "values", "start", "to"}  # words that many other things are called by, too
FACES = ("workbench/cli", "workbench/engines", "widgets/workbench_widgets")
STUDIES = (Sizes, BatchSize, Accumulate, Workers, Compared)
OUTSIDE: Mapping[str, DeclaredField] = {
    **{name: one for kind in STUDIES for name, one in declared(kind).items() if name not in PLAIN},
    **{name: one for name, (_, one) in flattened(LaunchOptions).items()},
    **options(),
}
"""Fields that are declared outside the faces."""
FIELDS: Mapping[str, DeclaredField] = {
    **declared(PlanOptions),
    **declared(CostOptions),
    **declared(ExportRequest),
    **OUTSIDE,
}
WITHOUT_DEFAULT = {"model", "gpu", "name"}
_LAUNCH = [
    one
    for name, one in declared(LaunchOptions).items()
    if name in {*TRIALS, "processes"} - {"store"}
]
LAUNCHED = {one.name for one in _LAUNCH} | {one.flag.removeprefix("--") for one in _LAUNCH}
EXPERIMENTS = "workbench_widgets/faults/"  # scenarios with values of their own
CHOICES = [set(one.option.choices) - {None} for one in FIELDS.values() if one.option.choices]
LIMITED = {
    name for name, one in FIELDS.items() if (one.option.least, one.option.above) != (None, None)
}
CHECKS = {"require_positive", "require_at_least", "require_at_most", "require_number"}
CONTROLS = {"number", "amount", "check"}
TYPER = {"option", "typer.Option", "typer.Argument"}
MEASURED = "workbench/cli/calibrating.py"  # its --cpu says what is measured: nothing is launched


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


def by_hand(tree: ast.AST) -> Iterator[str]:
    """Options of a launch that a command declares itself."""
    for node in ast.walk(tree):
        name = getattr(node, "arg", None) or getattr(getattr(node, "target", None), "id", "")
        annotation = getattr(node, "annotation", None)
        calls = (
            [one for one in ast.walk(annotation) if isinstance(one, ast.Call)] if annotation else []
        )
        if name in LAUNCHED and any(ast.unparse(one.func) in TYPER for one in calls):
            yield f"{node.lineno}: {name} is an option of a launch: take it from LaunchOptions"


def help_texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Help texts of options, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {*TYPER, "Option"}:
            texts = [one.value for one in node.keywords if one.arg == "help"] or node.args[:1]
            yield from ((text, node.lineno) for one in texts if (text := literal(one)))


def first_values(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """First values of declared fields that a form writes out, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name, first = literal(key), literal(value)
                if name in FIELDS.keys() - {"name"} and isinstance(first, str | tuple) and first:
                    yield f"{name}: {first!r}", node.lineno


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
    parts = (repeated_defaults, repeated_choices, repeated_limits, by_hand)
    return [line for part in parts for line in part(tree)]


def trees() -> dict[str, ast.AST]:
    """The faces' files."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for face in FACES
        for path in sorted((ROOT / face).rglob("*.py"))
        if EXPERIMENTS not in path.as_posix()
    }


def test_no_face_repeats_a_declaration() -> None:
    every = trees()
    assert len(every) > 100
    found = [f"{path}:{line}" for path, tree in every.items() for line in repeated(tree)]
    found = [line for line in found if not (line.startswith(MEASURED) and "cpu is an" in line)]
    assert not found, "\n".join(found)


def twice(
    written: Callable[[ast.AST], Iterator[tuple[str, int]]],
    every: Mapping[str, ast.AST],
    known: Iterable[str] = (),
) -> list[str]:
    """What stands at two places of the faces, or of a face and a declaration outside them."""
    places = {text: ["its declaration"] for text in known}
    for path, tree in every.items():
        for text, line in written(tree):
            places.setdefault(text, []).append(f"{path}:{line}")
    return [f"{text}: {', '.join(where)}" for text, where in places.items() if len(where) > 1]


def test_no_two_faces_write_the_same_option_or_first_value() -> None:
    every = trees()
    helps = {one.option.help for one in OUTSIDE.values()}
    found = [*twice(help_texts, every, helps), *twice(first_values, every)]
    assert not found, "\n".join(found)


def test_the_same_option_or_first_value_in_two_faces_is_found() -> None:
    launch = ast.parse("option('Only show what would start.', '--dry-run')")
    fork = ast.parse("typer.Option('--dry-run', help='Only show what would start.')")
    assert len(twice(help_texts, {"launch": launch, "fork": fork})) == 1
    assert len(twice(help_texts, {"launch": launch}, ["Only show what would start."])) == 1
    first = ast.parse("FIRST = {**JOB, 'tokens': '20B'}")
    assert len(twice(first_values, {"cost": first, "planner": first})) == 1


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
        "def warm(strategy: Annotated[str, typer.Option(help='As for launch.')] = ''): ...",
        "class ProfileOptions:\n    nproc: Annotated[int, option('Processes.')]",
        "if asked.nodes < 1:\n    raise ValueError",
    ],
)
def test_a_repetition_is_found(text: str) -> None:
    assert len(repeated(ast.parse(text))) == 1
