"""``%%train``: a cell becomes a script, starts on many ranks, and shows its run below itself."""

from __future__ import annotations

from typing import Any

from IPython.display import display
from typer import echo

import workbench as wb
from workbench.cli.cell import read_line
from workbench.launching.cell.script import cell_script, tidy
from workbench.launching.prepare.build_request import build_request
from workbench.store.runs import Store
from workbench_widgets.run.dashboard import RunDashboard


class CellError(wb.WorkbenchError):
    """What a person reads below the cell: the sentence, and no traceback of ours."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def load(shell: Any) -> None:
    """Register the magic with an IPython shell."""

    def train(line: str, cell: str) -> None:
        """Launch this cell as a script: each rank is a new process. See %%train --help."""
        try:
            _train(shell, line, cell)
        except wb.WorkbenchError as error:
            raise (error if isinstance(error, CellError) else CellError(str(error))) from None

    shell.register_magic_function(train, "cell", "train")


def _train(shell: Any, line: str, cell: str) -> None:
    command = read_line(line)
    if command is None:
        return
    store = command.options.store
    root = (store if isinstance(store, Store) else Store(store)).root
    number = len(shell.user_ns["In"]) - 1  # the counter is ahead of the cell that runs
    script = cell_script(root, cell, shell.user_ns, number=number, include=command.include)
    try:
        request = build_request(script, command.arguments, command.options)
        if command.dry_run:
            echo(request.shell())
            return
        for warning in request.warnings:
            echo(f"warning: {warning}")
        run = wb.start(request)
    finally:
        if not command.dry_run:
            tidy(script)
    display(RunDashboard(run))
    if command.wait and run.state != "queued":
        _watch(run)


def _watch(run: wb.Run) -> None:
    """Wait for the run's end; an interrupt of the kernel ends the waiting alone.

    Raises:
        CellError: the run did not succeed; the cells below do not run.
    """
    try:
        outcome = run.wait()
    except KeyboardInterrupt:
        echo(
            f"Watching has ended; {run.id} continues training.\n"
            f"Watch it again: wb.attach({run.id!r}). Stop it: workbench stop {run.id}"
        )
        return
    if outcome in {"succeeded", "stopped", "preempted"}:
        echo(f"{run.id}: {run.status.message or outcome}")
        return
    raise CellError("\n".join(_failed(run)))


def _failed(run: wb.Run) -> list[str]:
    """What is to be read of a run that failed: traceback, cause, next move."""
    lines = str(run.view().get("traceback") or "").splitlines()
    for finding in (run.summary()["findings"] or [])[:1]:
        lines += ["", finding["cause"], finding["evidence"], finding["next"]]
    return [*(lines or [str(run.status.message)]), f"run {run.id}"]
