"""The line of ``%%train``: the options of ``workbench launch``, for a notebook's cell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated

import typer

from workbench.cli.describing import with_options
from workbench.cli.terminal import DryRunOption, ScriptArguments
from workbench.describe.option import Group
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """What the line asks for."""

    options: LaunchOptions
    """Of the launch."""
    arguments: tuple[str, ...] = ()
    """The cell's ``sys.argv`` after its first word."""
    include: tuple[str, ...] = ()
    """Names of the notebook that the cell takes along."""
    dry_run: bool = False
    """Only show what would start."""
    wait: bool = True
    """Watch the run until it ends."""


def read_line(line: str) -> CellLine | None:
    """What ``%%train LINE`` asks for; None where it asked for help, which is printed.

    Raises:
        UsageError: an option is unknown, or its value impossible.
    """
    cells = list[CellLine]()

    def train(
        arguments: ScriptArguments = None,
        *,
        options: Annotated[LaunchOptions, Group(of=LaunchOptions)],
        include: Annotated[
            str | None,
            typer.Option(help="Functions and classes to take along.", metavar="NAME,NAME"),
        ] = None,
        wait: Annotated[bool, typer.Option(help="Watch the run until it ends.")] = True,
        dry_run: DryRunOption = False,
    ) -> None:
        """Launch this cell as a script: each rank is a new process."""
        names = [part.strip() for part in (include or "").split(",")]
        cells.append(
            CellLine(
                options=options,
                arguments=tuple(arguments or ()),
                include=tuple(dict.fromkeys(filter(None, names))),
                dry_run=dry_run,
                wait=wait,
            )
        )

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(with_options(train))
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%train {line}: {error}. Close the quotation marks.") from error
    if "--" not in words and any(not word.startswith("-") for word in words[:1]):
        raise UsageError(
            f"%%train takes options, and {words[0]!r} is none. The cell's own arguments come "
            f"after --: %%train -- {line}"
        )
    try:
        app(words, prog_name="%%train", standalone_mode=False)
    except Exception as error:
        format_message = getattr(
            error, "format_message", None
        )  # Typer's own copy of Click is private
        if format_message is None:
            raise
        raise UsageError(
            f"%%train {line}: {format_message()} The cell's own arguments come after --."
        ) from error
    return cells[0] if cells else None
