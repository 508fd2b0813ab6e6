"""What several commands share: the two consoles, the usual options, and SIGTERM as Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.table import Table

from workbench.cli.completion import run_names
from workbench.cli.text_console import TextConsole
from workbench.describe.option import declared
from workbench.launching.prepare.options import LaunchOptions


class _Console(TextConsole):
    """In a narrow terminal a cell takes more lines; no id is cut, which could not be copied."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As usual."""
        for column in (
            column for table in objects if isinstance(table, Table) for column in table.columns
        ):
            if column.overflow == "ellipsis" and not column.no_wrap:
                column.overflow = "fold"
        super().print(*objects, **how)


# A pipe has no width: tables are not squeezed, and ids stay whole.
console = _Console(highlight=False, width=None if sys.stdout.isatty() else 200)
errors = TextConsole(stderr=True, highlight=False)

_STORE = declared(LaunchOptions)["store"]
StoreOption = Annotated[
    str | None, typer.Option(_STORE.flag, metavar=_STORE.option.metavar, help=_STORE.help)
]
_RUN_HELP = "Run id, unique prefix, name, folder, or 'last'."
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help=_RUN_HELP, autocompletion=run_names)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]
TargetArgument = Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help="As for launch.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would start.")]
ModuleOption = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")
]
_WAIT_HELP = "Wait for the end (Ctrl-C detaches; SIGTERM is passed to the run)."
WaitOption = Annotated[bool, typer.Option("--wait", help=_WAIT_HELP)]
_ARGUMENTS_HELP = "Arguments of the script. Its options: workbench launch SCRIPT -- --help"
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS...]", help=_ARGUMENTS_HELP)
]
ReplacedArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ARGS...]",
        help="Arguments that replace those of the same name; {checkpoint} becomes its folder.",
    ),
]
_DROP_HELP = "Argument to remove, with its values; '*' for all. May be repeated."
DropOption = Annotated[list[str] | None, typer.Option(help=_DROP_HELP, metavar="ARG")]


class Terminated(KeyboardInterrupt):
    """SIGTERM, which cleans up as Ctrl-C does."""

    code = 128 + signal.SIGTERM


@contextmanager
def sigterm_as_interrupt() -> Generator[None]:
    """Within it SIGTERM raises `Terminated`; a second one ends this process as usual."""

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, before)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
