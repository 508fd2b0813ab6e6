"""The loop between a run's files and one tracker: one feeder at a time, retried, never fatal."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import os
import shlex
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

from workbench.errors import UsageError, WorkbenchError
from workbench.observe.trackers.places import default_folder, log_path
from workbench.observe.trackers.points import Note, about
from workbench.observe.trackers.progress import Progress, load
from workbench.observe.trackers.sink import Sink
from workbench.observe.trackers.source import Source
from workbench.store.commands import command_in
from workbench.store.detached import lock_file
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_run
from workbench.store.status import read_status

_POLL_SECONDS = 1.0
_STATUS_SECONDS = 5.0  # two looks apart by this say that a run without exit.json is over
_RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)  # then once a minute, while the run lives
_CLASSES = {
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "trackio": "Trackio",
    "wandb": "WandB",
}


class Feeding:
    """Feeds one run to one tracker."""

    def __init__(self, paths: RunPaths, name: str, folder: Path | None) -> None:
        run = read_run(paths)
        if run is None:
            raise UsageError(
                f"{paths.directory} is not a run directory: it has no readable run.json. "
                f"List the runs with: {command_in(paths.directory.parent, 'runs')}"
            )
        check_own(paths, "fed to a tracker")  # which is written into its directory
        self._paths, self._name, self._run = paths, name, run
        home = default_folder(paths, name)
        self.folder = (folder or home).expanduser().absolute()
        own = self.folder == home.absolute()
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        self._files = home.with_name(name if own else f"{name}-{digest}")
        # TensorBoard's folder is its unit of a run; the others keep many runs in one folder.
        shared = not own and name == "tensorboard"
        self._target = self.folder / paths.directory.name if shared else self.folder
        self._looked: tuple[float, bool] | None = None

    def run(self, *, follow: bool) -> Progress:
        """Feed until all is fed, or with `follow` until the run has ended."""
        failures = 0
        with self._only_one():
            while True:
                try:
                    return self._session(follow=follow)
                except UsageError:
                    raise
                except Exception as error:
                    self._log(f"failed: {error!r}\n{traceback.format_exc()}")
                    failures += 1
                    if failures >= len(_RETRY_SECONDS) and not (follow and self._lives()):
                        again = ["workbench", "track", str(self._paths.directory)]
                        again += ["--to", self._name, "--folder", str(self.folder)]
                        raise WorkbenchError(
                            f"The tracker {self._name} failed {failures} times, the latest with "
                            f"{error!r}. The run itself is untouched. See "
                            f"{log_path(self._paths, self._name)}; to try again: "
                            f"{shlex.join(again)}"
                        ) from error
                    time.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS)) - 1])

    def _session(self, *, follow: bool) -> Progress:
        """From the kept progress on, with a sink of its own. Any failure ends it."""
        state = self._files.with_suffix(".json")
        progress = load(state, self._name, self.folder)
        end = self._end(follow=follow)
        if end and progress.ended_at == end.time and self._target.exists():
            return progress
        sink = self._make_sink()
        try:
            if not sink.open(progress):
                progress.forget()
            self._log(f"feeding {self._target} on from step {progress.step}")
            self._feed(sink, progress, state, follow=follow)
        finally:
            sink.close()
        self._log(f"fed up to step {progress.step}. To look: {sink.look()}")
        return progress

    def _feed(self, sink: Sink, progress: Progress, state: Path, *, follow: bool) -> None:
        source = Source(self._paths, self._run, progress)
        while True:
            if self._take_back(sink, source, progress):
                source = Source(self._paths, self._run, progress)
            end, fed = self._end(follow=follow), copy.deepcopy(progress)
            batch = source.read(final=end is not None)
            if source.new_attempt() or source.went_back():
                progress.go_back_to(fed)
                continue
            if batch.points:
                sink.points(batch.points)
            if batch.notes:
                sink.notes(batch.notes, len(fed.notes) + 1)
            if end is not None and batch.at_end:
                self._tell_end(sink, progress, end)
            sink.flush()
            progress.save(state)
            if batch.at_end and (end is not None or not follow):
                return
            if batch.at_end:
                time.sleep(_POLL_SECONDS)

    def _take_back(self, sink: Sink, source: Source, progress: Progress) -> bool:
        """Follow the run back to where a new attempt, or its script, went on; True if it did."""
        before = progress.step
        back_to = source.taken_back()
        if back_to is None:
            return False
        if back_to < before:
            self._log(f"attempt {progress.attempt} went back to step {back_to}; {before} were fed")
            if not sink.take_back(back_to):
                progress.forget()
                sink.clear()
        return True

    def _tell_end(self, sink: Sink, progress: Progress, end: Note) -> None:
        if end.key not in progress.notes:
            progress.notes.append(end.key)
            sink.notes([end], len(progress.notes))
        sink.end(end.title.removeprefix("run "), end.time)
        progress.ended_at = end.time

    def _end(self, *, follow: bool) -> Note | None:
        """How the run ended; None while it lives."""
        end = read_json(self._paths.exit)
        if end is None:
            if self._lives(patient=follow):
                return None
            end = {
                "outcome": "interrupted",
                "message": "All processes of the run are gone; how it ended is unknown.",
                "ended_at": (read_json(self._paths.state) or {}).get("heartbeat"),
            }
        at, outcome = end.get("ended_at"), str(end.get("outcome"))
        when = float(at) if isinstance(at, int | float) else self._run.created_at
        return Note(
            key=f"ended/{when}",
            title=f"run {outcome}",
            text=str(end.get("message") or ""),
            level="note" if outcome in {"succeeded", "stopped", "preempted"} else "error",
            step=0,
            time=when,
        )

    def _lives(self, *, patient: bool = True) -> bool:
        """Whether the run may still write; a moment between two processes does not end it."""
        if not patient:
            return read_status(self._paths).live
        now = time.monotonic()
        if self._looked is not None and now - self._looked[0] < _STATUS_SECONDS:
            return True
        live = read_status(self._paths).live
        lives = live or self._looked is None or self._looked[1]
        self._looked = (now, live)
        return lives

    def _make_sink(self) -> Sink:
        module = importlib.import_module(f"workbench.observe.trackers.{self._name}")
        sink: type[Sink] = getattr(module, _CLASSES[self._name])
        return sink(self._target, about(self._run, self._paths.directory.name))

    @contextlib.contextmanager
    def _only_one(self) -> Generator[None]:
        """Hold the tracker's lock; the kernel frees it when this process dies."""
        self._files.parent.mkdir(exist_ok=True)
        lock = lock_file(self._files.with_suffix(".lock"))
        if lock is None:
            raise UsageError(
                f"Another process feeds {self._paths.directory.name} to {self._name} in "
                f"{self.folder} already. It continues until the run ends; no action is needed."
            )
        try:
            yield
        finally:
            os.close(lock)

    def _log(self, text: str) -> None:
        """One line in the tracker's log; a full disk loses it, no more."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with (
            contextlib.suppress(OSError),
            log_path(self._paths, self._name).open("a", encoding="utf-8") as file,
        ):
            file.write(f"{stamp} {text}\n")


def describe(progress: Progress, paths: RunPaths) -> dict[str, Any]:
    """What ``--json`` prints of a finished feeding."""
    return {
        "run": paths.directory.name,
        "tracker": progress.tracker,
        "folder": progress.folder,
        "steps": progress.step,
        "samples": progress.samples,
        "notes": len(progress.notes),
        "ended": progress.ended_at is not None,
    }
