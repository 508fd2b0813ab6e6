"""What is to be launched: a recipe's name, or a script or module that Python could start."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.errors import UsageError
from workbench.launching.prepare.rank_starters import rank_starter
from workbench.store.python_source import imported_packages, script_tree
from workbench.store.run_record import RunRecord

MODULE = "-m "
"""Before a module's name, where Python's own ``-m`` is meant: ``-m package.train``."""
_LONG = 60  # characters of a path in a sentence
_HEAD_BYTES = 64 << 10
_NOTEBOOK = re.compile(rb'"(?:cells|nbformat)"\s*:')
_SHELL_ENDINGS = {".sh", ".bash", ".zsh", ".slurm", ".sbatch"}
_SHELL = re.compile(rb"#![^\n]*[/ ](?:ba|da|z|k|c|tc|fi)?sh\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is launched."""

    path: Path
    """The file that runs, absolute."""
    recipe: str | None = None
    """Name of the recipe, when it is one of ours."""
    module: str | None = None
    """Name of the module that it is started as; None = it is started as a file."""

    @property
    def name(self) -> str:
        """For the default name of a run."""
        return self.path.stem if self.module is None else self.module.rpartition(".")[2]


def resolve(target: str) -> Target:
    """A recipe, a script, or a module as ``-m package.train``.

    Raises:
        UsageError: there is no such thing here, or Python could not read it.
    """
    if not target.strip():
        raise UsageError("Give a training script, a recipe or a module (-m package.train).")
    recipes_by_name = recipes.recipes()
    path = _path(target)
    if target.startswith(MODULE):
        return _module(target.removeprefix(MODULE).strip())
    if target in recipes_by_name and not path.is_file():
        return Target(path=recipes_by_name[target].path, recipe=target)
    if target in recipes.SCRIPTS and not path.is_file():
        return Target(path=recipes.SCRIPTS[target])
    if path.is_dir():
        raise UsageError(f"{target!r} is a folder. Give the training script in it.")
    if not path.is_file():
        raise UsageError(_no_such_script(path, list(recipes_by_name)))
    _check_python(path)
    return Target(path=path.absolute())


def _path(target: str) -> Path:
    """The path that it would be. Raises UsageError: no file can have that name."""
    try:
        path = Path(target).expanduser()
        path.exists()
    except RuntimeError as error:
        raise UsageError(
            f"{target!r} begins with ~ and an unknown user. Write ./~… or the whole path."
        ) from error
    except OSError as error:
        shown = target if len(target) <= _LONG else f"{target[:_LONG]}…"
        raise UsageError(
            f"{shown!r} cannot be opened: {error.strerror}. Give the path of a Python script, or "
            "the name of a recipe."
        ) from error
    return path


_NO_LISTS = (str, bytes, Mapping, AbstractSet)
_WORDS = (str, Real, Decimal, Path)
"""What is written out by itself; NumPy's numbers are Real."""


def as_script_words(arguments: Sequence[Any]) -> list[str]:
    """A script's arguments as the words of its command line; numbers and paths are written out.

    Raises:
        UsageError: it is one text, or something in it is no word.

    >>> as_script_words(["--lr", 3e-4, "--data", Path("a.txt")])
    ['--lr', '0.0003', '--data', 'a.txt']
    """
    is_list = isinstance(arguments, Iterable) and not isinstance(arguments, _NO_LISTS)  # pyright: ignore[reportUnnecessaryIsInstance]
    words: list[Any] = list(arguments) if is_list else []  # a generator gives its words once
    if not is_list or not all(isinstance(word, _WORDS) for word in words):
        example = arguments.split() if isinstance(arguments, str) else ["--lr", "3e-4"]
        raise UsageError(
            f"The arguments are a list of words, as {example!r}, not {words or arguments!r}."
        )
    written = [str(word) for word in words]
    for word in written:
        if problem := _unwritable(word):
            raise UsageError(f"The argument {word!r} {problem}. Leave it out.")
    return written


def _unwritable(word: str) -> str:
    """Why no process can be given that word; empty = it can."""
    if "\0" in word:
        return "holds a zero byte, at which a process ends its arguments"
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        return "is not valid UTF-8 text"
    return ""


def target_of(run: RunRecord) -> str:
    """What the run of this run.json launched, as `resolve` takes it."""
    return run.recipe or (f"{MODULE}{run.module}" if run.module else run.script)


