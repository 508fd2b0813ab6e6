"""A run that waits: it is filed in its store's queue, started from there, or taken out of it.

Its directory is made when it is filed. Nothing of it is started before the queue's dispatcher (see
`workbench.queueing`) does so, in the same way as a resume: from the record.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.prepare.acceptance import check_accepted
from workbench.launching.prepare.devices import assigned
from workbench.launching.prepare.moved import settled_here
from workbench.launching.prepare.recorded_environment import tuning_variables
from workbench.launching.prepare.request import Request
from workbench.launching.start.filed_shell import (
    OF_ONE_SHELL,
    Shell,
    secrets_elsewhere,
    shell_document,
    shell_of,
)
from workbench.launching.start.launch_spec import recorded_spec
from workbench.launching.start.start import prepare
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.notifying import chosen, follow_command
from workbench.store import secrets
from workbench.store.commands import command_for
from workbench.store.detached import start_detached, start_serving
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.processes import SAFE_PYTHON, watched_directories
from workbench.store.queue_files import QueueEntry, QueueFiles
from workbench.store.record import read_record, read_run
from workbench.store.run_record import SweepDoc
from workbench.store.schema import OF_THE_END, SCHEMA_VERSION, ExitDoc

_DISPATCHER = "workbench.queueing.dispatcher"


def file(request: Request, sweep: SweepDoc | None = None) -> RunPaths:
    """Make the run's directory and file it in its store's queue; see that someone serves that.

    `sweep`: whose trial it is.

    Raises:
        UsageError: it holds a secret, which the queue's files do not keep.
        StoreError: the store cannot be written.
    """
    _refuse_secrets(request)
    queue, now = QueueFiles(request.store.root), time.time()
    variables = tuning_variables(os.environ)  # also where the run is started again from elsewhere
    variables.pop("PYTHONPATH", None)  # a launch's own anyway
    environment = {**secrets.redact_environment(variables), **request.options.environment}
    visible = {name: value for name, value in environment.items() if value != secrets.HIDDEN}
    options = replace(request.options, environment=visible)
    with queue.locked():
        if note := secrets_elsewhere(queue):
            warnings.warn(note, stacklevel=2)
        paths, _ = prepare(replace(request, options=options), queued_at=now, sweep=sweep)
        _enter(queue, paths.directory.name, options.priority, now)
    return paths


def _enter(queue: QueueFiles, run: str, priority: int, now: float) -> None:
    """Put a run at the end of the queue; under its lock."""
    last = max((entry.order for entry in queue.waiting()), default=0.0)
    shell = shell_document(run)
    entry = QueueEntry(run=run, priority=priority, order=last + 1, filed_at=now, shell=shell)
    queue.write(queue.waits(run), entry)
    serve(queue)


def file_again(paths: RunPaths, priority: int) -> bool:
    """File a run whose filing was cut off; False where it is filed, begins, or has begun.

    `priority`: as it was filed with.

    Raises:
        ForeignRunError: the queue is another user's.
        StoreError: it cannot be written.
    """
    queue, name = QueueFiles(paths.directory.parent), paths.directory.name
    with queue.locked():
        filed = queue.waits(name).exists() or queue.starts(name).exists()
        if filed or has_begun(paths) or is_beginning(paths):
            return False
        _enter(queue, name, priority, time.time())
    return True


def _refuse_secrets(request: Request) -> None:
    variables = dict(request.options.environment)
    hidden = [name for name, value in secrets.redact_environment(variables).items()
              if value != variables[name]]  # fmt: skip
    words = list(request.arguments)
    secret_words = [word for word in secrets.redact_arguments(words) if secrets.HIDDEN in word]
    if hidden or secret_words:
        raise UsageError(
            f"The queue is files, which keep no secret ({', '.join([*hidden, *secret_words])}). "
            "Put it where the script finds it by itself: a login (hf auth login, wandb "
            "login) or a file that only you can read. Or launch without --queue."
        )


def serve(queue: QueueFiles) -> None:
    """See that a dispatcher serves the queue, unless it is paused or empty; under its lock."""
    if queue.settings.paused or queue.is_served or not (queue.waiting() or queue.starting()):
        return
    command = [*SAFE_PYTHON, "-m", _DISPATCHER, str(queue.root)]
    start_serving(command, queue.folder / "dispatcher.log", _environment(), queue.dispatcher)


def _environment() -> dict[str, str]:
    """Of a process that serves others than this shell."""
    return {name: value for name, value in os.environ.items() if name not in OF_ONE_SHELL}


def start_queued(paths: RunPaths, devices: Sequence[str]) -> None:
    """Start the run of this record on these devices, unless it was started before.

    Raises:
        UsageError: its script or folder is gone, or the record lacks what a start needs.
        StoreError: the run directory cannot be written.
    """
    check_own(paths, "started")
    run = read_record(paths)
    check_accepted(paths, run)
    _check_there(paths, "folder", run.working_directory)
    run, notes = settled_here(paths, run)
    _check_there(paths, "script", run.script)
    run = replace(run, warnings=[*run.warnings, *notes])
    run, shell = assigned(run, devices), _shell(paths)
    run = replace(run, warnings=[*run.warnings, *filter(None, [shell.note])])
    spec = recorded_spec(run)
    spec["resume"] = {"step": 0, "checkpoint": None, "why": "its turn in the queue", "after": 0}
    try:
        write_json_atomic(paths.run, run.document(), indent=2)
        spawn_supervisor(paths, spec, shell=shell.variables)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error


def _check_there(paths: RunPaths, kind: str, path: str) -> None:
    if not Path(path).exists():
        again = command_for(paths.directory, "rerun")
        raise UsageError(f"Its {kind} {path} is gone. Put it back, then: {again}")


def _shell(paths: RunPaths) -> Shell:
    """The environment that the run was filed from; this process's where no place records one."""
    name, queue = paths.directory.name, QueueFiles(paths.directory.parent)
    entries = [entry for entry in queue.starting() if entry.run == name]
    return shell_of(entries[0]) if entries else Shell(variables=dict(os.environ))


