"""The stop ladder: same-step stop, SIGTERM to the launcher, to every process, SIGKILL, confirm.

A state machine that the supervisor's loop drives, so heartbeat and view go on while it climbs.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Collection

from workbench.store import processes
from workbench.store.files import write_text_atomic
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.schema import ProcessDoc

_AHEAD_SECONDS = 1.0  # every rank must read the file before it reaches the step written in it
_AHEAD_OF_NODES_SECONDS = 5.0  # the ranks of other machines are told by their agents
_SAVE_SECONDS = 180.0  # for the checkpoint of a graceful stop
_STUCK_SECONDS = 60.0  # without a step (validation takes a while) a graceful stop is hopeless
_LEAVE_SECONDS = 60.0  # for the other ranks once one has left: a process may hang while it exits
_MAX_LATE = 3  # times that a stop step which the ranks had already passed is moved on
_LAUNCHER_SECONDS = 6.0
_MARKED_SECONDS = 6.0
_NOW_SECONDS = 2.0


class StopLadder:
    """One climb. `request` starts it or hurries it; `tick` takes the next rung when it is due."""

    def __init__(
        self,
        paths: RunPaths,
        members: Callable[[], list[ProcessDoc]],
        nodes: int = 1,
    ) -> None:
        """`members`: lists the living processes of the run."""
        self.stage: str | None = None
        self.reason = "stopped"
        self.stop_at: int | None = None
        self._paths = paths
        self._members = members
        self._ahead = _AHEAD_SECONDS if nodes == 1 else _AHEAD_OF_NODES_SECONDS
        self._within: float | None = None
        self._deadline = 0.0
        self._last_step = (0, 0.0)
        self._asked_at = 0.0  # Unix seconds
        self._left_at: float | None = None
        self._now = False
        self._late = 0

    @property
    def active(self) -> bool:
        """Whether someone asked to stop."""
        return self.stage is not None

    def request(
        self,
        *,
        now: bool,
        steps: int,
        step_seconds: float | None,
        reason: str = "stopped",
        within: float | None = None,
    ) -> None:
        """Ask for a stop; a second, more urgent wish shortens the climb.

        `within` seconds the machine may be gone: half of them are for the checkpoint, a quarter for
        leaving in peace.
        """
        if self.stage is None:
            self.reason = reason
        if within is not None and self._within is None:
            self._within = within
            self._deadline = min(self._deadline, time.monotonic() + 0.5 * within)
        if now:
            self._now = True
            self.stage, self._deadline = "launcher", 0.0
        elif self.stage is None:
            self._begin_graceful(steps, step_seconds)

    def _begin_graceful(self, steps: int, step_seconds: float | None) -> None:
        if steps == 0 or step_seconds is None:
            self.stage, self._deadline = "launcher", 0.0
            return
        if not self._announce(steps, step_seconds):
            self.stage, self._deadline = "launcher", 0.0
            return
        self.stage = "graceful"
        self._last_step = (steps, time.monotonic())
        self._asked_at = time.time()
        self._deadline = time.monotonic() + self._of_grace(0.5, _SAVE_SECONDS)

    def _of_grace(self, share: float, seconds: float) -> float:
        """`seconds`, but no more than this share of what is left before the machine goes."""
        return seconds if self._within is None else min(seconds, share * self._within)

    def _announce(self, steps: int, step_seconds: float) -> bool:
        """Tell the ranks at which step to stop: so far ahead that all will read it in time."""
        ahead = self._ahead * 3**self._late
        self.stop_at = steps + math.ceil(ahead / step_seconds) + 2
        try:
            write_text_atomic(self._paths.control / "stop-at", str(self.stop_at))
        except OSError:
            return False
        return True

    def _passed(self, steps: int, step_seconds: float | None) -> bool:
        """Whether the ranks run on beyond the stop step: what we knew of them was too old."""
        if self.stop_at is None or not step_seconds or self._late >= _MAX_LATE:
            return False
        return steps > self.stop_at + 2

    def _hangs_at_exit(self, now: float) -> bool:
        """Whether a rank is still there long after another one has left at the stop step."""
        if self._left_at is None and self._one_has_left():
            self._left_at = now
        return self._left_at is not None and now - self._left_at > _LEAVE_SECONDS

    def _one_has_left(self) -> bool:
        with contextlib.suppress(OSError):
            ends = self._paths.metrics.glob("rank-*.end.json")
            return any(path.stat().st_mtime >= self._asked_at for path in ends)
        return False

    def tick(self, launcher: ProcessDoc | None, steps: int, step_seconds: float | None) -> None:
        """Do what is due now."""
        now = time.monotonic()
        if self.stage == "graceful":
            if steps != self._last_step[0]:
                self._last_step = (steps, now)
            if self._passed(steps, step_seconds) and step_seconds:
                self._late += 1
                self._announce(steps, step_seconds)
            patience = max(_STUCK_SECONDS, 5 * (step_seconds or 0))
            reached = self.stop_at is not None and steps >= self.stop_at
            stuck = not reached and now - self._last_step[1] > patience
            if stuck or now > self._deadline or (reached and self._hangs_at_exit(now)):
                self.stage, self._deadline = "launcher", 0.0
        if self.stage == "launcher":
            with contextlib.suppress(OSError):  # from now on SIGTERM means: end
                (self._paths.control / "terminating").touch()
            if launcher is not None:
                processes.send_signal(launcher, signal.SIGTERM)
            self._kill_stopped()
            self.stage = "marked"
            self._deadline = now + (0.0 if self._now else self._of_grace(0.15, _LAUNCHER_SECONDS))
        elif self.stage == "marked" and now > self._deadline:
            self._signal_all(signal.SIGTERM)
            self.stage = "kill"
            patience = _NOW_SECONDS if self._now else _MARKED_SECONDS
            self._deadline = now + self._of_grace(0.1, patience)
        elif self.stage == "kill" and now > self._deadline:
            self._signal_all(signal.SIGKILL)
            self._deadline = now + 1.0

    def _kill_stopped(self) -> None:
        """A stopped process never sees SIGTERM: torchrun would wait 30 s for it."""
        for process in self._members():
            if processes.is_stopped(process):
                processes.send_signal(process, signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._members():
            processes.send_signal(process, number)


def stop_message(stop_at: int | None, notice: str | None, stuck: Finding | None) -> str:
    """What a stop that begins now does; `stuck`: the finding that the ranks hang."""
    why = f" ({notice})" if notice else ""
    if stop_at:
        return f"Stopping at step {stop_at}{why}."
    if stuck is None:
        return f"Stopping{why}."
    who = "the ranks stand" if stuck.rank is None else f"rank {stuck.rank} stands"
    at = f"at step {stuck.step} ({stuck.kind})"
    return f"Stopping{why}: {who} {at}, so no further step and no checkpoint is waited for."


def end_leftovers(
    members: Callable[[], list[ProcessDoc]], besides: Collection[int] = ()
) -> list[ProcessDoc]:
    """End every process of the run that outlived its launcher; returns those that would not die.

    `members` lists those that live; children among `besides` are not collected.
    """
    _reap(besides)
    left = processes.wait_gone(members(), 0.5)
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        if not left:
            return []
        for process in left:
            stopped = processes.is_stopped(process)
            processes.send_signal(process, signal.SIGKILL if stopped else number)
        processes.wait_gone(left, patience)
        _reap(besides)
        left = members()
    return left


def _reap(besides: Collection[int]) -> None:
    """Collect orphans that came to us as their subreaper; not children that others wait for."""
    for process in processes.zombies(os.getpid()):
        if process not in besides:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
