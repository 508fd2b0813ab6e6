"""Stops a run from a client: its supervisor is asked to, or, where there is none, it is done here.

Of a run that nothing watches, what is read before the first signal is bounded however long the run
is: run.json, state.json, the 64 bytes of each rank's pulse, and the end of one metric file.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.log import guarded, log, logging_to
from workbench.launching.resume.attempts import Attempts, furthest
from workbench.launching.start.queued import take_out
from workbench.launching.stop_ladder import StopLadder, end_leftovers
from workbench.launching.supervise.lifecycle import take_lock
from workbench.launching.supervise.outcome import Verdict, judge
from workbench.launching.supervise.reattach import may_adopt
from workbench.launching.supervise.run_state import StopRequest
from workbench.launching.supervise.sidecars import Sidecars
from workbench.observe.current_view import latest
from workbench.observe.events import last_rows
from workbench.observe.pulse import read_pulse
from workbench.observe.report import write_report
from workbench.observe.rows import keep_row
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.commands import command_for
from workbench.store.files import read_json, write_json_atomic, write_text_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own, foreign_reason
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import OF_THE_END, SCHEMA_VERSION, ExitDoc, ProcessDoc
from workbench.store.status import read_status

Say = Callable[[str], None] | None
"""Is told what a stop waits for, in sentences."""

_TICK_SECONDS = 0.2
_NOW_SECONDS = 45.0  # a supervisor that has not ended a run "now" by then needs help


def stop(
    paths: RunPaths,
    *,
    now: bool,
    timeout: float | None,
    on_message: Say = None,
) -> int:
    """Stop and wait; how many processes of the run are left. See `Run.stop`."""
    _request(paths, "stop-now" if now else "stop", "stopped")
    patience = math.inf if timeout is None else timeout
    patience = min(patience, _NOW_SECONDS) if now else patience
    ended = _await_end(paths, now=now, timeout=patience, on_message=on_message)
    status = read_status(paths)
    if not ended and not now:
        raise WorkbenchError(f"{paths.directory.name} is still {status.state} after {timeout:g} s.")
    if foreign_reason(paths) is not None or (status.live and not now):
        return 0
    run = read_run(paths) or RunRecord()
    return len(end_leftovers(_members(paths, run)))


def request_stop(paths: RunPaths, *, now: bool, why: str = "") -> None:
    """Ask for a stop and return at once. See `Run.request_stop`."""
    _request_in_thread(paths, "stop-now" if now else "stop", "stopped", now=now, why=why)


def request_preemption(paths: RunPaths) -> None:
    """Hand on that the machine goes away soon, and return at once. See `Run.preempt`."""
    _request_in_thread(paths, "preempt", "preempted", now=False)


def _request_in_thread(
    paths: RunPaths, name: str, reason: str, *, now: bool, why: str = ""
) -> None:
    unwatched = read_status(paths).state == "unsupervised"

    def stop_here() -> None:
        with contextlib.suppress(WorkbenchError, OSError):
            stop_directly(paths, now=now, reason=reason)

    if _request(paths, name, reason, why) and unwatched:
        threading.Thread(target=stop_here, name="workbench-stop", daemon=True).start()


def _request(paths: RunPaths, name: str, reason: str, why: str = "") -> bool:
    """Put a request into control/; False where nothing of the run is at work."""
    status = read_status(paths)
    if not status.live:
        return False
    action = "pre-empted" if reason == "preempted" else reason
    check_own(paths, action)
    if status.state == "queued" and take_out(paths, why or "It was stopped before its turn came."):
        return False
    try:
        if why:
            write_text_atomic(paths.control / name, why)
        (paths.control / name).touch()
    except OSError as error:
        raise StoreError(f"{paths.directory.name} cannot be {action}: {error}") from error
    return True


def _await_end(
    paths: RunPaths,
    *,
    now: bool,
    timeout: float,
    on_message: Say = None,
) -> bool:
    """Whether it ended in time; a run that no one watches, or no longer, is ended from here."""
    deadline = time.monotonic() + timeout
    last_message = ""
    while (status := read_status(paths)).live:
        message = (status.state == "stopping" and status.message) or last_message
        if on_message and message != last_message:
            last_message = message
            on_message(last_message)
        left = deadline - time.monotonic()
        unwatched = status.state == "unsupervised"
        if unwatched and _stop_here(paths, now=now, timeout=max(1.0, left)):
            break
        if left <= 0:
            return False
        time.sleep(0.1)
    return True


def _stop_here(paths: RunPaths, *, now: bool, timeout: float) -> bool:
    name = paths.directory.name
    try:
        done = stop_directly(paths, now=now, timeout=timeout)
    except OSError as error:
        raise StoreError(f"{name} cannot be stopped: {error}") from error
    if not done and (read_run(paths) or RunRecord()).nodes > 1:
        raise UsageError(
            f"Nobody watches {name}, whose machines only its supervisor can stop. Bring it "
            f"back on node 0, then stop: {command_for(paths.directory, 'adopt')}"
        )
    return done


def stop_directly(
    paths: RunPaths, *, now: bool, reason: str = "stopped", timeout: float = math.inf
) -> bool:
    """End the run and write how it ended; False where a supervisor has it, or it is not here.

    Raises:
        ForeignRunError: it is not this user's alone.
        OSError: the run directory cannot be written.
    """
    check_own(paths, "stopped")
    run = read_run(paths) or RunRecord()
    if not may_adopt(paths) or run.nodes > 1:
        return False
    lock = take_lock(paths)
    if lock is None:
        return False
    try:
        with logging_to(paths):
            log(f"the run has no supervisor: {reason} by process {os.getpid()}")
            _climb(paths, run, now=now, reason=reason, timeout=timeout)
            left = len(end_leftovers(_members(paths, run)))
            _tell_end(paths, run, reason, left)
    finally:
        os.close(lock)
    with logging_to(paths):
        Sidecars(paths, run, Recovery.read(run.recovery)).last_hook()
    return True


def _members(paths: RunPaths, run: RunRecord) -> Callable[[], list[ProcessDoc]]:
    return partial(processes.members, run.marker, directory=paths.directory)


def _climb(paths: RunPaths, run: RunRecord, *, now: bool, reason: str, timeout: float) -> None:
    """The stop ladder, until no process of the run is left or the time is over."""
    members = _members(paths, run)
    ladder = StopLadder(paths, members)
    steps = 0 if now else _steps(paths, run)
    rows = [] if now else last_rows(paths.rank_metrics(0))
    step_seconds, since = _step_seconds(rows), _since_step(rows)
    ladder.request(now=now, steps=steps, step_seconds=step_seconds, since_step=since, reason=reason)
    launcher = (read_json(paths.state) or {}).get("launcher")
    if not processes.is_marked(launcher, run.marker, paths.directory):
        launcher = None
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not now and (paths.control / "stop-now").exists():  # someone is in more of a hurry
            now = True
            ladder.request(now=True, steps=0, step_seconds=None)
        ladder.tick(launcher, _steps(paths, run), step_seconds)
        if not members():
            return
        time.sleep(_TICK_SECONDS)


def _steps(paths: RunPaths, run: RunRecord) -> int:
    ranks = range(run.processes)
    pulses = [read_pulse(paths.rank_pulse(rank)) for rank in ranks]
    return max((pulse.steps for pulse in pulses if pulse is not None), default=0)


def _step_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    seconds = [row["step_seconds"] for row in rows if isinstance(row.get("step_seconds"), float)]
    return median(seconds) if seconds else None


def _since_step(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds since the last of a rank's steps; None = unknown."""
    ended = [row.get("time") for row in rows[-1:]]
    since = [time.time() - at for at in ended if isinstance(at, float)]
    return since[0] if since and since[0] >= 0 else None


