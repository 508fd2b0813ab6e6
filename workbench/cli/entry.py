"""The application ``workbench``. Names, JSON keys and exit codes are a contract.

Exit code 0: done; 1: the thing asked about failed; 2: wrong usage; 75: the run that was waited for
was pre-empted. ``--json`` prints exactly one JSON value on stdout; everything else goes to stderr.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from workbench.cli.commands import COMPLETION, LazyGroup
from workbench.cli.help_pages import SETTINGS, WRONG_LINE
from workbench.errors import UsageError, WorkbenchError
from workbench.version import __version__

app = typer.Typer(
    cls=LazyGroup,
    context_settings=SETTINGS,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  (as Typer calls it)
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def workbench(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Predict, launch, watch and explain multi-GPU training on this host."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def run_app() -> NoReturn:
    """Run a command and turn our exceptions into one clear line and the right exit code."""
    _prepare()
    # The option is light: to parse the words of a command, Typer loads pydantic.
    words = ["--version"] if sys.argv[1:] == ["version"] else None
    try:
        code = app(words, standalone_mode=False, prog_name="workbench") or 0
    except WRONG_LINE as error:
        _fail(_in_one_line(error), 2)
    except UsageError as error:
        _fail(str(error), 2)
    except WorkbenchError as error:
        _fail(str(error), 1)
    except (FileNotFoundError, RuntimeError) as error:
        _fail(_missing(error), 2)
    except typer.Abort:
        _fail("Aborted.", 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    if code == 0:
        _say_that_the_queue_waits()
    sys.exit(code)


def _prepare() -> None:
    """Set up the warnings, the two streams, and Typer where Tab was pressed."""
    warnings.formatwarning = _note
    for stream in (sys.stdout, sys.stderr):
        # In an ASCII locale a name in other letters is shown escaped; it must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if COMPLETION in os.environ:
        import typer.completion  # noqa: PLC0415  (--help needs it not)

        typer.completion.completion_init()  # pyright: ignore[reportPrivateImportUsage]


def _missing(error: FileNotFoundError | RuntimeError) -> str:
    """That the folder or the user's home is not there; any other error is ours, and stays one."""
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()  # noqa: PTH109  (no pathlib for --help)
        except FileNotFoundError:
            return "The current folder was deleted. Go to one that is there, with cd."
        raise error
    if "home directory" not in str(error):  # as pathlib says it
        raise error
    return "A path begins with ~ and an unknown user. Write ./~… or the whole folder."


def _in_one_line(error: Any) -> str:
    """What is wrong with the command line, and how it is written."""
    name_here = _name_here(error)
    message = str(error.message if name_here else error.format_message()).strip()
    parts = [message if message.endswith((".", "?")) else f"{message}.", name_here]
    if error.ctx is not None:
        usage = " ".join(error.ctx.get_usage().split()).removeprefix("Usage: ")
        if "[-- ARGS...]" in usage and "--" not in sys.argv:
            parts.append("Options of the script itself come after --.")
        parts.append(f"Usage: {usage}; see {error.ctx.command_path} --help")
    return " ".join(part for part in parts if part)


def _name_here(error: Any) -> str:
    """What this command, or the recipe it names, calls another tool's option; "" = not known."""
    word = getattr(error, "option_name", None)
    if word is None or error.ctx is None:
        return ""
    from workbench.describe.other_names import meant  # noqa: PLC0415 - for this message alone

    given = _given(word)
    flags = [
        flag
        for parameter in error.ctx.command.params
        if not getattr(parameter, "hidden", False)  # what the command decides itself
        for flag in parameter.opts
        if flag.startswith("--")
    ]
    if found := meant(word, flags, given):
        return f"Here it is {found}."
    from workbench import recipes  # noqa: PLC0415 - for this message alone

    takes_arguments = "[-- ARGS...]" in error.ctx.get_usage()
    recipe = next((name for name in recipes.recipes() if name in sys.argv), None)
    if recipe is None or not takes_arguments:
        return ""
    found = meant(word, recipes.option_flags(recipe), given)
    return "" if found is None else f"The recipe {recipe} calls it {found}."


def _given(word: str) -> str:
    """What follows an option in the typed line: its value, where it has one."""
    for argument, following in pairwise([*sys.argv, ""]):
        name, has_value, value = argument.partition("=")
        if name == word:
            return value if has_value else following
    return ""


def _say_that_the_queue_waits() -> None:
    """After a reboot no one serves a store's queue: reading starts nothing, but says so."""
    words = sys.argv[1:]
    root = next((two for argument, two in pairwise(words) if argument == "--store"), None)
    root = next((argument[8:] for argument in words if argument.startswith("--store=")), root)
    if "queue" in words[:1] or not os.path.isdir(  # noqa: PTH112  (no pathlib for --help)
        os.path.join(root or os.environ.get("WORKBENCH_STORE") or "runs", ".queue")  # noqa: PTH118
    ):
        return
    from workbench.store.queue_files import QueueFiles  # noqa: PLC0415
    from workbench.store.runs import Store  # noqa: PLC0415

    files = QueueFiles(Store(root).root)
    try:
        count = len(files.waiting()) + len(files.starting()) if files.stands_still else 0
    except WorkbenchError as error:
        typer.echo(f"note: {error}", err=True)
        return
    if count:
        many = "1 run waits" if count == 1 else f"{count} runs wait"
        import shlex  # noqa: PLC0415  (no use for it in --help)

        more = "" if root is None else f" --store {shlex.quote(root)}"
        typer.echo(
            f"note: {many} in the queue and nothing starts them. Start the queue: "
            f"workbench queue start{more}",
            err=True,
        )


def _note(message: Warning | str, *_place: object, **_line: object) -> str:
    """A warning as one line for people: no path, no source."""
    return f"note: {message}\n"


def _fail(message: str, code: int) -> NoReturn:
    from workbench.cli.tables import print_json  # noqa: PLC0415 - --help and version need no Rich
    from workbench.cli.terminal import errors  # noqa: PLC0415

    if "--json" in sys.argv:
        print_json({"error": message})
    errors.print("error:", style="bold red", end=" ")
    errors.print(message, markup=False, soft_wrap=True)  # paths stay whole
    sys.exit(code)
