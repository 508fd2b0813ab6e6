"""Optuna's part: what is drawn next, who falls behind, what is kept; the one file that knows it.

The journal is Optuna's own file storage. The sweep's controller is its only writer and holds a lock
of its own, so the journal's lock file, which a killed process would leave behind, is not needed.
"""
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from workbench.errors import HostError, pip_install
from workbench.sweeping.parameters import Parameter, Value, combinations, texts_of
from workbench.sweeping.plan import ETA, SweepPlan

_STATES = {"RUNNING": "open", "COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
_WHY = "why"
_SEEDS = 10_007  # trials of one sweep at most, and their seeds
_MOST_SEED = 1 << 32  # numpy takes no larger one


def optuna() -> Any:
    """The library, quiet. Raises HostError: it is not installed."""
    try:
        import optuna as library  # noqa: PLC0415  (an extra; a second to import)
    except ImportError as error:
        raise HostError(
            f"Sweeps need Optuna, which cannot be imported here ({error}). Install it: "
            f"{pip_install('training-workbench[sweep]')}"
        ) from error
    library.logging.set_verbosity(library.logging.ERROR)
    warnings.filterwarnings("ignore", category=library.exceptions.ExperimentalWarning)
    return library


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial as the journal has it."""

    number: int
    """From 0."""
    state: str
    """open (values are drawn, no result yet), finished, pruned or failed."""
    values: Mapping[str, str]
    """Parameter -> value, as the script's option takes it."""
    value: float | None = None
    """The metric at its end; of a pruned one at its last look."""
    looks: Mapping[int, float] = field(default_factory=dict[int, float])
    """Step -> metric at that look."""
    why: str = ""
    """Why it was pruned, or failed."""


class Trials:
    """The trials of a sweep. One that `writes` is the only one that does."""

    def __init__(self, journal: Path, plan: SweepPlan, *, writes: bool = False) -> None:
        self._plan = plan
        self._optuna = optuna()
        if writes:
            journal.touch(mode=0o600)  # Optuna would make it with the shell's umask
        journal.stat()  # Optuna would make it, and a reader writes nothing
        files = self._optuna.storages.journal
        backend = files.JournalFileBackend(str(journal), lock_obj=_WholeLines(journal))
        storage = self._optuna.storages.JournalStorage(backend)
        if writes:
            self.study = self._optuna.create_study(
                storage=storage,
                study_name=plan.id,
                direction="minimize" if plan.direction == "lower" else "maximize",
                pruner=self._pruner(),
                load_if_exists=True,
            )
        else:
            self.study = self._optuna.load_study(storage=storage, study_name=plan.id)
        for trial in self._frozen():
            numbers = [*(trial.values or ()), *trial.intermediate_values.values()]
            if not all(isinstance(number, int | float) for number in numbers):
                raise ValueError(f"trial {trial.number} has a result other than a number")

    def every(self) -> list[Trial]:
        """All trials whose values were drawn, in their order."""
        trials = [trial for trial in self._frozen() if trial.state.name in _STATES]
        return [self._trial(trial) for trial in trials if self._is_complete(trial)]

    def get(self, number: int) -> Trial:
        """A trial by its number."""
        return self._trial(self._frozen()[number])

    def ask(self) -> Trial | None:
        """The next trial, with its values; None when there are as many as planned.

        What is asked for again after a kill continues with the same trial.
        """
        frozen, plan = self._frozen(), self._plan
        half = [
            trial
            for trial in frozen
            if trial.state.name == "RUNNING" and not self._is_complete(trial)
        ]
        started = [trial for trial in frozen if trial.state.name != "WAITING"]
        if not half and len(started) >= plan.trials:
            return None
        number = half[0].number if half else len(started)
        self.study.sampler = self._sampler(_SEEDS * plan.seed + number)
        if half:
            trial = self._optuna.trial.Trial(self.study, half[0]._trial_id)  # noqa: SLF001  (no public way)
        else:
            self._enqueue(number)
            trial = self.study.ask()
        for name, distribution in self._distributions().items():
            trial._suggest(name, distribution)  # noqa: SLF001  (as `ask` does; kept values stay)
        return self.get(trial.number)

    def look(self, number: int, step: int, value: float) -> bool:
        """Keep the metric of a trial at a look; whether it falls behind."""
        frozen = self._frozen()[number]
        trial = self._optuna.trial.Trial(self.study, frozen._trial_id)  # noqa: SLF001
        trial.report(value, step)
        return bool(trial.should_prune())

    def finish(self, number: int, value: float) -> None:
        """Keep the result of a trial."""
        self.study.tell(number, value)

    def end(self, number: int, state: str, why: str) -> None:
        """Keep that a trial was pruned, or failed, and why."""
        frozen = self._frozen()[number]
        self.study._storage.set_trial_user_attr(frozen._trial_id, _WHY, why)  # noqa: SLF001
        name = next(name for name, ours in _STATES.items() if ours == state)
        self.study.tell(number, state=self._optuna.trial.TrialState[name])

    def _frozen(self) -> list[Any]:
        return self.study.get_trials(deepcopy=False)

    def _trial(self, frozen: Any) -> Trial:
        return Trial(
            number=frozen.number,
            state=_STATES[frozen.state.name],
            values=texts_of(self._plan.parameters, frozen.params),
            value=frozen.value,
            looks=dict(frozen.intermediate_values),
            why=str(frozen.user_attrs.get(_WHY, "")),
        )

    def _is_complete(self, frozen: Any) -> bool:
        return all(parameter.name in frozen.params for parameter in self._plan.parameters)

    def _enqueue(self, number: int) -> None:
        """The next combination of the grid, where one is not yet in the journal.

        One at a time: the trial of a number has the combination of that number.
        """
        grid = shuffled_grid(self._plan)
        if grid and not any(trial.state.name == "WAITING" for trial in self._frozen()):
            self.study.enqueue_trial(grid[number % len(grid)])

    def _distributions(self) -> dict[str, Any]:
        return {
            parameter.name: _distribution(self._optuna, parameter)
            for parameter in self._plan.parameters
        }

    def _sampler(self, seed: int) -> Any:
        """Made again for each trial: after a restart it does not draw what it has drawn."""
        seed %= _MOST_SEED
        if self._plan.sampler == "random":
            return self._optuna.samplers.RandomSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed)

    def _pruner(self) -> Any:
        pruners, first = self._optuna.pruners, self._plan.first_look
        if first is None:
            return pruners.NopPruner()
        if self._plan.stop == "hyperband" and self._plan.steps_total is not None:
            return pruners.HyperbandPruner(
                min_resource=first, max_resource=self._plan.steps_total, reduction_factor=ETA
            )
        return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=ETA)


def shuffled_grid(plan: SweepPlan) -> list[dict[str, Value]]:
    """The combinations in the order in which they are tried: as given, or some of them."""
    grid = combinations(plan.parameters)
    if plan.trials < len(grid):
        random.Random(plan.seed).shuffle(grid)  # noqa: S311
    return grid


def _distribution(library: Any, parameter: Parameter) -> Any:
    if parameter.values:
        return library.distributions.CategoricalDistribution(
            [parameter.value_of(text) for text in parameter.values]
        )
    if parameter.integer:
        return library.distributions.IntDistribution(
            int(parameter.low), int(parameter.high), log=parameter.log
        )
    return library.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log)


@dataclass(frozen=True)
class _WholeLines:
    """In place of the journal's own lock: the controller's is held.

    Before each write it drops the end of a line that a full disk or a kill cut off: one joined to
    it, and all that follow, could not be read.
    """

    journal: Path

    def acquire(self) -> bool:
        """It is held already."""
        with self.journal.open("rb+") as file:
            if file.seek(0, os.SEEK_END) and not _ends_a_line(file):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """The controller keeps it."""


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
