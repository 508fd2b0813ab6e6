"""Completion by Tab: the script for a shell, and the words that fit a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import typer
from typer.completion import (
    get_completion_script,  # pyright: ignore[reportPrivateImportUsage]  (Typer's own commands use it)
)

from workbench.cli.commands import COMPLETION
from workbench.describe.accelerators import accelerators
from workbench.describe.catalog import every_published
from workbench.describe.option import DeclaredField
from workbench.describe.prices import providers
from workbench.describe.strategy import NAMES
from workbench.errors import WorkbenchError
from workbench.store.runs import Store

_BY_NAME: Final[dict[str, Callable[[], Sequence[str]]]] = {
    "model": lambda: [model.id for model in every_published()],
    "gpu": lambda: [gpu.id for gpu in accelerators()],
    "provider": providers,
    "strategy": lambda: NAMES,
}
"""Options whose words are names of a table."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")],
) -> None:
    """Print a shell's script that completes commands, options, runs and names with Tab.

    bash: add `source <(workbench completion bash)` to ~/.bashrc, zsh the same to ~/.zshrc, fish:
    `workbench completion fish > ~/.config/fish/completions/workbench.fish`.
    """
    typer.echo(get_completion_script(prog_name="workbench", complete_var=COMPLETION, shell=shell))


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the store's runs, newest first, and "last"."""
    with suppress(WorkbenchError, OSError):  # a key press says nothing
        ids = Store(context.params.get("store")).ids()
        return [each for each in ("last", *reversed(ids)) if each.startswith(incomplete)]
    return []


def words_of(field: DeclaredField) -> Callable[[str], list[str]] | None:
    """What completes the value of a declared option; None = free text."""
    names = _BY_NAME.get(field.name)
    choices = [str(each) for each in field.option.choices if each is not None]
    if names is None and not choices:
        return None

    def fitting(incomplete: str) -> list[str]:
        return [word for word in (names() if names else choices) if word.startswith(incomplete)]

    return fitting
