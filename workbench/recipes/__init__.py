"""Training scripts that run out of the box, and what can be known of a run without starting it.

A recipe is one standalone script. Everything above its `import torch` uses the standard library
alone and defines `parse_options(argv)`, which raises ValueError or returns the options completed
by the model's shape. `shape()` executes just that head, so the rules stand in one place, in the
script, and asking them takes milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import UnknownNameError, UsageError

DEFAULT = "gpt"
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training script of ours."""

    name: str
    """What people type, for example `gpt`."""
    path: Path
    """The script; it runs alone: `python`, `torchrun` and `accelerate launch` all start it."""
    summary: str
    """One sentence for menus."""
    cpu_arguments: tuple[str, ...]
    """Arguments for a first look on CPU: two minutes on two slow cores show a falling loss."""
    gpu_arguments: tuple[str, ...]
    """Arguments for a first look on GPU: GPT-2 small's shape in bf16, sized for 24 GB cards."""
    block: str
    """Class name of its repeated block: what FSDP gathers one by one."""


_RECIPES: Mapping[str, Recipe] = {
    "gpt": Recipe(
        name="gpt",
        path=_HERE / "gpt.py",
        summary="A byte-level GPT on the sources of Python's standard library; no download.",
        cpu_arguments=("--size", "2", "--minutes", "2"),
        gpu_arguments=(
            *("--size", "12", "--seq-len", "1024", "--micro-batch", "16"),
            *("--precision", "bf16", "--minutes", "2"),
        ),
        block="Block",
    ),
}

# What shape() returns, in this order: the model, then the run.
_SHAPE = (
    *("layers", "hidden", "heads", "vocab", "mlp", "tied", "parameters"),
    *("seq_len", "micro_batch", "accumulate", "precision", "steps", "minutes"),
)


def recipes() -> dict[str, Recipe]:
    """All recipes by name.

    >>> list(recipes())
    ['gpt']
    """
    return dict(_RECIPES)


def find(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UnknownNameError: (a ValueError) nobody knows it; the message has the nearest names.
    """
    if name not in _RECIPES:
        raise UnknownNameError.near("recipe", name, _RECIPES)
    return _RECIPES[name]


def shape(arguments: Sequence[str] = (), *, recipe: str = DEFAULT) -> dict[str, Any]:
    """What a recipe would train with these arguments, without loading torch.

    The keys: layers, hidden, heads, vocab, mlp (the MLP's inner width), tied (embedding and head
    share one matrix), parameters (exact), seq_len, micro_batch (sequences per process), accumulate
    (micro-batches per optimizer step), precision, and steps and minutes (None: no such limit).

    >>> gpt2 = shape(["--size", "12", "--seq-len", "1024"])
    >>> gpt2["layers"], gpt2["hidden"], gpt2["parameters"], gpt2["minutes"]
    (12, 768, 85327872, 2.0)

    Raises:
        UsageError: (a ValueError) the script would refuse these arguments; the message is its own.
        UnknownNameError: no recipe of that name.
    """
    script = find(recipe)
    if {"-h", "--help"} & set(arguments):
        raise UsageError(f"--help describes no run: start {script.path.name} with it to read it.")
    try:
        options = _parser_of(script.path)(list(arguments))
    except ValueError as error:
        raise UsageError(f"{script.path.name}: {error}") from error
    return {key: getattr(options, key) for key in _SHAPE}


@functools.cache
def _parser_of(path: Path) -> Callable[[list[str]], Any]:
    """`parse_options` of the script at `path`, from the part above its `import torch`."""
    head = path.read_text(encoding="utf-8").partition("\nimport torch\n")[0]
    names: dict[str, Any] = {"__name__": path.stem}
    code = compile(head, str(path), "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - a file of this package, not input from anybody
    return names["parse_options"]
