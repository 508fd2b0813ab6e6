"""Node 0 of a run whose machines an engine chose: only now is known where the others reach it.

An engine starts the same command on every machine, and the same again when it took the machines
back in between; so this begins the run, or goes on from its newest whole checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from dataclasses import replace

from workbench.errors import UsageError, WorkbenchError
from workbench.launching.log import guarded
from workbench.launching.multinode.agent import Say
from workbench.launching.prepare.moved import settled_here
from workbench.launching.prepare.placement import Placement, check_address
from workbench.launching.resume.attempts import Attempts
from workbench.launching.resume.resumable import latest_words
from workbench.launching.resume.resume import at_work, has_continued
from workbench.launching.resume.starting_point import start_by_itself
from workbench.launching.run import Run
from workbench.launching.start.launch_spec import LaunchSpec, recorded_spec, resume_spec
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.storage.mirror_state import await_last_copy
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION
from workbench.store.status import HEARTBEAT_FRESH_SECONDS, read_status

_START_SECONDS = 90.0
_LAST_SECONDS = 75.0  # a supervisor waits for its trackers after the run's end
_WHY = "started again by the engine"


def lead(paths: RunPaths, address: str | None, port: int | None, say: Say) -> Run:
    """Become node 0: start the run's supervisor, and stay until it is gone.

    Raises:
        UsageError: the address is missing, the run is at work elsewhere or has finished.
        WorkbenchError: the supervisor did not start.
    """
    try:
        _begin(paths, address, port, say)
    except Exception as error:
        _write_failure(paths, error)
        raise
    return _stay(paths)


def _begin(paths: RunPaths, address: str | None, port: int | None, say: Say) -> None:
    check_own(paths, "started")
    run = read_run(paths)
    if run is None:
        raise UsageError(f"{paths.run} cannot be read.")
    _wait_for_previous(paths)
    if (read_json(paths.exit) or {}).get("outcome") == "succeeded":
        raise UsageError(f"{run.run} has finished; there is nothing to start.")
    run, notes = settled_here(paths, run)
    for note in notes:
        say(note)
    run = _at(paths, run, address, port)
    spec, before = _spec(paths, run, say), at_work(paths)
    spawn_supervisor(paths, spec)
    deadline = time.monotonic() + _START_SECONDS
    while not has_continued(paths, run, before):
        if time.monotonic() > deadline:
            raise WorkbenchError(
                f"The supervisor of {run.run} did not start; {paths.supervisor_log} says why."
            )
        time.sleep(0.1)


def _write_failure(paths: RunPaths, error: Exception) -> None:
    """The other machines wait for a run that does not begin: it has ended, for all to see."""
    at_work_now = paths.state.exists() and read_status(paths).live
    if at_work_now or paths.exit.exists() or not paths.run.exists():
        return
    document = {
        "schema": SCHEMA_VERSION,
        "outcome": "failed",
        "exit_code": None,
        "failed_rank": None,
        "message": f"Node 0 could not start the run: {error}",
        "finding": None,
        "processes_left": 0,
        "gpu_memory_left_bytes": None,
        "ended_at": round(time.time(), 3),
    }
    guarded("exit.json", lambda: write_json_atomic(paths.exit, document, indent=2))


def _wait_for_previous(paths: RunPaths) -> None:
    """A machine that was taken away cannot say that it is gone: its heartbeat has to grow old."""
    deadline = time.monotonic() + HEARTBEAT_FRESH_SECONDS + 15.0
    while paths.state.exists() and read_status(paths).live:
        if time.monotonic() > deadline:
            raise UsageError(f"{paths.directory.name} is already running.")
        time.sleep(1.0)


def _at(paths: RunPaths, run: RunRecord, address: str | None, port: int | None) -> RunRecord:
    """run.json with the address that the other machines are told."""
    if run.nodes == 1:
        return run
    if address is None:
        raise UsageError("Node 0 is found by the others at --address. Give it.")
    chosen = check_address(address)
    where = Placement(nodes=run.nodes, node_rank=0, address=chosen, port=port or 29_500)
    placed = replace(run, address=chosen, command=where.of(run.command))
    write_json_atomic(paths.run, placed.document(), indent=2)
    return placed


def _spec(paths: RunPaths, run: RunRecord, say: Say) -> LaunchSpec:
    spec, attempts = recorded_spec(run, latest_words(paths, run)), Attempts(paths)
    if not attempts.number:
        return spec
    beat = functools.partial(_beat, paths)
    checkpoint, passed = start_by_itself(paths, run, spec["arguments"], beat)
    for sentence in passed:
        say(sentence)
    resumed = resume_spec(spec["arguments"], run, checkpoint, _WHY)
    resumed["after"] = attempts.number
    say(f"attempt {attempts.number + 1} continues from step {resumed['step']}")
    return {**spec, "resume": resumed}


def _beat(paths: RunPaths) -> None:
    """The other machines do not take node 0 for gone."""
    state = read_json(paths.state)
    if state is not None:
        state["heartbeat"] = round(time.time(), 3)
        guarded("state.json", functools.partial(write_json_atomic, paths.state, state))


def _stay(paths: RunPaths) -> Run:
    """An engine ends what its command leaves behind: stay as long as the supervisor does."""
    run = Run(paths)

    def hand_over(_number: int, _frame: object) -> None:
        run.preempt()

    before = signal.signal(signal.SIGTERM, hand_over)
    try:
        run.wait()
        supervisor = (read_json(paths.state) or {}).get("supervisor")
        if supervisor is not None:
            with contextlib.suppress(KeyboardInterrupt):
                await_last_copy(paths)
                processes.wait_gone([supervisor], _LAST_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, before)
    return run
