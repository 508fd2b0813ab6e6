"""Python source as a tree, also where several threads want one at the same time."""

from __future__ import annotations

import ast
import functools
import threading
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


@functools.lru_cache(maxsize=2)
def _tree(script: Path, *_state: int) -> ast.Module:
    return parse_python(script.read_bytes(), str(script))
