"""`launch`, `attach` and the `Run` handle: everything a client does, from the directory alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.describe import Strategy
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launch import redact
from workbench.launch.request import Request
from workbench.launch.request import request as dry_run
from workbench.launch.stopping import end_leftovers
from workbench.observe.events import read_metrics
from workbench.observe.summary import summarise
from workbench.observe.view import log_lines
from workbench.store.files import read_json, read_tail, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.runs import LAST, Store
from workbench.store.schema import SCHEMA_VERSION, ViewDoc
from workbench.store.status import Status, read_status
from workbench.version import __version__

_ADOPT_SECONDS = 5.0
_EMPTY_VIEW: dict[str, Any] = {
    "steps": 0,
    "stride": 1,
    "series": {},
    "host": {"series": {}},
    "lines_skipped": 0,
    "ranks": [],
    "devices": [],
    "findings": [],
    "peak_memory_bytes": [],
}
_NOW_SECONDS = 45.0  # a supervisor that has not ended a run "now" by then needs help


class Run:
    """A run, seen through its directory. Any number of handles may exist, in any process."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    @property
    def id(self) -> str:
        """The run id, unique in its store."""
        return self._paths.directory.name

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._paths.directory

    @property
    def document(self) -> dict[str, Any]:
        """run.json: what was asked, how and where."""
        return read_json(self._paths.run) or {}

    @property
    def status(self) -> Status:
        """State, outcome and message, checked against the living processes."""
        return read_status(self._paths)

    @property
    def state(self) -> str:
        """starting, running, stopping, unsupervised, ended, interrupted or unreadable."""
        return self.status.state

    @property
    def outcome(self) -> str | None:
        """succeeded, failed, stopped, preempted, interrupted or no-steps; None while it runs."""
        return self.status.outcome

    @property
    def command(self) -> list[str]:
        """The exact argv that was started (secrets redacted)."""
        return list(self.document.get("command", []))

    def view(self) -> dict[str, Any]:
        """The charts' snapshot; what is not known (yet) is None, columns are empty.

        Keys: see `workbench.store.schema.ViewDoc`.
        """
        view = dict.fromkeys(ViewDoc.__annotations__) | _EMPTY_VIEW
        return view | (read_json(self._paths.view) or {})

    def summary(self) -> dict[str, Any]:
        """What ``workbench show --json`` prints."""
        return summarise(self._paths)

    def metrics(self, rank: int | None = None) -> list[dict[str, Any]]:
        """One row per optimizer step: of `rank`, or averaged over all ranks.

        Keys: step, rank, time (Unix s), loss, lr, grad_norm, step_seconds; unknown is None.

        Raises:
            UsageError: the run has no such rank.
        """
        ranks = self._ranks()
        if rank is not None:
            self._check_rank(rank)
        return read_metrics(self._paths, ranks, rank)

    def logs(self, rank: int | None = None, tail: int | None = None) -> str:
        """Output of `rank`, or of the launcher and all ranks, each under a heading.

        `tail` keeps the last lines only, with progress bars collapsed. Bytes that are not UTF-8
        are shown as replacement characters.

        Raises:
            UsageError: the run has no such rank.
        """
        if rank is not None:
            self._check_rank(rank)
            return self._log(self._paths.rank_log(rank), tail)
        parts = {"launcher": self._paths.launcher_log}
        parts |= {f"rank {number}": self._paths.rank_log(number) for number in range(self._ranks())}
        texts = {name: self._log(path, tail) for name, path in parts.items()}
        return "\n".join(f"== {name} ==\n{text}" for name, text in texts.items() if text)

    @staticmethod
    def _log(path: Path, tail: int | None) -> str:
        if tail is None:
            try:
                return path.read_bytes().decode("utf-8", errors="replace")
            except OSError:
                return ""
        return "\n".join(log_lines(read_tail(path, 400 * tail), 400 * tail)[-tail:])

    def request_stop(self, *, now: bool = False) -> None:
        """Ask the supervisor to stop and return at once. `now` skips the graceful rung.

        Raises:
            StoreError: the run directory cannot be written.
        """
        if not self.status.live:
            return
        try:
            (self._paths.control / ("stop-now" if now else "stop")).touch()
        except OSError as error:
            raise StoreError(f"Cannot ask {self.id} to stop: {error}") from error
        self.adopt()

    def stop(self, *, now: bool = False, timeout: float = 300.0) -> dict[str, Any]:
        """Stop and wait until no process of the run is left.

        Returns:
            ``{"run", "outcome", "processes_left"}``.

        Raises:
            WorkbenchError: it did not end within `timeout` seconds.
        """
        self.request_stop(now=now)
        try:
            self.wait(min(timeout, _NOW_SECONDS) if now else timeout)
        except WorkbenchError:
            if not now:
                raise
        marker = str(self.document.get("marker"))
        left = end_leftovers(marker, None) if now or not self.status.live else []
        return {"run": self.id, "outcome": self.outcome, "processes_left": len(left)}

    def wait(self, timeout: float | None = None, *, steps: int | None = None) -> str | None:
        """Block until the run has ended, or has made `steps` steps; returns its outcome so far.

        Ctrl-C ends the waiting only.

        Raises:
            WorkbenchError: it did not end within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.status).live:
            if status.state == "unsupervised":
                self.adopt()
            if steps is not None and self.view()["steps"] >= steps:
                return None
            if deadline is not None and time.monotonic() > deadline:
                raise WorkbenchError(f"{self.id} is still {status.state} after {timeout:g} s.")
            time.sleep(0.1)
        return self.outcome

    def adopt(self) -> bool:
        """Give a run that trains on unwatched a new supervisor; False when it needs none."""
        if self.status.state != "unsupervised":
            return False
        _spawn_supervisor(self._paths, None)
        deadline = time.monotonic() + _ADOPT_SECONDS
        while self.status.state == "unsupervised" and time.monotonic() < deadline:
            time.sleep(0.05)
        return True

    def _ranks(self) -> int:
        return int(self.document.get("processes", 1))

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._ranks():
            raise UsageError(f"{self.id} has ranks 0 to {self._ranks() - 1}, not {rank}.")

    def __repr__(self) -> str:
        status = self.status
        return f"Run({self.id!r}, {status.outcome or status.state}, {self._paths.directory})"


def launch(
    target: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    strategy: str | Strategy | None = None,
    processes: int | None = None,
    options: Mapping[str, Any] | None = None,
    cpu: bool = False,
    name: str | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    wrap: str | None = None,
    capture: bool = True,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Start a training run on this host and return its handle within milliseconds.

    Arguments and errors are those of `workbench.launch.request.request`.

    Raises:
        StoreError: the run store cannot be written.
    """
    checked = dry_run(
        target,
        arguments,
        strategy=strategy,
        processes=processes,
        options=options,
        cpu=cpu,
        name=name,
        store=store,
        wrap=wrap,
        capture=capture,
        port=port,
        environment=environment,
    )
    return start(checked)


