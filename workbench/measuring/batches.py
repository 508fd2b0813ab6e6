"""Ways to have a script train at another batch size, best first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.script_options.from_source import script_options
from workbench.store.measurements import batch_argument, is_batch_option
from workbench.store.python_source import readable_tree

_HUGGING_FACE, _HUGGING_FACE_DEFAULT = "--per_device_train_batch_size", 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBatch:
    """A second run of the same script."""

    arguments: tuple[str, ...]
    """Its arguments."""
    source: str
    """What changes the batch size, in words."""
    value: int
    """The batch size that is asked for."""
    loader: tuple[int, int] | None = None
    """Batch size that its loaders were made with, and the one that the hook makes them with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    """The option by which a script takes its batch size."""

    name: str
    """With its dashes."""
    default: int | None
    """What it is where nothing is given, as far as the source shows it."""


def usual_value(script: Path, arguments: Sequence[str]) -> int | None:
    """The batch size in the arguments, or the script's default; None where neither shows it."""
    argument = batch_argument(arguments)
    if argument is not None:
        return argument.value
    option = declared_option(script)
    return None if option is None else option.default


def other_batches(
    script: Path, arguments: Sequence[str], samples: int, loader_batch: int | None
) -> Iterator[OtherBatch]:
    """How the script could be run at another batch size.

    Args:
        script: Its file.
        arguments: Of its first run.
        samples: Per micro-batch, as seen in that run.
        loader_batch: Batch size of the DataLoader that trains; None where none was seen.
    """
    argument = batch_argument(arguments)
    if argument is not None:
        size = other_size(argument.value)
        words = tuple(argument.replaced(arguments, size))
        yield OtherBatch(arguments=words, source=arguments_text(argument.prefix), value=size)
    else:
        option = declared_option(script)
        if option is not None:
            size = other_size(option.default or samples)
            words = (*arguments, f"{option.name}={size}")
            yield OtherBatch(arguments=words, source=option.name, value=size)
    if loader_batch is not None:
        size = other_size(loader_batch)
        yield OtherBatch(
            arguments=tuple(arguments),
            source="its DataLoader",
            value=size,
            loader=(loader_batch, size),
        )


def arguments_text(prefix: str) -> str:
    """Where the number stood."""
    return prefix.rstrip("=") or "its argument"


def other_size(size: int) -> int:
    """Half of it, or 2 instead of 1.

    >>> other_size(12), other_size(1)
    (6, 2)
    """
    return size // 2 if size > 1 else 2


def declared_option(script: Path) -> BatchOption | None:
    """The option by which the script takes its batch size, where its source shows one.

    It may be declared in a module beside the script, by argparse, click, typer or a dataclass.
    """
    for option in script_options(script).options:
        if any(map(is_batch_option, option.names)) and not option.is_word:
            return BatchOption(name=option.name, default=_number(option.default))
    tree = readable_tree(script)
    if tree is None:
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if {"HfArgumentParser", "TrainingArguments"} <= names:
        return BatchOption(name=_HUGGING_FACE, default=_HUGGING_FACE_DEFAULT)
    return _assigned(tree)


def _assigned(tree: ast.Module) -> BatchOption | None:
    """A global that ``--name=value`` overwrites, where the script reads its arguments itself."""
    reads = any(_overwrites_globals(node) for node in ast.walk(tree))
    for node in tree.body if reads else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = f"--{node.targets[0].id}"
            if is_batch_option(name):
                return BatchOption(name=name, default=_number(_constant(node.value)))
    return None


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _number(value: object) -> int | None:
    """A batch size; a default may be written as text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return number if isinstance(number, int) and number > 0 else None


def _overwrites_globals(node: ast.AST) -> bool:
    """``exec(open("configurator.py").read())``, or ``globals()[name] = value``."""
    if isinstance(node, ast.Constant):
        return node.value == "configurator.py"
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "globals"
    )
