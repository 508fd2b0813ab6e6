"""Python source as a tree, also where several threads want one at the same time."""

from __future__ import annotations

import ast
import threading

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
