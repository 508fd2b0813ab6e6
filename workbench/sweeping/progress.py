"""Where the trials of a sweep stand: a row for each, and what they have taken together so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.observe.curves import Curve
from workbench.observe.rows import kept_row, row
from workbench.store.layout import RunPaths
from workbench.store.runs import Store
from workbench.sweeping.host import runs_of
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.study import Trial

ENDED = ("finished", "pruned", "failed")
_AT_WORK = ("starting", "running", "stopping", "unsupervised")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial with its run, as people see it."""

    number: int
    """From 0."""
    state: str
    """finished, pruned, failed, or the state of its run while it is open."""
    values: Mapping[str, str]
    """Parameter -> value."""
    value: float | None
    """The metric at its end, or at its latest look."""
    run: str | None
    """Id of its run; None = none yet."""
    why: str
    """Why it was pruned, or failed."""
    pruned_at: int | None
    """Step of the look that pruned it."""
    steps: int | None
    """Optimizer steps so far."""
    hours: float | None
    """Of its run so far."""
    usd: float | None
    """Of its run so far; None = no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTotals:
    """What the trials have taken."""

    finished: int
    """Trials at their end."""
    pruned: int
    """Trials that were stopped early."""
    failed: int
    """Trials without a result."""
    running: int
    """Trials that have begun and have not ended."""
    waiting: int
    """Trials that have not begun."""
    hours: float
    """Sum of the times of all runs: beside the predicted `hours`."""
    usd: float | None
    """Sum of their bills; None = no price is known."""


def rows(store: Store, plan: SweepPlan, trials: Sequence[Trial]) -> list[TrialRow]:
    """A row for each trial, in their order."""
    runs = runs_of(store, plan, [trial.number for trial in trials])
    return [_row(trial, runs.get(trial.number)) for trial in trials]


def _row(trial: Trial, paths: RunPaths | None) -> TrialRow:
    about = {} if paths is None else kept_row(paths) or row(paths, Curve())
    latest = max(trial.looks, default=None)
    looked = None if latest is None else trial.looks[latest]
    return TrialRow(
        number=trial.number,
        state=about.get("state", trial.state) if trial.state == "open" else trial.state,
        values=trial.values,
        value=looked if trial.value is None else trial.value,
        run=paths and paths.directory.name,
        why=trial.why,
        pruned_at=latest if trial.state == "pruned" else None,
        steps=about.get("steps"),
        hours=about.get("hours"),
        usd=about.get("usd"),
    )


def best_of(trials: Sequence[TrialRow], direction: str) -> TrialRow | None:
    """The finished trial with the best metric; None = none has finished."""
    sign = 1 if direction == "lower" else -1
    finished = [trial for trial in trials if trial.state == "finished"]
    return min(finished, key=lambda row: sign * (row.value or 0.0), default=None)


def so_far(trials: Sequence[TrialRow], planned: int) -> TrialTotals:
    """What they have taken together."""
    counts = Counter(trial.state for trial in trials)
    ended = sum(counts[state] for state in ENDED)
    running = sum(counts[state] for state in _AT_WORK)
    bills = [trial.usd for trial in trials if trial.usd is not None]
    return TrialTotals(
        finished=counts["finished"],
        pruned=counts["pruned"],
        failed=counts["failed"],
        running=running,
        waiting=planned - ended - running,
        hours=sum(trial.hours or 0.0 for trial in trials),
        usd=sum(bills) if bills else None,
    )
