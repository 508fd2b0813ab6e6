"""`StopRequest`: whether a client, SIGTERM or a notice of pre-emption asks the run to stop."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.launching.log import guarded

if TYPE_CHECKING:
    from workbench.recover.preemption import Poller


class StopRequest:
    """Requests to stop one run. Call `listen` before `reason`, and `stop_listening` at the end."""

    def __init__(self, control: Path, preemption: str | None) -> None:
        """`control`: the run's folder of requests; `preemption`: see `Recovery.preemption`."""
        self._control = control
        self.notice: str | None = None
        """What announced a pre-emption, in words."""
        self._preemption = preemption
        self._poller: Poller | None = None

    def listen(self) -> None:
        """Take SIGTERM for a notice, and look where others come."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._preemption is not None and self._poller is None:
            from workbench.recover.preemption import Poller  # noqa: PLC0415  (an HTTP client)

            self._poller = Poller(self._preemption, self.take_notice)
            self._poller.start()

    def stop_listening(self) -> None:
        """Look for no more notices."""
        if self._poller is not None:
            self._poller.stop()

    @property
    def reason(self) -> str | None:
        """``preempted`` after a notice or SIGTERM, ``stopped`` when a client asked, else None."""
        preempt = self._control / "preempt"
        if self.notice is None and preempt.exists():
            self.notice = "notice of pre-emption"
        if self.notice is not None:
            if not preempt.exists():  # a supervisor that takes over must know
                guarded("preempt", preempt.touch)
            return "preempted"
        asked = (self._control / "stop").exists() or (self._control / "stop-now").exists()
        return "stopped" if asked else None

    def take_notice(self, text: str) -> None:
        """A pre-emption is announced; the first word of it is kept."""
        self.notice = self.notice or text

    def _on_sigterm(self, *_: object) -> None:
        self.take_notice("pre-empted by SIGTERM")
