"""``workbench notify``: where messages about findings and ends of runs go."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table

from workbench.cli.help_pages import HelpGroup
from workbench.cli.tables import JsonOption, print_json, print_json_rows
from workbench.cli.terminal import console
from workbench.errors import UnknownNameError, UsageError, WorkbenchError
from workbench.notifying import Target, delivery, read_targets
from workbench.notifying.messages import Message
from workbench.notifying.targets import LEVELS, changing_targets, level, targets_path

notify = typer.Typer(
    cls=HelpGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="Choose who is told of findings, restarts and ends of your runs: Slack, Discord, ntfy, "
    "e-mail, any webhook.\n\nAddresses stay in a private file of yours, never in a run. Every "
    "launch tells all targets unless --notify says otherwise.",
)
_NAME = typer.Argument(metavar="NAME", help="Your name for the target.")


@notify.command()
def add(
    name: Annotated[str, _NAME],
    url: Annotated[
        str | None,
        typer.Argument(help="Webhook or Apprise address [default: asked for, not shown]."),
    ] = None,
    findings: Annotated[
        str,
        typer.Option(
            help=f"Least severity of findings to send: {', '.join(LEVELS)}.", metavar="SEVERITY"
        ),
    ] = "warning",
    *,
    as_json: JsonOption = False,
) -> None:
    """Add a target, or change it. Restarts and the end of a run are always sent.

    Addresses: a Slack or Discord webhook as copied, https://ntfy.sh/TOPIC,
    mailtos://USER:PASSWORD@HOST?to=NAME@HOST, any https:// address that takes JSON, or any
    other that Apprise knows. Leave the address out to keep it from the shell's history.
    """
    address = url or _prompted_address()
    target = Target(name=name, url=delivery.understood(address.strip()), findings=level(findings))
    with changing_targets() as targets:
        verb = "Changed" if name in targets else "Added"
        targets[name] = target
    if as_json:
        print_json(_row(target))
        return
    _say(
        f"{verb} {name}: {delivery.masked_address(target.url)} ({targets_path()}, "
        "readable by you alone)."
    )
    _say(f"Try it: workbench notify test {name}")


@notify.command("list")
def list_targets(*, as_json: JsonOption = False) -> None:
    """List your targets, without the secrets of their addresses."""
    targets = read_targets()
    if as_json:
        print_json_rows([_row(target) for target in targets.values()])
        return
    if not targets:
        _say("No targets yet. Add one: workbench notify add NAME URL")
        return
    table = Table("name", "address", "findings sent")
    for target in targets.values():
        sent = "none" if target.findings == "none" else f"{target.findings} and worse"
        table.add_row(
            target.name,
            delivery.masked_address(target.url),
            sent.replace("error and worse", "error"),
        )
    console.print(table)


@notify.command()
def remove(name: Annotated[str, _NAME], *, as_json: JsonOption = False) -> None:
    """Remove a target. Runs that are under way keep telling it."""
    with changing_targets() as targets:
        target = _find(name, targets)
        del targets[name]
    if as_json:
        print_json(_row(target))
        return
    _say(f"Removed {name}.")


@notify.command("test")
def send_test(name: Annotated[str, _NAME], *, as_json: JsonOption = False) -> None:
    """Send a test message to a target."""
    target = _find(name, read_targets())
    body = (
        "Findings, restarts and ends of your runs arrive here.\nChange it: workbench notify --help"
    )
    message = Message(title="Training workbench: test", body=body, severity="note")
    why = delivery.send(target, message)
    if why is not None:
        raise WorkbenchError(
            f"{name} did not take the message: {why.rstrip('.')}. Check its address, then: "
            f"workbench notify add {name}"
        )
    if as_json:
        print_json(_row(target))
        return
    _say(f"{name} took the message.")


def _find(name: str, targets: dict[str, Target]) -> Target:
    if not targets:
        raise UnknownNameError(
            f"Unknown target {name!r}: there are none yet. Add one: workbench notify add {name} URL"
        )
    if name not in targets:
        raise UnknownNameError.near("target", name, targets)
    return targets[name]


def _row(target: Target) -> dict[str, str]:
    return {
        "name": target.name,
        "address": delivery.masked_address(target.url),
        "findings": target.findings,
    }


def _prompted_address() -> str:
    if not sys.stdin.isatty():
        line = sys.stdin.readline().strip()
        if not line:
            raise UsageError("Give the address after the name, or on standard input.")
        return line
    return typer.prompt("Address (not shown)", hide_input=True)


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
