"""A line on the terminal that says how far something long is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from workbench.cli.terminal import Terminated, sigterm_as_interrupt
from workbench.cli.text_console import TextConsole

if TYPE_CHECKING:
    from workbench.planning.offer_search import Progress

PATIENCE = 0.5
"""Seconds before anything is said."""


@contextmanager
def status_line() -> Generator[Callable[[str], None] | None]:
    """Yield what shows a line; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began, shown = time.monotonic(), False
    status = TextConsole(stderr=True).status("")

    def show(text: str) -> None:
        nonlocal shown
        if time.monotonic() - began < PATIENCE:
            return
        status.update(text)
        if not shown:
            status.start()
            shown = True

    try:
        yield show
    finally:
        status.stop()


@contextmanager
def interruptible(kept_text: str) -> Generator[Callable[[str], None]]:
    """Yield what shows how far runs of a script are, with the time, on stderr.

    Ctrl-C and SIGTERM end the command with their exit code, saying what was `kept`.
    """
    from rich.progress import (  # noqa: PLC0415
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    stderr = TextConsole(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with (
            sigterm_as_interrupt(),
            Progress(*columns, console=stderr, transient=True) as progress,
        ):
            task = progress.add_task("starting")
            yield lambda text: progress.update(task, description=text)
    except KeyboardInterrupt as ended:
        stderr.print(f"Stopped; {kept_text} and all processes have ended.", markup=False)
        raise typer.Exit(Terminated.code if isinstance(ended, Terminated) else 130) from None


@contextmanager
def busy(text: str) -> Generator[None]:
    """Show `text` while something runs that cannot say how far it is."""
    with status_line() as show:
        if show is None:
            yield
            return
        late = threading.Timer(PATIENCE, show, (text,))
        late.start()
        try:
            yield
        finally:
            late.cancel()
            late.join()  # before the line goes


@contextmanager
def search_progress() -> Generator[Progress | None]:
    """Yield the callback that shows how far a search is; None where stderr is no terminal."""
    with status_line() as show:
        if show is None:
            yield None
            return

        def on_progress(done: int, of: int, plans: int) -> None:
            show(f"{done:,} of {of:,} offers looked at, {plans:,} plans found")

        yield on_progress
