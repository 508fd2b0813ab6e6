"""The life of a supervisor, from its spec to its end: one per run."""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.launching.log import EXIT_RESERVE, guarded, log
from workbench.launching.resume.attempts import Attempts
from workbench.launching.supervise.run_state import RunState
from workbench.launching.supervise.supervisor import Supervisor
from workbench.store import secrets
from workbench.store.detached import lock_file
from workbench.store.files import read_json, reserve, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import foreign_reason
from workbench.store.record import read_run
from workbench.store.schema import OF_THE_END
from workbench.store.secrets import secret_values

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec, ResumeSpec

HANDOVER_SECONDS = 75.0  # the supervisor of a run that has just ended still waits for its trackers
_LOCK_TICK_SECONDS = 0.2
_RESERVE_BYTES = 200_000  # kept on disk so that the end can be told even when it is full
_EXIT_BYTES = 16_384  # the same for exit.json, whose inode is kept as well
_PR_SET_CHILD_SUBREAPER = 36


def take_lock(paths: RunPaths, patience_seconds: float = 0.0) -> int | None:
    """Become the run's only supervisor; None when there is one. The kernel frees it when we die."""
    deadline = time.monotonic() + patience_seconds
    while (lock := lock_file(paths.lock)) is None and time.monotonic() < deadline:
        time.sleep(_LOCK_TICK_SECONDS)
    return lock


def supervise(directory: str, spec_text: bytes, *, adopting: bool) -> None:
    """The whole life of a supervisor. `spec_text`: JSON of the `LaunchSpec` to start, if any.

    Adopting, it continues with what is at work; a spec that no one came to start is started.
    """
    paths = RunPaths(Path(directory))
    spec: LaunchSpec | None = json.loads(spec_text) if spec_text else None
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned ranks come to us
    reason = foreign_reason(paths) if adopting and not spec else None
    if reason is not None:
        log(f"not adopted: {reason}")
        return
    resume = spec and spec["resume"]
    lock = take_lock(paths, HANDOVER_SECONDS if resume else 0.0)
    run = read_run(paths)
    if lock is None or run is None:
        log("another supervisor has this run" if lock is None else "run.json cannot be read")
        return
    _learn_secrets(spec)
    supervisor = Supervisor(RunState.of(paths, run))
    if spec and _is_started(resume, supervisor.state.attempts, adopting=adopting):
        if not adopting:
            log("another process has resumed the run")
            return
    elif spec:
        adopting = False
    if not adopting:  # before anyone can see that the run is live again, and ask something of it
        supervisor.state.attempts.take_over()
    if paths.exit.exists():
        if adopting or not resume:
            os.close(lock)
            _leave_ended(supervisor.state, adopting=adopting)
            return
        _reopen(supervisor.state)
    guarded("reserve", lambda: reserve(paths.control / "reserve", _RESERVE_BYTES))
    guarded("reserve", lambda: reserve(paths.control / EXIT_RESERVE, _EXIT_BYTES))
    if adopting or spec is None:
        supervisor.adopt(spec)
    else:
        supervisor.start(spec)
    supervisor.watch()
    os.close(lock)
    supervisor.state.sidecars.last_hook()


def _leave_ended(state: RunState, *, adopting: bool) -> None:
    """Nothing is left to do but what a supervisor before may not have come to."""
    log("the run has ended")
    if adopting:
        state.sidecars.last_hook()


def _reopen(state: RunState) -> None:
    """The run continues. exit.json goes last: every reader goes from ended to starting."""
    view = read_json(state.paths.view)
    if view is not None:
        view |= {**dict.fromkeys(OF_THE_END), "phase": "starting", "eta_seconds": None}
        view |= {"seq": int(view.get("seq") or 0) + 1, "written_at": round(time.time(), 3)}
        guarded("view.json", lambda: write_json_atomic(state.paths.view, view))
    state.write("starting")
    state.paths.exit.unlink()


def _learn_secrets(spec: LaunchSpec | None) -> None:
    if spec is None:
        return
    resumed = (spec["resume"] or {}).get("arguments", [])
    secrets.learn(spec["environment"], secret_values([*spec["arguments"], *resumed]))


def _is_started(resume: ResumeSpec | None, attempts: Attempts, *, adopting: bool) -> bool:
    """Whether an attempt of this spec, or a later one, has begun already."""
    after = (resume or {}).get("after")
    if not adopting and after is None:
        return False
    return attempts.number != (after or 0)
