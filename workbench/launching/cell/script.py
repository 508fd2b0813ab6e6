"""A cell or a function as a script file, whose line numbers are the cell's."""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

from workbench.errors import UsageError
from workbench.launching.cell.included_source import (
    NEW_PROCESS,
    included_source,
    is_importable,
    source_of,
)
from workbench.launching.cell.missing import missing_names, parsed
from workbench.store.layout import CELL_FOLDER

_MARK = "# %%train"
_PRELUDE = "import os, sys; sys.path.insert(0, os.getcwd())"
_NAN = "float('nan')"  # as a word; no Python literal is NaN, and 1e999 is infinite
_INCLUDED_MODULE = "notebook_source"
_STAGED = ".cells"
_NOTEBOOK_OWN = {"get_ipython", "display", "In", "Out", "_", "__", "___"}


def _prelude() -> str:
    """Finds modules where the notebook finds them, other than where each new Python looks."""
    plain = sysconfig.get_paths()
    own = [plain[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [sys.prefix, sys.base_prefix, site.getusersitepackages()]
    own = [Path(folder).resolve() for folder in own]
    added = [
        folder
        for folder in dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path if entry)
        if Path(folder).is_dir()
        and not any(Path(folder).resolve().is_relative_to(place) for place in own)
    ]
    if not added:
        return _PRELUDE
    return f"{_PRELUDE}; sys.path += [p for p in {added!r} if p not in sys.path]"


def cell_script(
    root: Path,
    source: str,
    namespace: Mapping[str, Any],
    *,
    number: int | str = "",
    include: Sequence[str] = (),
) -> Path:
    """The script of a cell below the store `root`; a launch copies it into its run directory.

    Args:
        root: The store's folder.
        source: The cell below its first line, which is the magic's.
        namespace: What the notebook defines.
        number: The cell's, as in ``In [12]``.
        include: Names of the notebook that it takes along by source.

    Raises:
        UsageError: it is not plain Python, or uses a name that a new process does not have.
    """
    title = f"cell [{number}]"
    body = f"\n{source}"
    tree = parsed(body, title)
    lacking = {name: line for name, line in missing_names(body, title).items()
               if name not in include}  # fmt: skip
    if lacking:
        raise UsageError("\n".join(_sentence(n, line, namespace) for n, line in lacking.items()))
    included = included_source(list(include), namespace) if include else ""
    first = [_prelude(), f"from {_INCLUDED_MODULE} import {', '.join(include)}" if include else ""]
    lines = re.split(r"\r\n|\r|\n", body.rstrip("\r\n"))  # as Python has its lines
    for node in tree.body:  # has to be a file's first statement
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            first.insert(0, ast.unparse(node))
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    lines[0] = "; ".join(filter(None, first)) + f"  {_MARK} {title}"
    return _write(root, f"cell_{number}", "\n".join(lines) + "\n", included)


def _sentence(name: str, line: int, namespace: Mapping[str, Any]) -> str:
    if name in _NOTEBOOK_OWN:
        return f"line {line}: `{name}` is the notebook's own; {NEW_PROCESS} and has none."
    if name not in namespace:
        return f"line {line}: `{name}` is defined neither in this cell nor in your notebook."
    value = namespace[name]
    where = f"line {line}: `{name}` is defined in your notebook, not in this cell: {NEW_PROCESS}."
    if isinstance(value, ModuleType):
        plain = value.__name__ == name
        return f"{where} Add `import {value.__name__}{'' if plain else f' as {name}'}` to the cell."
    if is_importable(value):
        return f"{where} Add `from {value.__module__} import {value.__qualname__}` to the cell."
    if isinstance(value, FunctionType | type):
        return f"{where} Take it along: --include {name}"
    return f"{where} Make it in the cell, or give it as an argument after --."


def function_script(root: Path, function: Callable[..., object]) -> Path:
    """The script that calls `function` with its own arguments, each read as a Python literal.

    Raises:
        UsageError: it can neither be imported nor written down.
    """
    name, home = function.__name__, function.__module__
    included = ""
    if not is_importable(function):
        source_of(function)
        included = included_source([name], {**function.__globals__, name: function})
        home = _INCLUDED_MODULE
    text = (
        f"{_prelude()}  {_MARK} {name}\n"
        "import ast\n\n"
        f"from {home} import {name}\n\n\n"
        "def read(word):\n"
        f"    if word == {_NAN!r}:\n"
        f"        return {_NAN}\n"
        "    try:\n"
        "        return ast.literal_eval(word)\n"
        "    except (ValueError, SyntaxError):\n"
        "        return word\n\n\n"
        'if __name__ == "__main__":\n'
        f"    {name}(*map(read, sys.argv[1:]))\n"
    )
    return _write(root, name, text, included)


def as_words(arguments: Sequence[Any]) -> list[str]:
    """The arguments of a function as words that its script reads back as they are.

    Raises:
        UsageError: one of them cannot be written as a Python literal.
    """
    words = list[str]()
    for argument in arguments:
        value = _plain(argument)
        if isinstance(value, float) and not math.isfinite(value):
            words.append(_NAN if math.isnan(value) else f"{'-' * (value < 0)}1e999")
            continue
        text = repr(value)
        try:
            same = ast.literal_eval(text) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if isinstance(value, os.PathLike):
            raise UsageError(f"The path {text} is given to a function as a text: str(path).")
        if not same:
            raise UsageError(
                f"An argument is a {type(value).__name__}, which lives in this process only: "
                f"{NEW_PROCESS}. Give numbers, texts, lists and dicts, or a path to what it reads."
            )
        if isinstance(value, str) and value != _NAN and not _is_literal(value):
            text = value
        words.append(text)
    return words


def _plain(value: Any) -> Any:
    """The number that a scalar of NumPy or torch is, in lists and dicts too; others as they are."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    if type(value) in {list, tuple}:
        return type(value)(map(_plain, value))
    if type(value) is dict:
        pairs = cast("Mapping[Any, Any]", value).items()
        return {name: _plain(held) for name, held in pairs}
    return value


def call_words(function: Callable[..., object], arguments: Iterable[Any]) -> list[str]:
    """`as_words` of the arguments, where a rank can call the function with them.

    Raises:
        UsageError: the arguments are no list, or not those of the function; or it is no plain
            function, or one that only an event loop or an iteration runs.
    """
    if not isinstance(function, FunctionType):
        raise UsageError(
            f"{function!r} is not a plain function: give a def, a script's path or a recipe's name."
        )
    name = function.__name__
    if isinstance(arguments, str | bytes | Mapping) or not isinstance(arguments, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"The arguments of `{name}` are a list in its order, as [3e-4, 100], not {arguments!r}."
        )
    if any(kind(function) for kind in _NOT_CALLED):
        raise UsageError(
            f"`{name}` is async or a generator, so calling it runs none of it. Give a plain def."
        )
    # As it is called: a decorator (hydra.main) may give what the function inside takes.
    given, signature = list(arguments), inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise UsageError(
            f"`{name}{signature}` cannot be called with {len(given)} arguments: {error}. Give them "
            "as a list in its order; it is called without keywords."
        ) from None
    return as_words(given)


_NOT_CALLED = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _write(root: Path, name: str, text: str, included: str) -> Path:
    (root / _STAGED).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=root / _STAGED)) / CELL_FOLDER
    folder.mkdir()
    path = folder / f"{re.sub(r'[^A-Za-z0-9_]', '', name)}.py"
    path.write_text(text, encoding="utf-8")
    if included:
        (folder / f"{_INCLUDED_MODULE}.py").write_text(included, encoding="utf-8")
    return path


def kept_script(script: Path, folder: Path) -> Path:
    """The script to start: of a cell a copy in `folder`, of the run directory; else `script`.

    Raises:
        OSError: the copy cannot be made.
    """
    if script.parent.name != CELL_FOLDER:
        return script
    with script.open(encoding="utf-8", errors="replace") as file:
        if _MARK not in file.readline():
            return script
    folder.mkdir(mode=0o700)
    for path in script.parent.glob("*.py"):
        shutil.copyfile(path, folder / path.name)
    return folder / script.name


def tidy(script: Path) -> None:
    """Remove the staged files of a cell whose run keeps them."""
    staged = script.parent.parent
    if script.parent.name == CELL_FOLDER and staged.parent.name == _STAGED:
        shutil.rmtree(staged, ignore_errors=True)
