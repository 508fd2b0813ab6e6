"""Names that a piece of source uses and does not define."""

from __future__ import annotations

import ast
import builtins
import symtable

from workbench.errors import UsageError
from workbench.store.python_source import parse_python

_ALWAYS = {
    *dir(builtins),
    *("__file__", "__annotations__", "__path__", "__builtins__", "__cached__"),
    *("__module__", "__qualname__"),  # in the body of a class
}
_NOTEBOOK_ONLY = ("%", "!", "?")


def parsed(source: str, title: str) -> ast.Module:
    """The tree of `source`, which errors call `title`.

    Raises:
        UsageError: it is not plain Python, which is all that a rank understands.
    """
    try:
        tree = parse_python(source, title)
        compile(source, title, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        text = (source.splitlines()[line - 1 : line] or [""])[0].strip()
        problem = getattr(error, "msg", None) or str(error)
        if text.startswith(_NOTEBOOK_ONLY) or text.endswith("?"):
            problem = (
                "IPython's own syntax; each rank is plain Python. Put it into a cell of its own"
            )
        raise UsageError(f"{title}, line {line}: `{text}`: {problem}.") from error
    return tree


def missing_names(source: str, title: str = "<source>") -> dict[str, int]:
    r"""The global names that `source` reads and never defines, each with its first line.

    With ``from x import *`` in it nothing is known to be missing.

    Raises:
        UsageError: it is not plain Python.

    >>> missing_names("import os\ndef f(x):\n    return os.sep + x + y\n")
    {'y': 3}
    """
    tree = parsed(source, title)
    if any(
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)
    ):
        return {}
    top = symtable.symtable(source, title, "exec")
    tables = _all_tables(top)
    defined = {symbol.get_name() for symbol in top.get_symbols() if _is_bound(symbol)}
    defined |= _named_in_passing(tree)
    read = set[str]()
    for table in tables:
        for symbol in table.get_symbols():
            if symbol.is_global() or table is top:
                name = symbol.get_name()
                if symbol.is_assigned() and symbol.is_declared_global():
                    defined.add(name)
                if symbol.is_referenced():
                    read.add(name)
    lacking = read - defined - _ALWAYS
    lines = dict[str, int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in lacking:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return dict(sorted(lines.items(), key=lambda item: item[1]))


def _named_in_passing(tree: ast.Module) -> set[str]:
    """Targets of `:=` at top level; Python 3.12's tables leave out those in comprehensions."""
    names, waiting = set[str](), list[ast.AST](tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.NamedExpr):
            names.add(node.target.id)
        inside: list[ast.AST] = []  # names of its own, other than its decorators and defaults
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = [*node.body]
        elif isinstance(node, ast.Lambda):
            inside = [node.body]
        waiting += [child for child in ast.iter_child_nodes(node) if child not in inside]
    return names


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _all_tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [
        table,
        *(table_below for child in table.get_children() for table_below in _all_tables(child)),
    ]
