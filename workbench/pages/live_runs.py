"""The runs that are watched on this host now, in any store, and how those seen before ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, TypedDict

from workbench.observe.view import recent_samples
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.processes import watched_directories
from workbench.store.record import read_run
from workbench.store.schema import SystemLine
from workbench.store.status import read_status

_ENDED_KEPT = 20
_LATEST_BYTES = 1 << 16  # of the samples: the last one is shown, and each look reads it
_READ_AGAIN_SECONDS = 1.0  # however many pages ask


class LiveRun(TypedDict):
    """One line of a live run. Unknown is None."""

    run: str
    name: str
    store: str  # the folder of its store
    state: str  # see `workbench.store.status.Status`
    rehearsal: bool
    is_trial: bool  # one of a sweep, a study or a measurement
    steps: int | None
    steps_total: int | None
    loss: float | None
    eta_seconds: float | None
    usd_per_hour: float | None
    usd_so_far: float | None
    gpus: int  # of this host, that it uses; 0 on a CPU host
    busy_percent: float | None  # mean of those GPUs, else of the host's cores
    trouble: str | None  # the cause of its worst finding that stands, a note aside


class EndedRun(TypedDict):
    """How a run ended that was seen live before."""

    run: str
    name: str
    store: str
    is_trial: bool
    outcome: str | None
    message: str | None


class LiveRuns:
    """Keeps which runs were seen, so that the end of one can be told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = dict[Path, LiveRun]()
        self._ended = dict[Path, EndedRun]()
        self._read_at = float("-inf")

    def read(self) -> tuple[list[LiveRun], list[EndedRun]]:
        """The live runs, oldest directory name first, and the latest that ended."""
        with self._lock:
            if time.monotonic() - self._read_at >= _READ_AGAIN_SECONDS:
                self._look()
                self._read_at = time.monotonic()
            return list(self._seen.values()), list(self._ended.values())

    def _look(self) -> None:
        watched = sorted(watched_directories(), key=lambda directory: directory.name)
        now = {directory: row for directory in watched if (row := _live(directory))}
        for directory in self._seen.keys() - now.keys():
            self._ended.pop(directory, None)
            self._ended[directory] = _ended(directory, self._seen[directory])
        for directory in now:
            self._ended.pop(directory, None)  # it was resumed
        while len(self._ended) > _ENDED_KEPT:
            self._ended.pop(next(iter(self._ended)))
        self._seen = now


def _live(directory: Path) -> LiveRun | None:
    """None where it has ended: its watcher is about to."""
    paths = RunPaths(directory)
    status = read_status(paths)
    if not status.live:
        return None
    view, run = read_json(paths.view) or {}, read_run(paths)
    samples = recent_samples(paths, _LATEST_BYTES)
    gpus = samples[-1]["gpus"] if samples else []
    findings: list[dict[str, Any]] = view.get("findings") or []
    standing = [
        finding
        for finding in findings
        if finding.get("severity") != "note" and not finding.get("cleared_at")
    ]
    return LiveRun(
        run=directory.name,
        name=view.get("name") or directory.name,
        store=str(directory.parent),
        state=status.state,
        rehearsal=bool(view.get("rehearsal")),
        is_trial=run is not None and run.is_helper,
        steps=view.get("steps"),
        steps_total=view.get("steps_total"),
        loss=view.get("loss_last"),
        eta_seconds=view.get("eta_seconds"),
        usd_per_hour=view.get("usd_per_hour"),
        usd_so_far=view.get("usd_so_far"),
        gpus=len(gpus),
        busy_percent=_busy(samples[-1]) if samples else None,
        trouble=standing[0].get("cause") if standing else None,
    )


def _busy(sample: SystemLine) -> float | None:
    used: list[Any] = [gpu.get("util") for gpu in sample["gpus"]]
    percents = [float(value) for value in used if value is not None]
    if percents:
        return round(sum(percents) / len(percents), 1)
    return None if sample["gpus"] else sample.get("cpu_percent")


def _ended(directory: Path, before: LiveRun) -> EndedRun:
    status = read_status(RunPaths(directory))
    return EndedRun(
        run=before["run"],
        name=before["name"],
        store=before["store"],
        is_trial=before["is_trial"],
        outcome=status.outcome,
        message=status.message,
    )