def has_begun(paths: RunPaths) -> bool:
    """Whether a supervisor has reported the run, or it has ended."""
    return paths.state.exists() or paths.exit.exists()


def is_beginning(paths: RunPaths) -> bool:
    """Whether a supervisor of the run was started that lives."""
    return paths.directory in watched_directories()


def take_out(paths: RunPaths, message: str) -> bool:
    """Take a run that waits out of the queue; False where it is started already, or never waited.

    Raises:
        ForeignRunError: the queue is another user's.
        StoreError: it cannot be written.
    """
    queue, name = QueueFiles(paths.directory.parent), paths.directory.name
    with queue.locked():
        if not queue.waits(name).exists() or has_begun(paths):
            return False
        end_unstarted(paths, message, "stopped")
        queue.waits(name).unlink(missing_ok=True)
    return True


def end_unstarted(paths: RunPaths, message: str, outcome: str) -> None:
    """Write the end of a run that never started. Raises StoreError: it cannot be written."""
    end: ExitDoc = {
        "schema": SCHEMA_VERSION,
        "outcome": outcome,
        "exit_code": None,
        "failed_rank": None,
        "traceback": None,
        "message": message,
        "why_not_resumable": "",
        "finding": None,
        "processes_left": 0,
        "gpu_memory_left_bytes": None,
        "ended_at": time.time(),
    }
    view = read_json(paths.view) or {}
    view |= {key: value for key, value in end.items() if key in OF_THE_END}
    view |= {"phase": "ended", "seq": int(view.get("seq") or 0) + 1}
    try:
        with contextlib.suppress(FileNotFoundError):
            write_json_atomic(paths.view, view)
            write_json_atomic(paths.exit, end, indent=2)
            _send_messages(paths)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error


def _send_messages(paths: RunPaths) -> None:
    """Send the messages of its end, which no supervisor sends."""
    run = read_run(paths)
    with contextlib.suppress(WorkbenchError):  # a target was removed since
        if run is not None and (targets := chosen(run.notify)):
            start_detached(
                follow_command(paths, targets), paths.logs / "notify.log", _environment()
            )
