"""What several commands share: the two consoles, the usual options, and staying to a run's end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from workbench.cli.completion import run_names
from workbench.cli.live import follow
from workbench.describe.option import declared
from workbench.errors import WorkbenchError
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.run import Run
from workbench.store.commands import command_for


class _Console(Console):
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
errors = Console(stderr=True, highlight=False)

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

PREEMPTED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, try again later


def stay(run: Run, *, quiet: bool, passes_on_sigterm: bool = False) -> None:
    """Wait for the run's end, showing it unless `quiet`.

    Ctrl-C, or the end of a viewer, leaves it running. With `passes_on_sigterm` SIGTERM, which a
    machine sends before it goes, is handed to the run, and waited for; said when it happens.
    """
    try:
        with _passing_on_sigterm(run) if passes_on_sigterm else nullcontext():
            if quiet:
                run.wait()
            else:
                follow(run, console)
    except KeyboardInterrupt:
        stop = command_for(run.directory, "stop")
        errors.print(
            f"detached; the run continues. To stop it: {stop}", markup=False, soft_wrap=True
        )
        raise typer.Exit(0) from None


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


@contextmanager
def _passing_on_sigterm(run: Run) -> Generator[None]:
    """The second one ends this process as usual."""

    def pass_on(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, before)
        os.write(2, b"SIGTERM: passed on to the run, which saves a checkpoint and ends\n")
        with suppress(WorkbenchError):
            run.preempt()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_with(run: Run) -> None:
    """Leave with the exit code of a run that was waited for: 0, 1, or 75 when pre-empted."""
    if run.outcome == "preempted":
        raise typer.Exit(PREEMPTED_EXIT_CODE)
    if run.outcome not in {"succeeded", "stopped", None}:
        raise typer.Exit(1)
