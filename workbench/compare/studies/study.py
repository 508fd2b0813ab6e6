"""A study's file, its trials one after the other, and going on where it was stopped.

``<store>/studies/<id>.json`` holds what was asked and every finished trial; it is replaced whole
after each of them. The runs themselves are ordinary runs of the store.
"""

from __future__ import annotations

import os
import re
import socket
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from workbench.compare.studies.bench import Bench, Progress
from workbench.compare.studies.step_split import last_loss, steady_steps
from workbench.compare.studies.trial import Trial, TrialResult
from workbench.diagnose.known_errors import OUT_OF_MEMORY
from workbench.errors import HostError, StoreError, UnknownNameError, UsageError, WorkbenchError
from workbench.launching.launch import start
from workbench.launching.run import Run
from workbench.launching.start.start import record_of
from workbench.observe.summary import peak_memory
from workbench.provenance.differences import changes, script_and_machine
from workbench.store import names
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.runs import LAST, Store
from workbench.store.shapes import fit_as

FOLDER = "studies"
MEMORY = "memory"
"""The outcome of a trial that ran out of it, or needed more than the limit."""
_OVER_LIMIT = "a rank exceeded the memory limit"
_POLL_SECONDS = 0.1
_STALLED_SECONDS = 900.0
_SENT = re.compile(r"^gradients: ([\d,]+) bytes sent", re.MULTILINE)


class _StudyDoc(TypedDict, total=False):
    kind: str
    created_at: float
    trials: list[dict[str, Any]]


class StudyStoppedError(WorkbenchError):
    """Someone stopped the study; the trials that were done are kept."""


class Study:
    """The handle of one study; opening it claims its file."""

    def __init__(self, bench: Bench, kind: str, *, of: int | None = None) -> None:
        """Open a study of that kind (scale, batch-size …), with `of` trials where that is known.

        Raises:
            UsageError: there is no such study to continue with.
            StoreError: the store cannot be written.
        """
        self.bench, self.kind, self.of = bench, kind, of
        self.folder = study_folder(bench.store)
        self.created_at = time.time()
        document: dict[str, Any] = {}
        if bench.resume is None:
            self.id = self._claim(kind)
        else:
            self.id = find_study(bench.store, bench.resume, kind)
            document = _document(self.path)
            self.created_at = document.get("created_at", self.created_at)
        results = [TrialResult.read(trial) for trial in document.get("trials", [])]
        self.results = [result for result in results if result is not None]
        self._here, self._measured_here = 0, set[str]()
        self.save()

    @property
    def path(self) -> Path:
        """The study's file."""
        return self.folder / f"{self.id}.json"

    def _claim(self, kind: str) -> str:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in range(1, 100_000):
                handle = self.folder / f"{kind}-{number}.json"
                try:
                    os.close(os.open(handle, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                except FileExistsError:
                    continue
                return handle.stem
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be written: {error.strerror}. Choose another store with "
                "--store DIR."
            ) from error
        raise StoreError(f"{self.folder} holds 100,000 {kind} studies, the maximum.")

    def save(self, **fields: Any) -> None:
        """Replace the file; `found` is what the study has concluded."""
        document = {
            "schema": 1,
            "study": self.id,
            "kind": self.kind,
            "created_at": self.created_at,
            "target": self.bench.target,
            "trials": [result.document() for result in self.results],
            **fields,
        }
        try:
            write_json_atomic(self.path, document)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}.") from error

    def run(self, trial: Trial) -> TrialResult:
        """The trial's result: a kept one, or of a run that is made now.

        Raises:
            StudyStoppedError: it was stopped; what was done before is kept.
            KeyboardInterrupt: the same by Ctrl-C. The present run has ended by then.
        """
        key = self.bench.key(trial)
        self._here += 1
        for stored in self.results:
            if stored.key == key and self._counts(stored) and not self._is_outdated(stored, trial):
                return _with(stored, label=trial.label)  # weak and strong begin with the same run
        result = self._measured(trial, key)
        self._measured_here.add(key)
        self.results = [stored for stored in self.results if stored.key != key] + [result]
        self.save()
        return result

    def _counts(self, stored: TrialResult) -> bool:
        """Whether the trial need not be repeated: it would end the same under today's limit."""
        if stored.outcome in {"failed", "refused"}:
            return False
        limit, peak = self.bench.memory_limit_bytes, stored.peak_memory_bytes
        is_over = limit is not None and peak is not None and peak > limit
        return is_over == (stored.outcome == MEMORY) or stored.problem not in {None, _OVER_LIMIT}

    def _is_outdated(self, stored: TrialResult, trial: Trial) -> bool:
        """Whether it is of an earlier state of the script or of other hardware: this is told."""
        if stored.key in self._measured_here:
            return False
        made_of = stored.made_of
        if not made_of and names.is_id(stored.run or ""):  # of an earlier version
            paths = RunPaths(self.bench.store.root / str(stored.run))
            made_of = script_and_machine(read_run(paths) or RunRecord())
        if not made_of:
            return False
        try:
            now = script_and_machine(record_of(self.bench.request(trial)))
        except (UsageError, HostError):  # it cannot run here at all: what is kept is all there is
            return False
        reasons = changes(made_of, now)
        if reasons:
            warnings.warn(
                f"{trial.label} of {self.id} is measured again: {', '.join(reasons)}.", stacklevel=3
            )
        elif made_of.get("host") not in {None, now.get("host")}:
            warnings.warn(
                f"{trial.label} of {self.id} was measured on {made_of.get('host')}, which has the "
                "same GPUs and CPU: it is kept.",
                stacklevel=3,
            )
        return bool(reasons)

    def _measured(self, trial: Trial, key: str) -> TrialResult:
        self._report(trial, None, 0)
        blank = TrialResult(
            label=trial.label,
            key=key,
            processes=trial.processes,
            value=trial.value,
            run=None,
            outcome="refused",
            problem=None,
        )
        try:
            run = self._start(trial)
        except (UsageError, HostError) as error:  # also: a package is missing
            return _with(blank, problem=str(error))
        try:
            over = self._stay(run, trial)
        except BaseException:
            run.stop()
            raise
        return _read(run, _with(blank, run=run.id), over)

    def _start(self, trial: Trial) -> Run:
        bench, more = self.bench, dict[str, Any]()
        if trial.processes == 1 and not bench.is_recipe:
            more["environment"] = {**_group_of_one(), **bench.launch.environment}
        name = names.slug(f"study-{self.id}-{trial.label}")
        return start(replace(bench.request(trial, name=name, **more), part_of="study"))

    def _stay(self, run: Run, trial: Trial) -> str | None:
        """Until the run ends or has its steps; returns what it was stopped for, if for anything."""
        moved, steps = time.monotonic(), -1
        limit = self.bench.memory_limit_bytes
        while run.status.live:
            view = run.view()
            peak, now = peak_memory(view), int(view["steps"] or 0)
            if now != steps:
                moved, steps = time.monotonic(), now
                self._report(trial, run.id, now)
            if self.bench.stop is not None and self.bench.stop.is_set():
                raise StudyStoppedError(f"{self.id} was stopped; its finished trials are kept.")
            if limit is not None and peak is not None and peak > limit:
                run.stop(now=True)
                return MEMORY
            if trial.steps is not None and steps >= trial.steps:
                run.stop()
                return None
            if time.monotonic() - moved > _STALLED_SECONDS:
                run.stop(now=True)
                return f"no step for {_STALLED_SECONDS:g} s"
            time.sleep(_POLL_SECONDS)
        return None

    def _report(self, trial: Trial, run: str | None, steps: int) -> None:
        if self.bench.on_progress is not None:
            done = self._here - 1
            self.bench.on_progress(
                Progress(label=trial.label, done=done, of=self.of, steps=steps, run=run)
            )


