"""``workbench push`` and ``pull``: a run on an object store or network volume, and back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

import workbench as wb
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import (
    RunArgument,
    StoreOption,
    Terminated,
    console,
    errors,
    sigterm_as_interrupt,
)
from workbench.launching.resume import arrival
from workbench.storage.pull import PullResult
from workbench.storage.push import OnProgress
from workbench.storage.push import push as push_run
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths
from workbench.store.runs import Store
from workbench.units import format_bytes


def push(
    run: RunArgument,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="Folder of runs: s3://…, gs://…, az://… or a path."),
    ],
    *,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="newest, all, none, or how many of the newest [default: as in the push before, at"
            " first newest].",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a run to an object store or volume: record, metrics, logs, code and checkpoints.

    Only what changed is sent. Every checkpoint is verified first. Until a push has ended, readers
    find the one before it. Credentials are taken from the environment.
    """
    handle = wb.attach(run, store)
    with _bar("Stopped; what was pushed before is still whole. Push again to go on.") as tell:
        pushed = push_run(
            RunPaths(handle.directory), url, checkpoints=checkpoints, on_progress=tell
        )
    for note in pushed.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    if as_json:
        print_json(pushed.document())
        return
    console.print(pushed.url, markup=False, soft_wrap=True)
    checkpoint_names = ", ".join(pushed.checkpoints) or "none"
    console.print(
        f"  {format_bytes(pushed.sent_bytes)} sent of {format_bytes(pushed.bytes)} in "
        f"{pushed.files} files, {pushed.seconds:.1f} s; checkpoints: {checkpoint_names}",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"  resume elsewhere: workbench resume {shlex.quote(pushed.url)}",
        markup=False,
        soft_wrap=True,
    )


def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's folder: URL/RUN.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a pushed run into the store of this machine; every byte is verified.

    Nothing of it is started. A pull that was cut off continues where it ended.
    """
    pulled = pull_with_bar(url, store)
    if as_json:
        print_json(pulled.document())
        return
    console.print(f"{pulled.run} in {pulled.directory}", markup=False, soft_wrap=True)
    checkpoint_names = ", ".join(pulled.checkpoints) or "none"
    console.print(
        f"  {format_bytes(pulled.received_bytes)} received of {format_bytes(pulled.bytes)} in "
        f"{pulled.files} files; checkpoints: {checkpoint_names}",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"  {_next(pulled)}", markup=False, soft_wrap=True)


def pull_with_bar(url: str, store: str | None) -> PullResult:
    """Pull with a bar on stderr, and print the notes there."""
    with _bar("Stopped; what has arrived is kept for the next pull.") as tell:
        pulled = arrival.pull(url, Store(store), tell)
    for note in pulled.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    return pulled


def _next(pulled: PullResult) -> str:
    why = wb.Run(RunPaths(pulled.directory)).why_not_resumable()
    return why or f"resume with: {command_for(pulled.directory, 'resume')}"


@contextmanager
def _bar(stopped: str) -> Generator[OnProgress | None]:
    """A bar on stderr where someone looks; Ctrl-C and SIGTERM end with the sentence `stopped`."""
    try:
        with sigterm_as_interrupt():
            if not sys.stderr.isatty():
                yield None
                return
            from rich.progress import (  # noqa: PLC0415  (slow to load)
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TransferSpeedColumn,
            )

            text = TextColumn("{task.description}", markup=False)
            columns = (BarColumn(30), DownloadColumn(), TransferSpeedColumn(), text)
            with Progress(*columns, console=errors, transient=True) as bar:
                task = bar.add_task("starting", total=None)
                yield lambda done, total, text: bar.update(
                    task, completed=done, total=total, description=text[-40:]
                )
    except KeyboardInterrupt as ended:
        errors.print(stopped, markup=False)
        raise typer.Exit(Terminated.code if isinstance(ended, Terminated) else 130) from None