def start(request: Request) -> Run:
    """Claim the run directory, write run.json and the config, start the supervisor."""
    paths = request.store.create(request.name)
    marker = uuid.uuid4().hex
    environment = {
        **request.environment,
        MARKER: marker,
        "WORKBENCH_RUN_DIR": str(paths.directory),
    }
    command = request.command_in(paths.directory)
    try:
        write_json_atomic(paths.run, _run_document(request, paths, marker, environment), indent=2)
        for path, text in request.config_files_in(paths.directory).items():
            Path(path).write_text(text, encoding="utf-8")
        order = {
            "command": command,
            "environment": environment,
            "working_directory": str(request.working_directory),
        }
        _spawn_supervisor(paths, order)
    except OSError as error:
        raise StoreError(
            f"The run directory {paths.directory} cannot be written: {error}"
        ) from error
    return Run(paths)


def _run_document(
    request: Request, paths: RunPaths, marker: str, environment: dict[str, str]
) -> dict[str, Any]:
    workload = request.workload
    return {
        "schema": SCHEMA_VERSION,
        "run": paths.directory.name,
        "name": request.name,
        "marker": marker,
        "created_at": time.time(),
        "workbench_version": __version__,
        "script": str(request.script),
        "arguments": redact.redact_arguments(request.arguments),
        "recipe": request.recipe,
        "strategy": asdict(request.strategy),
        "strategy_name": request.strategy.name,
        "processes": request.processes,
        "device": request.device,
        "cluster": asdict(request.cluster),
        "workload": asdict(workload) if workload else None,
        "predicted": {"memory": request.predicted.document()} if request.predicted else None,
        "command": redact.redact_arguments(request.command_in(paths.directory)),
        "environment": redact.redact_environment(environment),
        "working_directory": str(request.working_directory),
        "capture": request.capture,
        "steps_total": request.steps_total,
        "seconds_total": request.seconds_total,
        "tokens_per_step": workload.tokens_per_step(request.strategy.data_ranks)
        if workload
        else None,
        "usd_per_hour": request.cluster.usd_per_hour,
    }


def _spawn_supervisor(paths: RunPaths, order: dict[str, Any] | None) -> None:
    """Start the detached supervisor; with no order it adopts. Returns without waiting for it."""
    command = [sys.executable, "-m", "workbench.launch.supervisor", str(paths.directory)]
    with paths.supervisor_log.open("ab") as output:
        process = subprocess.Popen(
            command if order is not None else [*command, "--adopt"],
            stdin=subprocess.DEVNULL if order is None else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=paths.directory,
        )
    if process.stdin is not None:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
    # The supervisor outlives us or not: no zombie if it does not, no warning if it does.
    threading.Thread(target=process.wait, daemon=True).start()


def attach(run: str = LAST, store: str | os.PathLike[str] | None = None) -> Run:
    """Handle of an existing run by id, unique prefix, name or "last"; re-adopts it when unwatched.

    Raises:
        RunNotFoundError: no such run in the store.
    """
    handle = Run(Store(store).find(run))
    handle.adopt()
    return handle


def runs(store: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Short summaries of all runs in the store, newest first."""
    place = Store(store)
    return [summarise(RunPaths(place.root / run_id), short=True) for run_id in place.ids()]