def _group_of_one() -> dict[str, str]:
    """What a script of raw torch.distributed needs to be its own group of one rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _with(result: TrialResult, **changes: Any) -> TrialResult:
    values = {name: getattr(result, name) for name in TrialResult.__slots__}
    return TrialResult(**{**values, **changes})


def _read(run: Run, blank: TrialResult, over: str | None) -> TrialResult:
    """What a run that has ended shows."""
    paths, ranks = RunPaths(run.directory), blank.processes
    summary = run.summary()
    splits = steady_steps(paths, ranks)
    measured = _with(
        blank,
        outcome="good",
        splits=splits,
        tokens_per_step=run.document.get("tokens_per_step") or _tokens(summary, splits),
        peak_memory_bytes=peak_memory(summary),
        loss=last_loss(paths, ranks),
        sent_bytes=_sent_bytes(run),
        made_of=script_and_machine(read_run(paths) or RunRecord()),
    )
    if over == MEMORY:
        return _with(measured, outcome=MEMORY, problem=_OVER_LIMIT)
    if over is not None or run.outcome not in {"succeeded", "stopped"}:
        kinds = {finding.kind for finding in run.findings()}
        outcome = MEMORY if OUT_OF_MEMORY in kinds else "failed"
        return _with(measured, outcome=outcome, problem=over or str(summary["message"]))
    if not splits:
        why = f"only {summary['steps'] or 0} steps were recorded; use more steps"
        return _with(measured, outcome="failed", problem=why)
    return measured


def _tokens(summary: dict[str, Any], splits: Sequence[object]) -> int | None:
    rate, step = summary["tokens_per_second"], summary["step_seconds_median"]
    return round(rate * step) if splits and rate and step else None


def _sent_bytes(run: Run) -> int | None:
    """What the recipe says its gradients cost, see recipes/gradient_hooks.py."""
    match = _SENT.search(run.logs(0, tail=40))
    return int(match[1].replace(",", "")) if match else None


def study_folder(store: Store) -> Path:
    """Where a store keeps its studies.

    Raises:
        UsageError: a run of that name lies there.
    """
    folder = store.root / FOLDER
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} is a run. Rename its folder, or choose another --store.")
    return folder


def studies(store: Store, kind: str | None = None) -> list[dict[str, Any]]:
    """Documents of all studies, or those of one kind, newest first."""
    read = map(_document, sorted(study_folder(store).glob("*.json")))
    chosen = [
        document
        for document in read
        if names.is_id(document["study"])
        and "kind" in document
        and kind in {None, document["kind"]}
    ]
    return sorted(chosen, key=lambda document: -document.get("created_at", 0.0))


def _document(path: Path) -> dict[str, Any]:
    """What a study's file says; what cannot be there is left out. Its name is the study's id."""
    return {**fit_as(_StudyDoc, read_json(path) or {}), "study": path.stem}


def find_study(store: Store, study: str, kind: str) -> str:
    """Id of the study of that kind, or of the newest one for "last".

    Raises:
        UsageError: there is none.
    """
    study_ids = [document["study"] for document in studies(store, kind)]
    if study == LAST and study_ids:
        return study_ids[0]
    if study in study_ids:
        return study
    if not study_ids:
        raise UsageError(f"{store.root} does not hold a {kind} study to continue.")
    raise UnknownNameError.near(f"{kind} study", study, study_ids)
