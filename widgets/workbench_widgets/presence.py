"""Whether a page still takes what a face sends by itself.

Jupyter keeps each message of a kernel for a page that has gone (a closed laptop), in memory and
without a bound. So a page is asked for a sign of life now and then, and one that gives none is sent
little. While the kernel runs a cell it may hear no page: then silence tells nothing.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from IPython import get_ipython

ASK_AFTER = 10  # messages that nothing was heard after
GONE_AFTER = 30
GONE_SECONDS = 60.0  # between two messages to a page that has gone
_LOOK_SECONDS = 1.0  # whether it is back


class _Cells:
    """Whether one runs; a face is made by one."""

    running = True

    def begin(self) -> None:
        self.running = True

    def end(self) -> None:
        self.running = False


@functools.cache
def _cells() -> _Cells:
    cells, shell = _Cells(), get_ipython()
    if shell is not None:
        shell.events.register("pre_execute", cells.begin)
        shell.events.register("post_execute", cells.end)
    return cells


class Presence:
    """Counts the messages to a page since it was heard last; what a running cell delays is none."""

    def __init__(self, runs_a_cell: Callable[[], bool] | None = None) -> None:
        """`runs_a_cell` stands for the kernel's own state."""
        cells = _cells()  # from now on
        self._runs_a_cell = runs_a_cell or (lambda: cells.running)
        self._unanswered = 0

    def message_sent(self) -> None:
        """A message was sent."""
        if not self._runs_a_cell():
            self._unanswered += 1

    def heard(self) -> bool:
        """The page sent something; returns whether it was taken for gone."""
        was_gone, self._unanswered = self.gone, 0
        return was_gone

    def wait(self, closed: threading.Event, seconds: float) -> bool:
        """Wait between two readings, longer without a page; returns whether `closed` is set."""
        end = time.monotonic() + GONE_SECONDS
        if closed.wait(seconds):
            return True
        while self.gone and time.monotonic() < end:
            if closed.wait(_LOOK_SECONDS):
                return True
        return False

    @property
    def doubtful(self) -> bool:
        """Whether the page is to be asked for a sign of life."""
        return self._unanswered >= ASK_AFTER

    @property
    def gone(self) -> bool:
        """Whether it was asked for long, and gave none."""
        return self._unanswered >= GONE_AFTER