def _tell_end(paths: RunPaths, run: RunRecord, reason: str, left: int) -> None:
    """Everything that a supervisor leaves at the end, from the small files alone."""
    steps = max(furthest(paths), _steps(paths, run))
    verdict = judge(
        paths,
        ranks=run.processes,
        steps=steps,
        exit_code=None,
        stop_reason=reason,
        capture=run.capture,
    )
    end = _end_document(paths, verdict, left)
    log(f"{end['outcome']}: {end['message']}")
    attempts = Attempts(paths)
    attempts.end(last_step=steps, message=end["message"], at=end["ended_at"])
    _close_view(paths, end, attempts, steps)
    guarded("exit.json", lambda: write_json_atomic(paths.exit, end, indent=2))
    with contextlib.suppress(Exception):  # neither may cost the run its end
        keep_row(paths)
        write_report(paths, end)


def _end_document(paths: RunPaths, verdict: Verdict, left: int) -> ExitDoc:
    message = verdict.message
    from workbench.launching.resume.resumable import resumption  # noqa: PLC0415  (needed once)

    why_not, how = resumption(paths, {"outcome": verdict.outcome})
    if verdict.outcome in {"stopped", "preempted"} and how:
        message = f"{message} {how}"
    why = StopRequest(paths.control, None).why
    if why and verdict.outcome == "stopped":
        message = f"{why} {message}"
    return {
        "schema": SCHEMA_VERSION,
        "outcome": verdict.outcome,
        "exit_code": None,
        "failed_rank": verdict.failed_rank,
        "traceback": None,
        "message": message,
        "why_not_resumable": why_not,
        "finding": verdict.finding and verdict.finding.document(),
        "processes_left": left,
        "gpu_memory_left_bytes": None,
        "ended_at": round(time.time(), 3),
    }


def _close_view(paths: RunPaths, end: ExitDoc, attempts: Attempts, steps: int) -> None:
    """The last snapshot's curves stay; it says that the run has ended, and how far it came."""
    view, state = read_json(paths.view), read_json(paths.state) or {}
    guarded("state.json", lambda: write_json_atomic(paths.state, {**state, "phase": "ended"}))
    if view is None:
        return
    view |= {
        **latest(paths, view, until=time.time()),
        "phase": "ended",
        **{name: end[name] for name in OF_THE_END},
        "eta_seconds": None,
        "steps": max(steps, int(view.get("steps") or 0)),
        **attempts.summary(),
        "seq": int(view.get("seq") or 0) + 1,
        "written_at": round(time.time(), 3),
    }
    guarded("view.json", lambda: write_json_atomic(paths.view, view))
