"""What is told of a short run of a script that could not be used."""

from __future__ import annotations

from workbench.errors import UsageError, WorkbenchError
from workbench.launching.run import Run

_LOG_LINES = 40


class ShortRunError(WorkbenchError):
    """A script did not run as it was to; `log` is what it said last."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def last_output(run: Run) -> str:
    """The last lines of rank 0; of all where it wrote none."""
    try:
        return run.logs(rank=0, tail=_LOG_LINES)
    except (UsageError, OSError):
        return run.logs(tail=_LOG_LINES)
