"""Ways to have a script train at another batch size, best first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.store.measurements import batch_argument, is_batch_option
from workbench.store.python_source import parse_python

_HUGGING_FACE = "--per_device_train_batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBatch:
    """A second run of the same script."""

    arguments: tuple[str, ...]
    """Its arguments."""
    source: str
    """What changes the batch size, in words."""
    loader: tuple[int, int] | None = None
    """Batch size that its loaders were made with, and the one that the hook makes them with."""


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
    given = batch_argument(arguments)
    if given is not None:
        size = other_size(given.value)
        yield OtherBatch(
            arguments=tuple(given.replaced(arguments, size)), source=arguments_text(given.prefix)
        )
    else:
        option = declared_option(script)
        if option is not None:
            size = str(other_size(samples))
            words = (f"{option}={size}",)
            yield OtherBatch(arguments=(*arguments, *words), source=option)
    if loader_batch is not None:
        yield OtherBatch(
            arguments=tuple(arguments),
            source="its DataLoader",
            loader=(loader_batch, other_size(loader_batch)),
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


def declared_option(script: Path) -> str | None:
    """The option by which the script takes its batch size, where its source shows one."""
    try:
        tree = parse_python(script.read_bytes())
    except (OSError, SyntaxError):
        return None
    texts = [
        node.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"add_argument", "option", "Option"}
        for node in call.args
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    options = [text for text in texts if text.startswith("--") and is_batch_option(text)]
    if options:
        return options[0]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if {"HfArgumentParser", "TrainingArguments"} <= names:
        return _HUGGING_FACE
    return _assigned(tree)


def _assigned(tree: ast.Module) -> str | None:
    """A global that ``--name=value`` overwrites, where the script reads its arguments itself."""
    reads = any(_overwrites_globals(node) for node in ast.walk(tree))
    for node in tree.body if reads else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = f"--{node.targets[0].id}"
            if is_batch_option(name):
                return name
    return None


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
