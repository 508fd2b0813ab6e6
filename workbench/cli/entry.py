"""The application ``workbench``. Names, JSON keys and exit codes are a contract.

Exit code 0: done; 1: the thing asked about failed; 2: wrong usage. ``--json`` prints exactly one
JSON value on stdout; everything else goes to stderr.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from itertools import pairwise
from typing import NoReturn

import typer

from workbench.cli.commands import LazyGroup
from workbench.errors import UsageError, WorkbenchError
from workbench.version import __version__

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def workbench() -> None:
    """Predict, launch, watch and explain multi-GPU training on this host."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def run_app() -> None:
    """Run a command and turn our exceptions into one clear line and the right exit code."""
    warnings.formatwarning = _note
    for stream in (sys.stdout, sys.stderr):
        # In an ASCII locale a name in other letters is shown escaped; it must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as error:
        if error.code == 0:
            _say_that_the_queue_waits()
        if error.code == 2 and "launch" in sys.argv[1:2] and "--" not in sys.argv:
            hint = "Options of the script itself come after --: workbench launch SCRIPT -- …"
            typer.echo(hint, err=True)
        raise
    except UsageError as error:
        _fail(error, 2)
    except WorkbenchError as error:
        _fail(error, 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _say_that_the_queue_waits() -> None:
    """After a reboot no one serves a store's queue: reading starts nothing, but says so."""
    given = sys.argv[1:]
    root = next((two for argument, two in pairwise(given) if argument == "--store"), None)
    root = next((argument[8:] for argument in given if argument.startswith("--store=")), root)
    if "queue" in given[:1] or not os.path.isdir(  # noqa: PTH112  (no pathlib for --help)
        os.path.join(root or os.environ.get("WORKBENCH_STORE") or "runs", ".queue")  # noqa: PTH118
    ):
        return
    from workbench.store.queue_files import QueueFiles  # noqa: PLC0415
    from workbench.store.runs import Store  # noqa: PLC0415

    files = QueueFiles(Store(root).root)
    if files.stands_still:
        count = len(files.waiting()) + len(files.starting())
        many = "1 run waits" if count == 1 else f"{count} runs wait"
        more = "" if root is None else f" --store {root}"
        typer.echo(
            f"note: {many} in the queue and nothing starts them. Start the queue: "
            f"workbench queue start{more}",
            err=True,
        )


def _note(message: Warning | str, *_place: object, **_line: object) -> str:
    """A warning as one line for people: no path, no source."""
    return f"note: {message}\n"


def _fail(error: Exception, code: int) -> NoReturn:
    from workbench.cli.tables import print_json  # noqa: PLC0415 - --help and version need no Rich
    from workbench.cli.terminal import errors  # noqa: PLC0415

    if "--json" in sys.argv:
        print_json({"error": str(error)})
    errors.print("error:", style="bold red", end=" ")
    errors.print(str(error), markup=False, soft_wrap=True)  # paths stay whole
    sys.exit(code)