def _module(name: str) -> Target:
    """The file that ``python -m name`` runs from here; no package is imported to find it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{name!r} is not a module's name. Give it as Python imports it: -m package.train, "
            "without .py; for a file leave -m out."
        )
    for folder in dict.fromkeys([str(Path.cwd()), *sys.path]):
        base = Path(folder, *parts)
        for path in (base / "__main__.py", base.with_name(f"{parts[-1]}.py")):
            if path.is_file():
                _check_python(path)
                return Target(path=path.absolute(), module=name)
    raise UsageError(
        f"No module {name!r} to run in {Path.cwd()} or on Python's search path (a package needs a "
        "__main__.py). Change to the folder that python -m would be typed in."
    )


_WORTH_PRELOADING = {  # packages that take long to import, or import such a one, and which
    # Where it is installed, Accelerate imports it to look at a data loader's type.
    "accelerate": ("datasets",),
    "deepspeed": ("deepspeed",),
    "transformers": ("transformers", "transformers.trainer", "datasets"),
}


def worth_preloading(path: Path) -> tuple[str, ...]:
    """What the script imports, besides torch and accelerate, that a warm start should have."""
    try:
        names = imported_packages(script_tree(path))
    except (OSError, SyntaxError):
        return ()
    return tuple(module for name in sorted(names) for module in _WORTH_PRELOADING.get(name, ()))


def spreads_itself(path: Path) -> bool:
    """Whether the script is TensorFlow's: one process drives all its devices there."""
    names = imported_packages(script_tree(path))
    return "tensorflow" in names and not names & {"torch", "accelerate"}


def takes_all_gpus(path: Path) -> bool:
    """Whether one process of the script may want several GPUs; else it would by accident.

    Hugging Face's Trainer wraps a model in DataParallel where a lone process sees several. One that
    starts its ranks itself gives each of them one.
    """
    source = path.read_bytes()
    splits_model = b"device_map" in source or b"DataParallel(" in source
    return splits_model or spreads_itself(path) or rank_starter(path) is not None


def _no_such_script(path: Path, recipe_names: list[str]) -> str:
    """That nothing has that name; of a bare word, which recipes there are, as in --help."""
    folder, is_word = path.parent, path.name == str(path) and not path.suffix
    there = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    names = {name.lower(): name for name in (*there, *recipe_names, *recipes.SCRIPTS)}
    near = difflib.get_close_matches(path.name.lower(), names, n=3, cutoff=0.5)
    if is_word and not near:  # a word of another length than a file's name: train of train_gpt.py
        near = [low for low in names if low.startswith(path.name.lower())][:3]
    hint = f" Did you mean {' or '.join(names[low] for low in near)}?" if near else ""
    kind = "script or recipe" if is_word else "script"
    listed = "" if near and not is_word else f" Recipes: {', '.join(recipe_names)}."
    return f"No {kind} {str(path)!r} in {folder.absolute()}.{hint}{listed}"


def check_kind(path: Path) -> None:
    """Refuse a notebook, whose JSON parses as Python, and a shell script: no rank runs them.

    Raises:
        UsageError: it is one of them, or cannot be read; says what to give instead.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if path.suffix == ".ipynb" or (head.lstrip().startswith(b"{") and _NOTEBOOK.search(head)):
        raise UsageError(
            f"{path} is a notebook, not a Python script. Begin its cell that trains with %%train "
            f"(after %load_ext workbench), or write its cells to a script with "
            f"`jupyter nbconvert --to script {shlex.quote(str(path))}`, and give "
            f"{path.with_suffix('.py')}."
        )
    if path.suffix in _SHELL_ENDINGS or _SHELL.match(head):
        raise UsageError(
            f"{path} is a shell script, not a Python script. The ranks are started without it: "
            f"give {_started_by(path)}, with its arguments after --."
        )


def _started_by(path: Path) -> str:
    """The Python script that a shell script starts, or what that would be."""
    from workbench.trainer_configs import started_script  # noqa: PLC0415 - for this message alone

    try:
        script = started_script(path)
    except UsageError:
        script = ""
    return script or "the Python script that it starts"


def _check_python(path: Path) -> None:
    """Refuse what Python itself could not start, before a GPU is paid for."""
    check_kind(path)
    try:
        if b"\0" in path.read_bytes():
            raise UsageError(f"{path} is not a Python script but a binary file.")
        script_tree(path)
    except (MemoryError, RecursionError) as error:
        raise UsageError(
            f"{path} is nested too deeply for Python to read. Keep its data in a file of its own."
        ) from error
    except SyntaxError as error:
        raise UsageError(
            f"{path}, line {error.lineno}: {error.msg}. Fix the script, then launch again."
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
