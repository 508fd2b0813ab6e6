"""Python source as a tree, also where several threads want one at the same time."""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

_LOCK = threading.Lock()


def parse_python(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """`ast.parse`, one thread at a time.

    CPython up to 3.12 counts the depth of all threads' trees in one number, and raises SystemError
    in one thread when the garbage collector has let another begin a tree.

    Raises:
        SyntaxError, ValueError, RecursionError: as `ast.parse`.
    """
    with _LOCK:
        return ast.parse(source, filename=filename)


def script_tree(script: Path) -> ast.Module:
    """The tree of a script, parsed once as long as its file does not change; only read it.

    Raises:
        OSError: it cannot be read.
        SyntaxError, ValueError, RecursionError: as `ast.parse`.
    """
    state = script.stat()
    return _tree(script, state.st_ino, state.st_size, state.st_mtime_ns)


def readable_tree(script: Path) -> ast.Module | None:
    """`script_tree`; None where the script cannot be read or is no Python."""
    try:
        return script_tree(script)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    r"""Each name that an import in the tree may mean, with the number of dots before it.

    What is taken out of a module is named with it: it may be a module itself.

    >>> list(imports(parse_python("import a.b as c\nfrom d import e\nfrom . import f")))
    [('a.b', 0), ('d', 0), ('d.e', 0), ('f', 1)]
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.module, node.level
            within = f"{node.module}." if node.module else ""
            yield from ((f"{within}{alias.name}", node.level) for alias in node.names)


def imported_packages(tree: ast.AST) -> set[str]:
    r"""The top-level packages that the tree imports, wherever in it; not its own modules by dots.

    >>> sorted(imported_packages(parse_python("import a.b\nfrom c.d import e\nfrom .f import g")))
    ['a', 'c']
    """
    return {name.partition(".")[0] for name, dots in imports(tree) if not dots}


@functools.lru_cache(maxsize=2)
def _tree(script: Path, *_state: int) -> ast.Module:
    return parse_python(script.read_bytes(), str(script))
