"""``workbench set``, ``look``, ``checkpoint`` and ``evaluate``: steering a run that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.tables import JsonOption, number, print_json
from workbench.cli.terminal import RunArgument, StoreOption, console, errors
from workbench.describe.option import Option
from workbench.errors import UsageError
from workbench.launching import steering
from workbench.launching.capture.tensor_looks import KINDS
from workbench.store.layout import RunPaths

_Step = Annotated[
    int | None, typer.Option("--at", min=0, help="After this optimizer step; default: soon.")
]
_Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or until all ranks know.")
]
_Timeout = Annotated[float, Option(help="Seconds to wait for the ranks.", least=0)]
_Values = Annotated[
    list[str], typer.Argument(metavar="NAME=VALUE...", help="lr=1e-4, weight_decay=0.1 …")
]
_Hold = Annotated[
    bool, typer.Option("--hold", help="Keep lr constant; else the schedule continues.")
]
_Module = Annotated[
    str, typer.Argument(metavar="[MODULE]", help="Name or pattern; without: list the names.")
]
_Kinds = Annotated[
    list[str] | None,
    typer.Option("--of", help=f"Only this: {', '.join(KINDS)}; may be repeated.", metavar="KIND"),
]
_BY = "cli"


@with_options
def set_values(
    run: RunArgument,
    values: _Values,
    *,
    at: _Step = None,
    hold: _Hold = False,
    wait: _Wait = True,
    timeout: _Timeout = steering.TIMEOUT_SECONDS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change lr, or another number of the optimizer, while a run trains: all ranks at one step.

    The schedule continues, scaled to the new rate; --hold keeps it there. Restarts and resumes keep
    it.
    """
    handle, how = wb.attach(run, store), {"at": at, "wait": wait, "timeout": timeout}
    _tell(steered("set", handle, values, by=_BY, hold=hold, **how), as_json=as_json)


@with_options
def look(
    run: RunArgument,
    module: _Module = "",
    *,
    of: _Kinds = None,
    at: _Step = None,
    timeout: _Timeout = steering.TIMEOUT_SECONDS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show statistics of a module's weights, gradients and activations in one step, per rank."""
    how = {"at": at, "timeout": timeout}
    answer = steered("look", wb.attach(run, store), [module, *(of or ())], by=_BY, **how)
    if not as_json and answer.done:
        _show_look(answer)
    _tell(answer, as_json=as_json)


@with_options
def checkpoint(
    run: RunArgument,
    *,
    at: _Step = None,
    wait: _Wait = True,
    timeout: _Timeout = steering.TIMEOUT_SECONDS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a run save a checkpoint now, and train on."""
    answer = wb.attach(run, store).ask("checkpoint", at=at, wait=wait, timeout=timeout, by=_BY)
    _tell(answer, as_json=as_json)


@with_options
def evaluate(
    run: RunArgument,
    *,
    at: _Step = None,
    wait: _Wait = True,
    timeout: _Timeout = steering.TIMEOUT_SECONDS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a run evaluate now: of transformers' Trainer and of the recipes that evaluate."""
    answer = wb.attach(run, store).ask("evaluate", at=at, wait=wait, timeout=timeout, by=_BY)
    _tell(answer, as_json=as_json)


def steered(action: str, run: wb.Run, words: Sequence[str], **how: Any) -> steering.Answer:
    """Ask a run, as the words of a command line say.

    Raises:
        UsageError: a word is no value, or the run cannot be asked.
        WorkbenchError: the ranks did not answer.
    """
    if action == "look":
        return run.look(words[0] if words else "", words[1:], **how)
    if action != "set":
        return run.ask(action, **how)
    numbers: dict[str, float] = {}
    for text in words:
        name, _, value = text.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise UsageError(f"{text!r}: give NAME=NUMBER, as lr=1e-4.") from None
    hold = bool(how.pop("hold", False))
    return steering.set_values(RunPaths(run.directory), numbers, hold=hold, **how)


def _tell(answer: steering.Answer, *, as_json: bool) -> None:
    if as_json:
        print_json(answer.document())
    else:
        where = console if answer.done is not False else errors
        where.print(answer.sentence, markup=False, soft_wrap=True)
    if answer.done is False:
        raise typer.Exit(1)


def _show_look(answer: steering.Answer) -> None:
    first = answer.ranks[0]
    if "modules" in first:
        for name, kind in first["modules"]:
            console.print(f"{name}  {kind}", markup=False, highlight=False)
        return
    columns = ("mean", "std", "min", "max", "norm", "zeros", "nonfinite")
    table = Table("rank", "", "tensor", "elements", *columns, box=None, pad_edge=False)
    for result in answer.ranks:
        for row in result["tensors"]:
            table.add_row(*_row(result["rank"], row, columns))
    console.print(table)


def _row(rank: int, row: dict[str, Any], columns: Sequence[str]) -> list[str]:
    cells = [number(row.get(name), 4) for name in columns[:5]]
    cells += ["n/a" if row.get(column) is None else f"{row[column]:.1%}" for column in columns[5:]]
    return [str(rank), row["kind"], row["name"], f"{row['count']:,}", *cells]
