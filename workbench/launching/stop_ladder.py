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
from workbench.units import format_seconds

_AHEAD_SECONDS = 1.0  # every rank must read the file before it reaches the step written in it
_AHEAD_OF_NODES_SECONDS = 5.0  # the ranks of other machines are told by their agents
_SAVE_SECONDS = 180.0  # at the stop step, without the run reading or writing anything
_STUCK_SECONDS = 60.0  # without a step, and without a sign of work, a graceful stop is hopeless
_STEPS_OF_PATIENCE = 5  # where steps are long; and the time in which a hang is found:
_ASKING_SECONDS = 30.0
_AT_WORK_SECONDS = 3600.0  # without a step: an evaluation, or a loop that waits for something
_NOTICE_SECONDS = 30.0  # without a step: people are told what the stop waits for
_LEAVE_SECONDS = 60.0  # for the other ranks once one has left: a process may hang while it exits
_LOOK_SECONDS = 5.0  # between two looks at what was read and written
_MOVED_BYTES = 1 << 20  # between two looks: a checkpoint is being written, or uploaded
_END_SECONDS = 40.0  # of a pre-emption's grace: for the signals, and to tell how the run ended
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
        self.note: str | None = None
        """What the stop waits for, or why it goes on without a checkpoint, for people."""
        self._within: float | None = None
        self._saved_by = math.inf  # the machine goes soon after
        self._deadline = 0.0
        self._last_step = (0, 0.0)
        self._asked_at = 0.0  # Unix seconds
        self._reached_at: float | None = None
        self._left_at: float | None = None
        self._look_at = self._moved_at = 0.0
        self._moved: int | None = None  # bytes that the run had read and written
        self._now = False
        self._late = 0

    @property
    def active(self) -> bool:
        """Whether someone asked to stop."""
        return self.stage is not None

    @property
    def awaits_step(self) -> bool:
        """Whether the ranks are to train on until the stop step."""
        return self.stage == "graceful" and self._reached_at is None

    def request(
        self,
        *,
        now: bool,
        steps: int,
        step_seconds: float | None,
        since_step: float | None = None,
        reason: str = "stopped",
        within: float | None = None,
    ) -> None:
        """Ask for a stop; a second, more urgent wish shortens the climb.

        `since_step`: seconds since the last of `steps` ended; None = unknown. `within` seconds the
        machine may be gone: all but the last 40 are for the checkpoint, at least half of them.
        """
        if self.stage is None:
            self.reason = reason
        if within is not None and self._within is None:
            self._within = within
            self._saved_by = time.monotonic() + max(0.5 * within, within - _END_SECONDS)
        if now:
            self._now = True
            self.stage, self._deadline = "launcher", 0.0
        elif self.stage is None:
            self._begin_graceful(steps, step_seconds, since_step)

    def _begin_graceful(
        self, steps: int, step_seconds: float | None, since_step: float | None
    ) -> None:
        if steps == 0 or step_seconds is None:
            self.stage, self._deadline = "launcher", 0.0
            return
        if not self._announce(steps, step_seconds, since_step):
            self.stage, self._deadline = "launcher", 0.0
            return
        self.stage = "graceful"
        self._last_step = (steps, time.monotonic())
        self._asked_at = time.time()

    def _of_grace(self, share: float, seconds: float) -> float:
        """`seconds`, but no more than this share of what is left before the machine goes."""
        return seconds if self._within is None else min(seconds, share * self._within)

    def _announce(self, steps: int, step_seconds: float, since_step: float | None = None) -> bool:
        """Tell the ranks at which step to stop: so far ahead that all will read it in time."""
        ahead = self._ahead * 3**self._late
        self.stop_at = steps + _steps_ahead(ahead, step_seconds, since_step)
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

    def _has_rank_left(self) -> bool:
        with contextlib.suppress(OSError):
            ends = self._paths.metrics.glob("rank-*.end.json")
            return any(path.stat().st_mtime >= self._asked_at for path in ends)
        return False

    def tick(
        self,
        launcher: ProcessDoc | None,
        steps: int,
        step_seconds: float | None,
        *,
        stands: bool = False,
        worked_at: float = 0.0,
    ) -> None:
        """Do what is due now.

        `stands`: the ranks were found to hang. `worked_at`: monotonic seconds at which they were
        last seen at work in a step that takes longer than others.
        """
        now = time.monotonic()
        if self.stage == "graceful":
            self._follow(now, steps, step_seconds)
            if self._reached_at is None:
                why = self._no_step(now, step_seconds, stands=stands, worked_at=worked_at)
            else:
                why = self._no_end(now, self._reached_at)
            if now > self._saved_by:
                why = "the machine goes soon"
            if why:
                self.stage, self._deadline = "launcher", 0.0
                self.note = f"The stop continues by signals: {why}."
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

    def _follow(self, now: float, steps: int, step_seconds: float | None) -> None:
        """Take in how far the ranks are; a stop step that they have passed is moved on."""
        if steps != self._last_step[0]:
            self._last_step, self.note = (steps, now), None
        if step_seconds and self._passed(steps, step_seconds):
            self._late += 1
            self._announce(steps, step_seconds)
        if self.stop_at is None or steps < self.stop_at:
            self._reached_at = None
        elif self._reached_at is None:
            self._reached_at = self._moved_at = now

    def _no_step(
        self, now: float, step_seconds: float | None, *, stands: bool, worked_at: float
    ) -> str:
        """Why the stop step is not waited for; "" = it is."""
        begun, usual = self._last_step[1], step_seconds or 0.0
        if stands:
            return "the ranks hang, so no step will come at which they could save"
        patience = max(_STUCK_SECONDS, _STEPS_OF_PATIENCE * usual + _ASKING_SECONDS)
        at_work = min(worked_at, begun + max(0.0, _AT_WORK_SECONDS - patience))
        if now - max(begun, at_work) > patience:
            return f"no step has ended for {format_seconds(now - begun)}"
        if worked_at > begun and now - begun > _NOTICE_SECONDS:
            self.note = (
                f"Stopping at step {self.stop_at}: the ranks work, but end no step (an "
                "evaluation?). The stop waits for that; `workbench stop --now` does not."
            )
        return ""

    def _no_end(self, now: float, reached_at: float) -> str:
        """Why the checkpoint, or the ranks' exit after it, is not waited for; "" = it is."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            moved = sum(map(processes.moved_bytes, self._members()))
            # Less than before: a process has ended, which is no work.
            if self._moved is not None and moved - self._moved > _MOVED_BYTES:
                self._moved_at = now
            self._moved = moved
        if now - max(reached_at, self._moved_at) > _SAVE_SECONDS:
            return f"nothing was written for {format_seconds(_SAVE_SECONDS)}, and no rank has left"
        if self._left_at is None and self._has_rank_left():
            self._left_at = now
        if self._left_at is not None and now - max(self._left_at, self._moved_at) > _LEAVE_SECONDS:
            return "a rank has left, and the others do not"
        return ""

    def _kill_stopped(self) -> None:
        """A stopped process never sees SIGTERM: torchrun would wait 30 s for it."""
        for process in self._members():
            if processes.is_stopped(process):
                processes.send_signal(process, signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._members():
            processes.send_signal(process, number)


def _steps_ahead(seconds: float, step_seconds: float, since_step: float | None) -> int:
    """Steps after the last known one until all ranks have read a file, `seconds` from now.

    One step may have ended since then. Where it is known how long ago that one ended, a stop step
    is far enough ahead that is not reached in time by steps of half their usual length either.
    """
    by_count = math.ceil(seconds / step_seconds) + 2
    if since_step is None:
        return by_count
    return max(1, min(by_count, math.ceil(2 * (seconds + since_step) / step_seconds)))


def stop_message(stop_at: int | None, notice: str | None, stuck: Finding | None) -> str:
    """What a stop that begins now does; `stuck`: the finding that the ranks hang."""
    why = f" ({notice})" if notice else ""
    if stop_at:
        return f"Stopping at step {stop_at}{why}."
    if stuck is None:
        return f"Stopping{why}."
    subject = "the ranks stand" if stuck.rank is None else f"rank {stuck.rank} stands"
    at = f"at step {stuck.step} ({stuck.kind})"
    return f"Stopping{why}: {subject} {at}, so no further step and no checkpoint is waited for."


def end_leftovers(
    members: Callable[[], list[ProcessDoc]], excluded: Collection[int] = ()
) -> list[ProcessDoc]:
    """End every process of the run that outlived its launcher; returns those that would not die.

    `members` lists those that live; children among `excluded` are not collected.
    """
    _reap(excluded)
    left = processes.wait_gone(members(), 0.5)
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        if not left:
            return []
        for process in left:
            stopped = processes.is_stopped(process)
            processes.send_signal(process, signal.SIGKILL if stopped else number)
        processes.wait_gone(left, patience)
        _reap(excluded)
        left = members()
    return left


def _reap(excluded: Collection[int]) -> None:
    """Collect orphans that came to us as their subreaper; not children that others wait for."""
    for process in processes.zombies(os.getpid()):
        if process not in excluded:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
