"""What a run directory says about the present, checked against the processes that really live."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

START_GRACE_SECONDS = 20.0
HEARTBEAT_FRESH_SECONDS = 30.0  # a run on another machine of a shared store is judged by this


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State and outcome of a run, as of now."""

    state: str
    """starting, running, stopping, unsupervised (it trains on, nobody watches), ended, interrupted,
    or unreadable."""
    outcome: str | None
    """succeeded, failed, stopped, preempted, interrupted, no-steps; None while it runs."""
    message: str | None
    """One sentence for people, when there is something to say."""

    @property
    def live(self) -> bool:
        """Whether processes of the run may still be at work."""
        return self.state in {"starting", "running", "stopping", "unsupervised"}


def read_status(paths: RunPaths) -> Status:
    """Derive the status from exit.json, else state.json and the living processes."""
    ended = read_json(paths.exit)
    if ended is not None:
        return Status(state="ended", outcome=ended.get("outcome"), message=ended.get("message"))
    state = read_json(paths.state)
    if state is None:
        return _status_before_supervisor(paths)
    message = state.get("message")
    supervisor = state.get("supervisor")
    elsewhere = bool(supervisor) and supervisor.get("boot_id") != processes.boot_id()
    fresh = time.time() - float(state.get("heartbeat", 0)) < HEARTBEAT_FRESH_SECONDS
    if processes.is_alive(supervisor) or (elsewhere and fresh):
        phase = str(state.get("phase"))  # "ended" here: about to write exit.json
        phase = "stopping" if phase == "ended" else phase
        return Status(state=phase, outcome=None, message=message)
    workers: list[Any] = [state.get("launcher"), *dict(state.get("ranks", {})).values()]
    if any(processes.is_alive(process) for process in workers if process):
        return Status(
            state="unsupervised",
            outcome=None,
            message="The supervisor is gone; training goes on. Attach to watch it again.",
        )
    ended = read_json(paths.exit)  # the supervisor may have ended while we looked
    if ended is not None:
        return Status(state="ended", outcome=ended.get("outcome"), message=ended.get("message"))
    return Status(
        state="interrupted",
        outcome="interrupted",
        message="Every process of the run is gone and none could say how it ended.",
    )


def _status_before_supervisor(paths: RunPaths) -> Status:
    run = read_json(paths.run)
    if run is None:
        return Status(state="unreadable", outcome=None, message=f"{paths.run} cannot be read.")
    if time.time() - float(run.get("created_at", 0)) < START_GRACE_SECONDS:
        return Status(state="starting", outcome=None, message=None)
    return Status(
        state="interrupted",
        outcome="interrupted",
        message=f"The supervisor never reported. See {paths.supervisor_log}.",
    )
