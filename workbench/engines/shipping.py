"""What a script needs beside it on another machine: the local files that it imports."""

from __future__ import annotations

import ast
from pathlib import Path

from workbench.store.python_source import parse_python

FOLDER = "code"
"""Of an export: where the script and its files lie."""
_MOST_BYTES = 5_000_000


def files_of(script: Path) -> dict[str, Path]:
    """Relative name -> file: the script, and every module beside it that one of them imports.

    Imports by a computed name are not seen, data files neither.
    """
    home, found, left = script.parent, dict[str, Path](), [script]
    while left:
        path = left.pop()
        name = path.relative_to(home).as_posix()
        if name in found or path.stat().st_size > _MOST_BYTES:
            continue
        found[name] = path
        left += [one for module in _imports(path) for one in _local(home, module)]
    return dict(sorted(found.items(), key=lambda pair: (pair[1] != script, pair[0])))


def _imports(path: Path) -> set[str]:
    try:
        tree = parse_python(path.read_bytes())
    except SyntaxError:  # a template beside the script is no reason to stop
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _local(home: Path, module: str) -> list[Path]:
    """The file of `module` beside the script, with the __init__ files above it."""
    parts = module.split(".")
    heads = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    names = [f"{head}/__init__.py" for head in heads] + [f"{heads[-1]}.py"]
    return [path for name in names if (path := home / name).is_file()]
