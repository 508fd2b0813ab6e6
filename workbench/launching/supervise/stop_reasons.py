"""Why a run is to be stopped by what its launch asked for: a rule on a series, a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from workbench.observe.events import StepRow
from workbench.observe.logged import LoggedRow
from workbench.recover.limits import RunSpending, reached
from workbench.recover.policy import Recovery
from workbench.recover.stop_rule import OF_STEPS, StopWatch, stop_conditions


@final
class StopReasons:
    """Follows what the ranks report; `reason` tells once something was reached."""

    def __init__(self, recovery: Recovery, *, since: float) -> None:
        """`since`: Unix seconds from which on values count for the rule."""
        self._recovery = recovery
        rules = stop_conditions(recovery.stop_when)
        self._watch = StopWatch(rules, since=since) if rules else None

    @property
    def follows_logged(self) -> bool:
        """Whether `logged` is of use."""
        return self._watch is not None

    def reason(self, spent: RunSpending) -> str | None:
        """What the run is to be stopped for, as a sentence; None = nothing yet."""
        return reached(self._recovery.limits, spent) or (self._watch and self._watch.reason)

    def rows(self, rows: Sequence[StepRow]) -> None:
        """Take in finished steps."""
        for row in rows if self._watch is not None else ():
            self._values(
                {"loss": row.loss, "grad_norm": row.grad_norm, "lr": row.lr}, row.step, row.time
            )

    def logged(self, row: LoggedRow) -> None:
        """Take in what the script logged by name."""
        values = {name: value for name, value in row.values.items() if name not in OF_STEPS}
        self._values(values, row.step, row.time)

    def _values(self, values: Mapping[str, float | None], step: int, at: float) -> None:
        if self._watch is not None:
            for name, value in values.items():
                self._watch.take(name, value, step, at)
