"""Staying to a run's end: the live view, Ctrl-C that detaches, and the exit code.

Apart from terminal.py: commands that wait for no run need not load what starts and follows one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress

import typer

from workbench.cli.live import follow
from workbench.cli.terminal import console, errors
from workbench.errors import WorkbenchError
from workbench.launching.run import Run
from workbench.store.commands import command_for

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
