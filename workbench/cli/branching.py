"""``workbench rerun`` and ``workbench fork``: a run again, or another one from its checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.started import show_started
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import (
    DropOption,
    DryRunOption,
    ReplacedArguments,
    RunArgument,
    StoreOption,
    WaitOption,
    console,
)
from workbench.compare.lineage import origin, origin_text
from workbench.describe.option import Group
from workbench.launching.prepare.options import DEVICES, LaunchOptions
from workbench.launching.prepare.request import Request
from workbench.launching.resume.branch import fork_request, rerun_request
from workbench.store.layout import RunPaths

_OF_THE_SOURCE = ("commit", "uncommitted changes", "file ")
_MOST_LINES = 30


@with_options
def rerun(
    run: RunArgument = "last",
    *,
    devices: Annotated[Sequence[str], DEVICES] = (),
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run again as a new run, and list what has changed since.

    Compared are commit, uncommitted changes, files, packages, data, variables, host and GPUs.
    """
    before = wb.attach(run, store)
    if dry_run:
        _show_request(before, *rerun_request(RunPaths(before.directory), devices), as_json=as_json)
        return
    new_run = before.rerun(devices=devices)
    if not as_json:
        _show_differences(before, new_run.differs)
    heading = f"started {new_run.id}, a rerun of {before.id},"
    show_started(new_run, heading, {"differs": new_run.differs}, wait=wait, as_json=as_json)


@with_options
def fork(  # noqa: PLR0913 - a command's options are its arguments
    run: RunArgument = "last",
    arguments: ReplacedArguments = None,
    *,
    at: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Step of the checkpoint [default: the newest]."),
    ] = None,
    drop: DropOption = None,
    changes: Annotated[dict[str, Any], Group(of=LaunchOptions, changes=True)],
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a new run from a checkpoint of a run, with other arguments or options.

    The run itself stays as it is; `workbench runs` shows the new one below it.
    """
    before = wb.attach(run, store)
    if dry_run:
        paths, words, without = RunPaths(before.directory), arguments or (), drop or ()
        planned = fork_request(paths, at, arguments=words, drop=without, **changes)
        _show_request(before, *planned, as_json=as_json)
        return
    new_run = before.fork(at, arguments=arguments or (), drop=drop or (), **changes)
    if not as_json:
        _show_differences(before, new_run.differs)
    heading = f"started {new_run.id} from {origin_text(origin(new_run.document))}"
    show_started(new_run, heading, {"differs": new_run.differs}, wait=wait, as_json=as_json)


def _show_request(
    before: wb.Run, request: Request, differs: Sequence[Mapping[str, Any]], *, as_json: bool
) -> None:
    """What a dry run tells: the command, and what differs from the run it comes from."""
    if as_json:
        place, files = str(request.planned_directory), request.config_files
        plan = {"run": None, "dir": place, "command": request.command, "config_files": files}
        print_json({**plan, "notes": list(request.warnings), "nodes": [], "differs": differs})
        return
    console.print(shlex.join(request.command), markup=False, soft_wrap=True)
    _show_differences(before, differs)


def _show_differences(before: wb.Run, differs: Sequence[Mapping[str, Any]]) -> None:
    if not differs:
        same = "Code, packages, data and environment are the same as in"
        console.print(f"{same} {before.id}.", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("changed", f"in {escape(before.id)}", "now"):
        table.add_column(column, overflow="fold")
    for row in differs[:_MOST_LINES]:
        table.add_row(escape(row["what"]), _value(row["was"]), _value(row["now"]))
    console.print(table)
    if len(differs) > _MOST_LINES:
        console.print(f"and {len(differs) - _MOST_LINES} more (--json lists all)")
    hint = _how_to_get_back(before, differs)
    if hint:
        console.print(hint, markup=False, soft_wrap=True)


def _value(value: Any) -> str:
    return "[dim]-[/]" if value is None else escape(str(value))


def _how_to_get_back(before: wb.Run, differs: Sequence[Mapping[str, Any]]) -> str:
    """What to type to have the source as it was; "" where it is the same or unknown."""
    provenance: dict[str, Any] = before.document.get("provenance") or {}
    if not any(str(difference["what"]).startswith(_OF_THE_SOURCE) for difference in differs):
        return ""
    source = RunPaths(before.directory).source
    if not provenance.get("commit"):
        return f"The script's files of that time are in {source}." if provenance else ""
    commit, repository = (
        shlex.quote(str(provenance.get(name))) for name in ("commit", "repository")
    )
    folder = shlex.quote(f"{before.id}-source")
    lines = [f'git -C {repository} worktree add --detach "$PWD"/{folder} {commit}']
    if provenance.get("changes_sha256"):
        lines.append(f"git -C {folder} apply {shlex.quote(str(source / 'changes.diff'))}")
    return "To restore the source: " + " && ".join(lines)
