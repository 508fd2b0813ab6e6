"""Trackio: its local SQLite store, written with the times of the run and no server."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from workbench.errors import UsageError
from workbench.observe.trackers.points import Note, Point
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.sink import Sink

_PROJECT = "workbench"
_LEVEL = {"error": "error", "warning": "warn", "note": "info"}


class Trackio(Sink):
    """One Trackio run per run, in the project "workbench".

    ``trackio.log`` cannot say when something happened, and asks the Hugging Face Hub who the user
    is; its storage class does neither, and ignores rows whose key it has seen.
    """

    def open(self, progress: Progress) -> bool:  # noqa: ARG002
        """Open the store; its folder is settled at the import."""
        folder = self.folder.absolute()
        if "trackio" not in sys.modules:
            os.environ.update(
                TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1"
            )
        utils = importlib.import_module("trackio.utils")  # a second
        if utils.TRACKIO_DIR.absolute() != folder:
            raise UsageError(
                f"Trackio was imported in this process for {utils.TRACKIO_DIR} and cannot also "
                f"write to {folder}. Feed it in a separate process: python -m "
                "workbench.observe.trackers RUN_DIRECTORY --to trackio"
            )
        self._storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        self._id = self.about.marker
        run_ids = {record["id"] for record in self._storage.get_run_records(_PROJECT)}
        return self._id in run_ids

    def clear(self) -> None:
        """Delete the run's rows."""
        self._storage.delete_run(_PROJECT, self.about.run, run_id=self._id)

    def points(self, points: Sequence[Point]) -> None:
        """Steps and samples in one transaction each."""
        steps = [point for point in points if point.axis == "steps"]
        system = [point for point in points if point.axis == "system"]
        created = _iso(self.about.created_at)
        if steps:
            config = {**self.about.parameters, "_Username": None, "_Created": created}
            self._storage.bulk_log(
                *(_PROJECT, self.about.run, [point.values for point in steps]),
                steps=[point.at for point in steps],
                config=config,
                **self._keys(steps),
            )
        if system:
            values = [_short(point.values) for point in system]
            self._storage.bulk_log_system(_PROJECT, self.about.run, values, **self._keys(system))

    def _keys(self, points: Sequence[Point]) -> dict[str, Any]:
        return {
            "timestamps": [_iso(point.time) for point in points],
            "log_ids": [f"{self._id}/{point.key}" for point in points],
            "run_id": self._id,
        }

    def notes(self, notes: Sequence[Note], first: int) -> None:  # noqa: ARG002
        """Alerts."""
        self._storage.bulk_alert(
            *(_PROJECT, self.about.run),
            titles=[note.title for note in notes],
            texts=[note.text for note in notes],
            levels=[_LEVEL[note.level] for note in notes],
            steps=[note.step or None for note in notes],
            timestamps=[_iso(note.time) for note in notes],
            alert_ids=[f"{self._id}/{note.key}" for note in notes],
            run_id=self._id,
        )

    def end(self, outcome: str, ended_at: float) -> None:
        """The alert says it; Trackio does not know any state of a run."""

    def look(self) -> str:
        """The command that shows it."""
        return f"TRACKIO_DIR={shlex.quote(str(self.folder))} trackio show --project {_PROJECT}"

    def flush(self) -> None:
        """Every call is a transaction of its own."""

    def close(self) -> None:
        """Trackio closes its connections by itself."""


def _short(values: dict[str, float]) -> dict[str, float]:
    """Trackio has a page of its own for the system."""
    return {name.removeprefix("system/"): value for name, value in values.items()}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()
