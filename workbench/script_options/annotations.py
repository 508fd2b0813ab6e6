"""Options that are declared by types: fields of a dataclass, parameters of a typer command."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.script_options.literals import Constants, call_name, literal, plain
from workbench.script_options.values import Kind, ScriptOption, kind_of
from workbench.store.python_source import parse_python

_MANY = {"list", "List", "Sequence", "tuple", "Tuple"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedOption:
    """What an annotation says of an option."""

    kind: str
    """Name of the type of one value."""
    choices: tuple[str, ...] = ()
    """The only values."""
    many: bool = False
    """Whether it holds several."""


def typed(node: ast.expr | None) -> AnnotatedOption | None:
    """What an annotation says; None = a type that is not known here, as an Enum."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _quoted(node.value)
    if isinstance(node, ast.BinOp):  # X | None
        return _first_typed([node.left, node.right])
    if isinstance(node, ast.Subscript):
        return _subscript(node)
    name = ast.unparse(node).rpartition(".")[2] if node is not None else "str"
    if name in {"int", "float", "str", "bool", "Path", "Any"}:
        return AnnotatedOption(kind=name)
    return AnnotatedOption(kind="str", many=True) if name in _MANY else None


def _quoted(text: str) -> AnnotatedOption | None:
    """What an annotation in quotes says; None also where it is no type, as a help text."""
    try:
        statements = parse_python(f"({text}\n)").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    only = statements[0] if len(statements) == 1 else None
    return typed(only.value) if isinstance(only, ast.Expr) else None


def _first_typed(nodes: Sequence[ast.expr]) -> AnnotatedOption | None:
    """What the first of several types says that is not None."""
    node = next((node for node in nodes if not _is_none(node)), None)
    return typed(node) if node is not None else None


def _subscript(node: ast.Subscript) -> AnnotatedOption | None:
    outer = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer == "Literal":
        return AnnotatedOption(
            kind="str",
            choices=tuple(
                str(member.value) for member in inner if isinstance(member, ast.Constant)
            ),
        )
    if outer in {"Optional", "Union", "Annotated"}:
        return _first_typed(inner)
    if outer in _MANY:
        parsed = typed(inner[0]) if inner else None
        return parsed and AnnotatedOption(kind=parsed.kind, choices=parsed.choices, many=True)
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def dataclass_options(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], constants: Constants
) -> Iterator[ScriptOption | str]:
    """What HfArgumentParser makes of a dataclass; a text says what cannot be read."""
    others = {name: other for name, other in classes.items() if other is not node}
    for base in node.bases:
        name = call_name(base)
        if name in others:  # not of itself: two modules may give a class and its base one name
            yield from dataclass_options(others[name], others, constants)
        elif name != "object":
            yield f"{node.name} has the options of {name}, which is of a library"
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not _is_set_elsewhere(statement):
            yield _of_field(statement.target.id, statement, node.name, constants)


def _is_set_elsewhere(node: ast.AnnAssign) -> bool:
    """``field(init=False)``: the class sets it itself, and it is no option."""
    value = node.value
    return (
        isinstance(value, ast.Call)
        and call_name(value.func) == "field"
        and any(
            keyword.arg == "init" and ast.unparse(keyword.value) == "False"
            for keyword in value.keywords
        )
    )


def _of_field(
    name: str, node: ast.AnnAssign, group: str, constants: Constants
) -> ScriptOption | str:
    declared = typed(node.annotation)
    if declared is None:
        return f"the type of {name} is not a plain one"
    value, about = node.value, dict[str, ast.expr]()
    if isinstance(value, ast.Call) and call_name(value.func) == "field":
        about = {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
        value = about.get("default", about.get("default_factory"))
    metadata = literal(about.get("metadata"), constants)
    settings: dict[Any, Any] = {**metadata} if isinstance(metadata, dict) else {}
    listed = settings.get("choices")
    choices = tuple(map(str, listed)) if listed else declared.choices
    aliases = settings.get("aliases")
    other_names: list[Any] = [aliases] if isinstance(aliases, str) else list(aliases or ())
    names = tuple(
        dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}", *map(str, other_names)))
    )
    default = plain(literal(value, constants))
    is_switch = declared.kind == "bool"
    negative = (f"--no_{name}", f"--no-{name.replace('_', '-')}")
    return ScriptOption(
        names=(*names, *negative) if is_switch and default is True else names,
        off=negative if is_switch and default is True else (),
        least=0 if is_switch else 1,
        most=None if declared.many else 1,
        kind="switch" if is_switch else kind_of(declared.kind, name),
        default=default,
        choices=choices,
        help=str(settings.get("help", "")),
        group=group,
        required=value is None,
    )


def command_options(
    function: ast.FunctionDef | ast.AsyncFunctionDef, constants: Constants
) -> Iterator[ScriptOption | str]:
    """What typer makes of a function's parameters; a text says what cannot be read."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    values: list[ast.expr | None] = [None] * (len(parameters) - len(function.args.defaults))
    values += function.args.defaults
    pairs = [*zip(parameters, values, strict=True)]
    pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    for parameter, value in pairs:
        if parameter.annotation and "Context" in ast.unparse(parameter.annotation):
            continue
        yield _of_parameter(parameter, value, constants)


def _of_parameter(
    parameter: ast.arg, value: ast.expr | None, constants: Constants
) -> ScriptOption | str:
    name, about = parameter.arg, _about(parameter.annotation)
    if isinstance(value, ast.Call) and call_name(value.func) in {"Option", "Argument"}:
        about = value
        first = value.args[0] if value.args else None
        value = None if isinstance(first, ast.Constant) and first.value is ... else first
    declared = typed(parameter.annotation)
    if declared is None:
        return f"the type of {name} is not a plain one"
    keywords = (
        {keyword.arg: keyword.value for keyword in about.keywords if keyword.arg} if about else {}
    )
    words = [word.value for word in (about.args if about else []) if isinstance(word, ast.Constant)]
    flags = [part for word in words if isinstance(word, str) for part in word.split("/")]
    flags = [flag for flag in flags if flag.startswith("-")]
    is_word = call_name(about.func) == "Argument" if about else value is None
    default, is_switch = plain(literal(value, constants)), declared.kind == "bool" and not is_word
    dashed = name.replace("_", "-")
    off = () if not is_switch or flags else (f"--no-{dashed}",)
    off = tuple(flags[1:]) if is_switch and any("/" in str(word) for word in words) else off
    kind: Kind = "switch" if is_switch else kind_of(declared.kind, name)
    return ScriptOption(
        names=(name,) if is_word else (*(flags or (f"--{dashed}",)), *(off if not flags else ())),
        off=off,
        least=0 if is_switch else 1,
        most=0 if is_switch else None if is_word and declared.many else 1,
        kind=kind,
        default=(bool(default) if is_switch else default),
        choices=declared.choices,
        help=str(literal(keywords.get("help"), constants) or ""),
        group=str(literal(keywords.get("rich_help_panel"), constants) or ""),
        required=value is None,
        repeated=declared.many and not is_word,
    )


def _about(annotation: ast.expr | None) -> ast.Call | None:
    """The ``typer.Option(…)`` in an ``Annotated[T, typer.Option(…)]``."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        for member in annotation.slice.elts:
            if isinstance(member, ast.Call) and call_name(member.func) in {"Option", "Argument"}:
                return member
    return None
