"""W&B, offline: a ``.wandb`` file that ``wandb sync`` can upload when the user wants it."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.observe.trackers.points import Note, Point
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.sink import Sink

_PROJECT = "workbench"
_LEVEL = {"error": "ERROR", "warning": "WARN", "note": "INFO"}


class WandB(Sink):
    """One offline run per run, under an id of its own.

    An offline file can neither be gone on with nor taken back, so each attaching writes the whole
    run into a new one, in place of the one before: there is never more than one.
    """

    def open(self, progress: Progress) -> bool:  # noqa: ARG002
        """Begin a new offline file."""
        os.environ.update(WANDB_ERROR_REPORTING="false", WANDB_SILENT="true", WANDB_MODE="offline")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._id = re.sub(r"[^A-Za-z0-9_-]", "-", self.about.marker)[-64:]
        self._run: Any = None
        self._start()
        return False

    def _start(self) -> None:
        wandb: Any = importlib.import_module("wandb")  # a second
        for folder in self._folders():
            shutil.rmtree(folder)
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            project=_PROJECT,
            id=self._id,
            name=self.about.name,
            dir=str(self.folder),
            mode="offline",
            config=dict(self.about.parameters),
            settings=settings,
        )
        self._run.define_metric("step")
        self._run.define_metric("seconds")
        self._run.define_metric("*", step_metric="step", step_sync=False)
        self._run.define_metric("system/*", step_metric="seconds", step_sync=False)

    def _folders(self) -> list[Path]:
        """Folders that earlier attachings of this run wrote; links are not followed."""
        folders = (self.folder / "wandb").glob(f"offline-run-*-{self._id}")
        return [path for path in folders if path.is_dir() and not path.is_symlink()]

    def clear(self) -> None:
        """Begin a new offline file."""
        self._run.finish()
        self._start()

    def points(self, points: Sequence[Point]) -> None:
        """One row per point."""
        for point in points:
            axis = (
                {"step": point.at}
                if point.axis == "steps"
                else {"seconds": round(point.time - self.about.created_at, 3)}
            )
            self._run.log({**point.values, **axis, "_timestamp": point.time})

    def notes(self, notes: Sequence[Note], first: int) -> None:
        """Alerts, sent when the file is synced, and the summary."""
        for number, note in enumerate(notes, start=first):
            text = f"{note.text} (step {note.step})" if note.step else note.text
            self._run.alert(title=note.title, text=text, level=_LEVEL[note.level], wait_duration=0)
            self._run.summary[f"note-{number}"] = f"{note.level}: {note.title}. {text}"

    def end(self, outcome: str, ended_at: float) -> None:
        """Outcome, and the end of the file."""
        self._run.summary["outcome"] = outcome
        self._run.summary["ended_at"] = ended_at
        if outcome == "preempted":  # then W&B calls it so, not failed
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if outcome in {"succeeded", "stopped"} else 1)
        self._run = None

    def look(self) -> str:
        """The command that shows it."""
        folder = shlex.quote(str(self.folder / "wandb"))
        return f"wandb sync {folder}/offline-run-*-{self._id}"

    def flush(self) -> None:
        """Each attaching writes everything, so what was not on the disk is not missed."""

    def close(self) -> None:
        """End the file, if `end` did not."""
        if self._run is not None:
            with contextlib.suppress(Exception):
                self._run.finish()
            self._run = None
