"""MLflow: a local SQLite store, which knows a metric by run, name, step, time and value."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
from collections.abc import Sequence
from typing import Any

from workbench.observe.trackers.points import Note, Point, clean_name
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.sink import Sink

_EXPERIMENT = "workbench"
_TAG = "workbench.marker"
_MAX_BATCH = 1000  # MLflow's own limits of metrics and of parameters per call
_MAX_PARAMETERS = 100
_STATUS = {"succeeded": "FINISHED", "stopped": "KILLED", "preempted": "KILLED"}


class MLflow(Sink):
    """One MLflow run per run, in the experiment "workbench"."""

    def open(self, progress: Progress) -> bool:  # noqa: ARG002
        """Open the store and find the run by its marker."""
        os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{self.folder.absolute() / 'mlflow.db'}"
        tracking = importlib.import_module("mlflow.tracking")  # two seconds
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = tracking.MlflowClient(tracking_uri=uri, registry_uri=uri)
        experiment = self._client.get_experiment_by_name(_EXPERIMENT)
        artifacts = (self.folder.absolute() / "artifacts").as_uri()
        self._experiment: str = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment(_EXPERIMENT, artifact_location=artifacts)
        )
        runs = self._runs()
        if runs:
            self._run = runs[0]
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._create()
        return bool(runs)

    def _runs(self) -> list[str]:
        runs = self._client.search_runs(
            [self._experiment], filter_string=f"tags.`{_TAG}` = '{self.about.marker}'"
        )
        return [run.info.run_id for run in runs]

    def _create(self) -> None:
        tags = {_TAG: self.about.marker, "workbench.run": self.about.run}
        started = int(self.about.created_at * 1000)
        run = self._client.create_run(
            self._experiment, start_time=started, tags=tags, run_name=self.about.name
        )
        self._run: str = run.info.run_id
        items = self.about.parameters.items()
        parameters = [self._entities.Param(name, value) for name, value in items]
        for begin in range(0, len(parameters), _MAX_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[begin : begin + _MAX_PARAMETERS])

    def clear(self) -> None:
        """Delete the run (MLflow keeps it in its trash) and begin another."""
        for run in self._runs():
            self._client.delete_run(run)
        self._create()

    def points(self, points: Sequence[Point]) -> None:
        """In batches; what the store has already is passed over."""
        metrics = [
            self._entities.Metric(name, float(value), int(point.time * 1000), point.at)
            for point in points
            for name, value in point.values.items()
        ]
        for begin in range(0, len(metrics), _MAX_BATCH):
            self._client.log_batch(self._run, metrics=metrics[begin : begin + _MAX_BATCH])

    def notes(self, notes: Sequence[Note], first: int) -> None:
        """Tags, which the run's page shows."""
        for number, note in enumerate(notes, start=first):
            text = f"{note.level}: {note.title}. {note.text}"
            self._client.set_tag(self._run, clean_name(f"note-{number}"), text[:5000])

    def end(self, outcome: str, ended_at: float) -> None:
        """Status and outcome."""
        self._client.set_tag(self._run, "workbench.outcome", outcome)
        status = _STATUS.get(outcome, "FAILED")
        self._client.set_terminated(self._run, status=status, end_time=int(ended_at * 1000))

    def look(self) -> str:
        """The command that shows it."""
        store = shlex.quote(f"sqlite:///{self.folder.absolute() / 'mlflow.db'}")
        return f"mlflow server --host 127.0.0.1 --backend-store-uri {store}  (package mlflow)"

    def flush(self) -> None:
        """Every call is a transaction of its own."""

    def close(self) -> None:
        """The client keeps its connections; the process ends soon."""
