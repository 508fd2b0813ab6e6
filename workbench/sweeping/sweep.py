"""`Sweep`: a sweep seen through its folder; `sweep` starts one, `sweeps` lists them."""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.prepare.launcher_process import LOADERS
from workbench.launching.prepare.options import LaunchOptions, check_names
from workbench.launching.prepare.targets import as_script_words
from workbench.launching.resume.resumable import startable_record
from workbench.launching.run import Run
from workbench.store.commands import command_in
from workbench.store.detached import start_serving
from workbench.store.processes import SAFE_PYTHON
from workbench.store.runs import Store
from workbench.sweeping.changes import noted, tell_changes
from workbench.sweeping.files import ChangeDoc, SweepFiles, every_sweep, find_sweep, problem
from workbench.sweeping.host import runs_of
from workbench.sweeping.metric import metric_text
from workbench.sweeping.plan import SweepOptions, SweepPlan, labels
from workbench.sweeping.prepared import PreparedSweep, make, prepare_sweep
from workbench.sweeping.progress import TrialRow, best_of, rows, so_far
from workbench.sweeping.study import Trials, optuna

_CONTROLLER = "workbench.sweeping.controller"
_GONE_SECONDS = 10.0  # one that came second hides the first for a moment
_MAX_REQUESTS = 3


