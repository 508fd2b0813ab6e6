"""What is to be launched: a recipe's name or a script that Python could start."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from workbench import recipes
from workbench.errors import UsageError


def resolve(target: str) -> tuple[Path, str | None]:
    """The script's path and, for a recipe, its name."""
    known = recipes.recipes()
    path = Path(target).expanduser()
    if target in known and not path.is_file():
        return known[target].path, target
    if target in recipes.SCRIPTS and not path.is_file():
        return recipes.SCRIPTS[target], None
    if path.is_dir():
        raise UsageError(f"{target!r} is a folder. Give the training script in it.")
    if not path.is_file():
        raise UsageError(_no_such_script(path, sorted([*known, *recipes.SCRIPTS])))
    _check_python(path)
    return path.absolute(), None


_WORTH_PRELOADING = {"transformers": ("transformers", "transformers.trainer")}  # seconds, no more


def worth_preloading(path: Path) -> tuple[str, ...]:
    """What the script imports, beside torch and accelerate, that a warm start should have."""
    try:
        names = _imported(path)
    except (OSError, SyntaxError):
        return ()
    return tuple(one for name in sorted(names) for one in _WORTH_PRELOADING.get(name, ()))


def spreads_itself(path: Path) -> bool:
    """Whether the script is TensorFlow's: one process drives all its devices there."""
    names = _imported(path)
    return "tensorflow" in names and not names & {"torch", "accelerate"}


def _imported(path: Path) -> set[str]:
    """The packages that the script names in an import, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def takes_all_gpus(path: Path) -> bool:
    """Whether one process of the script may want several GPUs; else it would by accident.

    Hugging Face's Trainer wraps a model in DataParallel where a lone process sees several.
    """
    source = path.read_bytes()
    return b"device_map" in source or b"DataParallel(" in source or spreads_itself(path)


def _no_such_script(path: Path, known: list[str]) -> str:
    folder = path.parent
    there = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, [*there, *known], n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"No script {str(path)!r} in {folder.absolute()}.{hint} Recipes: {', '.join(known)}."


def _check_python(path: Path) -> None:
    """Refuse what Python itself could not start, before a GPU is paid for."""
    try:
        source = path.read_bytes()
        if b"\0" in source:
            raise UsageError(f"{path} is not a Python script but a binary file.")
        ast.parse(source, filename=str(path))
    except SyntaxError as error:
        raise UsageError(
            f"{path}, line {error.lineno}: {error.msg}. Fix the script, then launch again."
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
