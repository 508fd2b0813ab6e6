"""``workbench warm``: the processes that launches with ``--warm`` are forked from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from workbench.cli.describing import with_options
from workbench.cli.help_pages import HelpGroup
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import console
from workbench.describe.option import Group
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.start.warm_server import start_ahead
from workbench.launching.warm import client
from workbench.units import format_bytes

warm = typer.Typer(
    cls=HelpGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="Keep a process with torch imported, so that --warm launches start seconds sooner.",
)
_LIKE = ("strategy", "options", "wrap", "processes", "cpu")
_TARGET_HELP = "Recipe or script whose packages are preloaded."
_NONE = "No warm server is running. Start one: workbench warm start"


@warm.command()
@with_options
def start(
    target: Annotated[str, typer.Argument(metavar="[SCRIPT_OR_RECIPE]", help=_TARGET_HELP)] = "gpt",
    *,
    launch: Annotated[LaunchOptions, Group(of=LaunchOptions, only=_LIKE)],
    as_json: JsonOption = False,
) -> None:
    """Start the server for such launches, unless it runs, and wait until it is ready.

    A launch with --warm starts it too; started ahead, the first launch is fast as well.
    """
    ready = start_ahead(build_request(target, [], launch))
    if as_json:
        print_json(_document(ready))
        return
    _print(f"Ready: {_described(ready)}.")
    minutes = ready["idle_seconds"] / 60
    _print(f"Launch with --warm. It exits when no launch has used it for {minutes:.0f} minutes.")


@warm.command()
def status(*, as_json: JsonOption = False) -> None:
    """List your warm servers."""
    servers = client.servers()
    if as_json:
        print_json([_document(server) for server in servers])
        return
    for server in servers:
        _print(f"{_described(server)}, {_launches(server)}")
    if not servers:
        _print(_NONE)


@warm.command()
def stop(*, as_json: JsonOption = False) -> None:
    """End your warm servers; runs that were forked from them continue."""
    ended = client.stop_servers()
    if as_json:
        print_json([_document(server) for server in ended])
        return
    for server in ended:
        _print(f"Ended: {_described(server)}, {_launches(server)}")
    if not ended:
        _print("No warm server is running.")


def _document(server: dict[str, Any]) -> dict[str, Any]:
    """What `--json` prints: not the names of all the variables that were read."""
    return {name: value for name, value in server.items() if name != "read"}


def _described(server: dict[str, Any]) -> str:
    """One server: its process, what it has imported, the threads of its ranks, its memory."""
    threads = server["threads"] or "any number of"
    packages = dict.fromkeys(name.partition(".")[0] for name in server["modules"])
    return (
        f"warm server {server['pid']} with {' and '.join(packages)}, {threads} CPU thread"
        f"{'' if threads == '1' else 's'} per rank, {format_bytes(server['memory_bytes'])}"
    )


def _launches(server: dict[str, Any]) -> str:
    many = "launch" if server["started"] == 1 else "launches"
    return f"{server['started']} {many} so far, {server['running']} running"


def _print(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