class Sweep:
    """A sweep of a store. Any number of handles may exist, in any process."""

    def __init__(self, files: SweepFiles) -> None:
        self._files = files
        self.plan: SweepPlan = files.plan()
        """What is varied, and by what trials are judged."""

    @property
    def name(self) -> str:
        """The name, unique in its store."""
        return self._files.name

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self._files.root

    @property
    def directory(self) -> Path:
        """Its folder."""
        return self._files.directory

    @property
    def state(self) -> str:
        """running, stopping, finished, stopped, failed, or interrupted (no one serves it)."""
        if self._files.is_served:
            return "stopping" if self._files.stop.exists() else "running"
        return (self._files.ended() or {}).get("outcome") or "interrupted"

    @property
    def message(self) -> str:
        """How it ended, or what to do, in a sentence; "" = it runs."""
        state = self.state
        if state == "interrupted":
            return f"Nothing serves it. To go on: {self._typed('resume')}"
        return "" if state == "running" else (self._files.ended() or {}).get("message") or ""

    def _typed(self, verb: str) -> str:
        return command_in(self._files.root, "sweep", verb, self.name)

    @property
    def metric_text(self) -> str:
        """What is compared, and how it is read from a run: lists of runs have the last loss."""
        first = runs_of(Store(self._files.root), self.plan, [0]).get(0)
        return metric_text(self.plan.metric, first)

    def trials(self) -> list[TrialRow]:
        """All trials whose values were drawn."""
        return rows(Store(self._files.root), self.plan, self._trials.every())

    def best(self) -> TrialRow | None:
        """The finished trial with the best metric; None = none has finished."""
        return best_of(self.trials(), self.plan.direction)

    def run(self, trial: int) -> Run:
        """The run of a trial.

        Raises:
            UsageError: there is no such trial, or it has no run yet.
        """
        paths = runs_of(Store(self._files.root), self.plan, [trial]).get(trial)
        if paths is None:
            raise UsageError(f"{self.name} has no run of trial {trial}: {self._typed('show')}")
        return Run(paths)

    def study(self) -> Any:
        """The `optuna.study.Study`, to read: its figures and importances take it."""
        return self._trials.study

    def stop(self, timeout: float | None = None) -> Sweep:
        """Stop its trials with a checkpoint, and wait; `resume` continues with them.

        `timeout`: in seconds; None = as long as their checkpoints take.

        Raises:
            ForeignRunError: it is another user's.
            WorkbenchError: it did not end within `timeout` seconds, or its controller is killed.
        """
        self.request_stop()
        deadline = None if timeout is None else time.monotonic() + timeout
        served_at, requests = time.monotonic(), 1
        while self._files.is_served or self._files.ended() is None:
            now = time.monotonic()
            if deadline is not None and now > deadline:
                raise WorkbenchError(f"{self.name} has not stopped within {timeout:g} s.")
            if self._files.is_served:
                served_at = now
            elif now - served_at > _GONE_SECONDS:
                if requests == _MAX_REQUESTS:
                    raise WorkbenchError(
                        f"{self.name} is not stopped: the process that does it ends each time, see "
                        f"{self._files.log}. To stop its runs one by one: workbench stop RUN"
                    )
                self.request_stop()
                served_at, requests = now, requests + 1
            time.sleep(0.1)
        return self

    def request_stop(self) -> None:
        """Ask for that, and do not wait.

        Raises:
            ForeignRunError: it is another user's.
        """
        self._files.check_own()
        if self._files.ended() is not None and not self._files.is_served:
            return
        self._files.stop.touch(mode=0o600)
        if not self._files.is_served:  # a controller of the same kind ends what is left
            spawn_controller(self._files, self.plan)

    def resume(self) -> Sweep:
        """Go on, after a stop, a reboot, or a kill of everything; nothing runs twice.

        Raises:
            ForeignRunError: it is another user's, or its record is from elsewhere.
            UsageError: it has finished, or is still being stopped.
        """
        self._files.check_own()
        if self.state == "stopping":
            raise UsageError(
                f"{self.name} is still being stopped, and its runs with it. Wait for that: "
                f"{self._typed('stop')}. Then: {self._typed('resume')}"
            )
        startable_record(self._files.template)
        if self.state == "finished":
            raise UsageError(f"{self.name} has finished: {self.message}")
        if not self._files.is_served:
            self._files.stop.unlink(missing_ok=True)
            optuna()
            for note in tell_changes(self._files, self.trials()):
                warnings.warn(note, stacklevel=2)
            spawn_controller(self._files, self.plan)
        return self

    def wait(self, timeout: float | None = None) -> str:
        """Block until it has ended; returns its state. Ctrl-C ends the waiting only.

        Raises:
            WorkbenchError: it did not end within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._files.is_served:
            if deadline is not None and time.monotonic() > deadline:
                raise WorkbenchError(f"{self.name} still runs after {timeout:g} s.")
            time.sleep(0.2)
        return self.state

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        plan, trials = self.plan, self.trials()
        best = best_of(trials, plan.direction)
        return {
            "sweep": self.name,
            "state": self.state,
            "message": self.message,
            "parameters": labels(plan.parameters),
            "metric": plan.metric,
            "metric_text": self.metric_text,
            "direction": plan.direction,
            "stop": plan.stop,
            "first_look": plan.first_look,
            "sampler": plan.sampler,
            "planned": plan.trials,
            "predicted": plan.predicted,
            "best": best and asdict(best),
            "so_far": asdict(so_far(trials, plan.trials)),
            "trials": [asdict(trial) for trial in trials],
            "notes": self.notes,
            "dir": str(self.directory),
        }

    @property
    def changes(self) -> list[ChangeDoc]:
        """What was another each time that it was resumed, see `changes.changed_for`."""
        return self._files.changes()

    @property
    def notes(self) -> list[str]:
        """What to know of its trials: which trained with another script or on other hardware."""
        return [noted(change) for change in self.changes]

    @functools.cached_property
    def _trials(self) -> Trials:
        """Kept, for it reads on from where it was: only what is new of the journal.

        Raises:
            StoreError: the journal is gone or damaged.
        """
        try:
            return Trials(self._files.journal, self.plan)
        except WorkbenchError:
            raise
        except Exception as error:  # Optuna asserts what it reads, and checks little of it
            raise StoreError(f"{self._files.journal} cannot be read: {error!r}") from error

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}, {self.state}, {self.plan.trials} trials)"


def spawn_controller(files: SweepFiles, plan: SweepPlan) -> None:
    """Start the detached controller; a second one leaves at once. Raises StoreError."""
    dropped = {*LOADERS, "CUDA_VISIBLE_DEVICES", "WORKBENCH_STORE"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    if plan.visible_gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = plan.visible_gpus
    command = [*SAFE_PYTHON, "-m", _CONTROLLER, str(files.root), files.name]
    try:
        start_serving(command, files.log, environment, files.controller)
    except OSError as error:
        raise StoreError(f"{files.directory} cannot be written: {error}") from error


def sweep(
    target: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    grid: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
    on_prepared: Callable[[PreparedSweep], bool] | None = None,
    **options: Any,
) -> Sweep:
    """Start a sweep of a script or recipe; it continues without this process.

    Args:
        target: A recipe's name, or the path of a Python script.
        arguments: The script's other arguments.
        grid: Option -> values, all tried in every combination: ``{"lr": [1e-4, 3e-4]}``.
        random: Option -> what is drawn: ``"0:0.1"``, ``"1e-5:1e-3:log"``, ``(2, 8)``, or a list.
        on_prepared: Is given what would start, with hours and dollars; False = start nothing.
        options: trials, metric, direction, stop, first_look, sampler, parallel, seed (see
            `SweepOptions`), and the keywords of `wb.launch`; name is the sweep's.

    Raises:
        UsageError: the script has no such option, or it cannot be started so.
        HostError: Optuna, torch or accelerate is missing here.
        StoreError: the store cannot be written.
    """
    names = set(SweepOptions.__dataclass_fields__)
    own = {name: options.pop(name) for name in list(options) if name in names}
    for name, mapping in (("grid", grid), ("random", random)):
        if not isinstance(mapping or {}, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            example = '{"lr": [1e-4, 3e-4]}' if name == "grid" else '{"lr": "1e-5:1e-3:log"}'
            raise UsageError(f"{name} maps options to values, as {example}, not {mapping!r}.")
    if not isinstance(target, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"A sweep is of a recipe or a script, by its name or path, not of a "
            f"{type(target).__name__}: its trials differ in options of a command line."
        )
    check_names(options, names)
    chosen = SweepOptions(grid=grid or {}, random=random or {}, **own)
    launching = LaunchOptions.from_keywords(options)
    prepared = prepare_sweep(os.fspath(target), as_script_words(arguments), chosen, launching)
    if on_prepared is not None and not on_prepared(prepared):
        raise UsageError("Nothing was started.")
    return start(prepared)


def start(prepared: PreparedSweep) -> Sweep:
    """Make the folder of a sweep and start its controller.

    Raises:
        StoreError: the store cannot be written.
    """
    files = make(prepared)
    made = Sweep(files)
    spawn_controller(files, made.plan)
    return made


def find(name: str, store: str | os.PathLike[str] | None = None) -> Sweep:
    """A sweep by name, unique prefix, or "last".

    Raises:
        UsageError: there is none, or several fit.
    """
    return Sweep(find_sweep(Store(store).root, name))


def sweeps(store: str | os.PathLike[str] | None = None) -> list[Sweep]:
    """The sweeps of a store, newest first; without those of `damaged`."""
    return [Sweep(files) for files in every_sweep(Store(store).root) if not problem(files)]


def damaged(store: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """The sweeps of a store whose plan cannot be read: name -> why."""
    problems = {files.name: problem(files) for files in every_sweep(Store(store).root)}
    return {name: why for name, why in problems.items() if why}
