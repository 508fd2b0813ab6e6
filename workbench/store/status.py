"""What a run directory says about the present, checked against the processes that really live."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, get_args

from workbench.store import processes
from workbench.store.commands import command_for
from workbench.store.detached import is_locked
from workbench.store.files import read_json_or_why
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.record import read_run
from workbench.store.room import shortage
from workbench.store.run_record import RunRecord
from workbench.store.schema import Phase

START_GRACE_SECONDS = 20.0
HEARTBEAT_FRESH_SECONDS = 30.0  # a run on another machine of a shared store is judged by this
_TORN = "not JSON"  # an interrupted write of a file that is not ours, or of a disk that lost it


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State and outcome of a run, as of now."""

    state: str
    """queued, starting, running, stopping, unsupervised (it trains on, no one watches), ended,
    interrupted, or unreadable."""
    outcome: str | None
    """succeeded, failed, stopped, preempted, interrupted, no-steps; None while it runs."""
    message: str | None
    """One sentence for people, when there is something to say."""

    @property
    def live(self) -> bool:
        """Whether processes of the run may still be at work, or will be."""
        return self.state in {"queued", "starting", "running", "stopping", "unsupervised"}


def read_status(paths: RunPaths) -> Status:
    """Derive the status from exit.json, else state.json and the living processes."""
    ended = _read_end(paths)
    if ended is not None:
        return ended
    state, why = read_json_or_why(paths.state)
    if state is None:
        return _unreadable(paths.state.name, why) or _status_before_supervisor(paths)
    message = state.get("message")
    supervisor = state.get("supervisor")
    elsewhere = bool(supervisor) and supervisor["boot_id"] != processes.boot_id()
    fresh = time.time() - float(state.get("heartbeat", 0)) < HEARTBEAT_FRESH_SECONDS
    if processes.is_alive_for(supervisor, paths.directory) or (elsewhere and fresh):
        text = message if fresh else _no_room(paths) or message
        return Status(state=_living_phase(state), outcome=None, message=text)
    workers: list[Any] = [state.get("launcher"), *state.get("ranks", {}).values()]
    if any(processes.is_alive(process) for process in workers if process):
        markers = _markers(paths)
        alive = [process for process in workers if process]
        if any(
            processes.may_be_marked(process, marker, paths.directory)
            for process in alive
            for marker in markers
        ):
            return Status(state="unsupervised", outcome=None, message=_unwatched(paths))
    ended = _read_end(paths)  # the supervisor may have ended while we looked
    watched = processes.is_alive_for(state.get("watcher"), paths.directory)
    if ended is None and (watched or is_locked(paths.lock)):  # the lock: from another container
        text = "Its supervisor has ended; its watcher starts another one." if watched else message
        return Status(state=_living_phase(state), outcome=None, message=text)
    return ended or Status(
        state="interrupted",
        outcome="interrupted",
        message=f"All processes of the run are gone; how it ended is unknown{_and_no_room(paths)}.",
    )


def _markers(paths: RunPaths) -> list[str]:
    """Of the run's processes: each further machine has its own."""
    run = read_run(paths) or RunRecord()
    return [run.marker, *(f"{run.marker}.{node}" for node in range(1, run.nodes))]


def _unwatched(paths: RunPaths) -> str:
    adopt, stop = (command_for(paths.directory, verb) for verb in ("adopt", "stop"))
    return (
        f"Its supervisor and watcher have ended; training continues. Watch it: {adopt}, or end it: "
        f"{stop}"
    )


def _read_end(paths: RunPaths) -> Status | None:
    """The end that exit.json tells; None where there is none yet, or half of one."""
    ended, why = read_json_or_why(paths.exit)
    if ended is None:
        return _unreadable(paths.exit.name, why)
    outcome = str(ended.get("outcome", ""))
    is_valid = re.fullmatch(r"[a-z][a-z-]{0,19}", outcome)  # also one of a later version
    return Status(
        state="ended", outcome=outcome if is_valid else None, message=ended.get("message")
    )


def _unreadable(name: str, why: str | None) -> Status | None:
    if why is None or why == _TORN:
        return None
    return Status(state="unreadable", outcome=None, message=f"unreadable: {name}: {why}")


def _living_phase(state: dict[str, Any]) -> str:
    phase = str(state.get("phase"))
    if phase == "ended":  # about to write exit.json
        return "stopping"
    return phase if phase in get_args(Phase) else "running"


def _status_before_supervisor(paths: RunPaths) -> Status:
    document, why = read_json_or_why(paths.run)
    if document is None:
        why = f"{paths.run.name}: {why or 'no such file'}"
        return Status(state="unreadable", outcome=None, message=f"unreadable: {why}")
    run = RunRecord.of(document)
    if run.engine:
        job = f"{run.engine.get('name')} as job {run.engine.get('job_id')}"
        return Status(state="starting", outcome=None, message=f"In the queue of {job}.")
    queue = QueueFiles(paths.directory.parent)
    if run.queued_at and queue.waits(paths.directory.name).exists():
        return Status(state="queued", outcome=None, message="It waits in the queue.")
    starts = bool(run.queued_at) and queue.starts(paths.directory.name).exists()
    if starts or time.time() - run.created_at < START_GRACE_SECONDS:
        return Status(state="starting", outcome=None, message=None)
    if paths.directory in processes.watched_directories():
        return Status(state="starting", outcome=None, message=_no_room(paths))
    return _read_end(paths) or Status(  # it may have been dropped while we looked
        state="interrupted",
        outcome="interrupted",
        message="Its supervisor reported nothing, and no process of it is found on this host"
        f"{_and_no_room(paths)}. See {paths.supervisor_log}.",
    )


def _no_room(paths: RunPaths) -> str | None:
    """What to do about a run at work of which nothing can be written any more."""
    full = shortage(paths.directory)
    return (
        f"It runs, but {full}: nothing of it can be written. Free space there, "
        f"or stop it: {command_for(paths.directory, 'stop')}"
        if full
        else None
    )


def _and_no_room(paths: RunPaths) -> str:
    full = shortage(paths.directory)
    return full and f"; {full}"
