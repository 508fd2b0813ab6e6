"""What a script takes along from a notebook or module, as source: functions, classes, imports."""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, cast

from workbench.errors import UnknownNameError, UsageError
from workbench.launching.cell.missing import missing_names
from workbench.store.python_source import parse_python

NEW_PROCESS = "each rank is a new process"
_DEEPEST = 200  # names that one source may draw in


def included_source(names: list[str], namespace: Mapping[str, Any]) -> str:
    """Source that defines `names` as `namespace` has them, with what they need of it.

    Raises:
        UnknownNameError: the namespace has no such name.
        UsageError: one of them, or what it uses, has no source.
    """
    for name in names:
        if name not in namespace:
            public_names = [name for name in namespace if not name.startswith("_")]
            raise UnknownNameError.near("name in the notebook", name, public_names)
    imports, bodies = list[str](), dict[str, str]()
    waiting = [(name, "") for name in names]
    done = set[str]()
    while waiting:
        name, user = waiting.pop(0)
        if name in done or len(done) > _DEEPEST:
            continue
        done.add(name)
        line = _import_line(name, namespace[name])
        if line is not None:
            imports.append(line)
            continue
        body = _body(name, namespace[name], user)
        bodies[name] = body
        for used in missing_names(body):
            if used not in namespace:
                raise UsageError(f"`{name}` uses `{used}`, which is not defined. Define it first.")
            waiting.append((used, name))
    return "\n".join([*imports, "", *_in_order(bodies, namespace)]) + "\n"


def is_importable(value: Any) -> bool:
    """Whether a new process gets this very thing by importing it."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    if "." in name:
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _import_line(name: str, value: Any) -> str | None:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if is_importable(value):
        return f"from {value.__module__} import {value.__qualname__} as {name}"
    return None


def _body(name: str, value: Any, user: str) -> str:
    """Source that defines one name; `user` = the taken name that needs it."""
    if isinstance(value, FunctionType | type):
        source = source_of(value)
        own = value.__name__
        return source if own == name else f"{source}\n{name} = {own}"
    if _is_constant(value):
        return f"{name} = {value!r}"
    kind = type(value).__name__
    if user:
        raise UsageError(
            f"`{user}` uses `{name}`, a {kind} of your notebook: {NEW_PROCESS} and has no such "
            f"value. Give it to {user} as an argument, or make it inside."
        )
    raise UsageError(
        f"`{name}` is a {kind}; only functions, classes, imports and plain numbers and texts can "
        f"be taken along, because {NEW_PROCESS}. Make it in the cell, or in a function taken along."
    )


def source_of(value: Any) -> str:
    """The source of a function or class, at the left margin. Raises UsageError: it has none."""
    name = getattr(value, "__name__", "")
    if name == "<lambda>":
        raise UsageError(f"A lambda has no source of its own, and {NEW_PROCESS}: write a def.")
    plain = inspect.unwrap(value)
    free = plain.__code__.co_freevars if isinstance(plain, FunctionType) else ()
    if free:
        raise UsageError(
            f"`{name}` is a closure over {', '.join(free)}, which lives in this process only: "
            f"{NEW_PROCESS}. Make it a plain function with arguments."
        )
    source = _class_source(value) if isinstance(value, type) else _function_source(value)
    if source is None:
        raise UsageError(
            f"`{name}` has no source that could be read (typed at a prompt, built in, or made by "
            f"exec), and {NEW_PROCESS}. Put it into a cell or a module."
        )
    return textwrap.dedent(source).rstrip() + "\n"


def _function_source(value: Any) -> str | None:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return None


def _class_source(value: type) -> str | None:
    """`inspect` finds no class of a notebook, because its module has no file: look in the cells."""
    codes = (getattr(inspect.unwrap(member), "__code__", None)
             for member in vars(value).values() if callable(member))  # fmt: skip
    files = [code.co_filename for code in codes if code is not None]
    files += [name for name in reversed(list(linecache.cache)) if "ipykernel" in name
              or name.startswith("<ipython-input")]  # fmt: skip
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files += [main] if isinstance(main, str) else []
    for file in dict.fromkeys(files):
        source = "".join(linecache.getlines(file))
        for node in _classes(source):
            if node.name == value.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(source.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return None


def _classes(source: str) -> Iterator[ast.ClassDef]:
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return iter(())
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _is_constant(value: Any) -> bool:
    """Whether its text says all of it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, tuple):
        return all(_is_constant(item) for item in cast("tuple[Any, ...]", value))
    return value is None or type(value) in {bool, int, str, bytes}


def _in_order(bodies: Mapping[str, str], namespace: Mapping[str, Any]) -> list[str]:
    """Constants, then functions and classes as they were defined: decorators and bases first."""

    def place(name: str) -> tuple[int, int]:
        needed = set(missing_names(bodies[name])) & set(bodies)
        kind = isinstance(namespace[name], FunctionType | type)
        return (int(kind), len(needed))

    placed, remaining = list[str](), sorted(bodies, key=place)
    while remaining:  # what a definition reads at once must stand before it
        ready = next(
            (n for n in remaining if not _read_at_once(bodies[n]) & set(remaining) - {n}),
            remaining[0],
        )
        remaining.remove(ready)
        placed.append(bodies[ready])
    return placed


def _read_at_once(body: str) -> set[str]:
    """Names that a definition reads when it is made: bases, decorators, defaults, class bodies."""
    names = set[str]()
    waiting: list[ast.AST] = list(parse_python(body).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = node.body if isinstance(node.body, list) else [node.body]
            children = [child for child in children if child not in inside]
        waiting += children
    return names
