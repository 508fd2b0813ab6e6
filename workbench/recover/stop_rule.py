"""`StopRule`: when a run is stopped for what a logged series shows, written as a short sentence."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.errors import UsageError
from workbench.observe.series_names import better

OF_STEPS = frozenset({"loss", "grad_norm", "lr"})
"""Names that mean the steps' own values, not what the script logs under them."""
_FORMS = (
    "'eval_loss no better for 5', 'accuracy not higher for 3', 'loss > 10 for 20' or "
    "'eval/loss < 0.5'; ' or ' joins several"
)
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_STALLS = re.compile(
    r"(?P<name>\S+)\s+(?:no\s+better|not?\s+(?P<way>lower|higher))\s+for\s+(?P<count>\d+)"
    r"(?:\s+by\s+(?P<least>[0-9.eE+-]+))?"
)
_BOUND = re.compile(
    r"(?P<name>\S+?)\s*(?P<sign>[<>]=?)\s*(?P<bound>[0-9.eE+-]+)(?:\s+for\s+(?P<count>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCondition:
    """One condition on the values of one series, in the order in which they were logged."""

    text: str
    """As it was written."""
    name: str
    """The series, as the script logs it; ``loss``, ``grad_norm`` and ``lr`` are those of steps."""
    count: int
    """Values in a row that must show it."""
    sign: str
    """``>``, ``>=``, ``<`` or ``<=`` for a bound; ``lower`` or ``higher`` for the way in which it
    must improve."""
    bound: float = 0.0
    """What the values are compared with; of an improvement how large it must be."""


def stop_conditions(text: str) -> tuple[StopCondition, ...]:
    """The conditions of which one is enough.

    Raises:
        UsageError: one of them cannot be read, or nothing tells which way its series improves.

    >>> [(one.name, one.sign, one.bound, one.count) for one in stop_conditions("loss > 9 for 3")]
    [('loss', '>', 9.0, 3)]
    >>> [(one.name, one.sign, one.count) for one in stop_conditions("eval_loss no better for 5")]
    [('eval_loss', 'lower', 5)]
    """
    parts = re.split(r"\s+or\s+", text.strip()) if text.strip() else ()
    return tuple(_condition(part.strip()) for part in parts)


def _condition(text: str) -> StopCondition:
    match = _STALLS.fullmatch(text) or _BOUND.fullmatch(text)
    if match is None:
        raise UsageError(f"--stop-when {text!r} cannot be read. Write it as {_FORMS}.")
    groups = match.groupdict()
    number = groups.get("bound") or groups.get("least") or "0"
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    count = int(groups["count"] or 1)
    if not math.isfinite(bound) or not 1 <= count <= 1_000_000:
        raise UsageError(f"--stop-when {text!r}: give numbers, and a count of at least 1.")
    sign = groups.get("sign") or groups.get("way") or better(groups["name"])
    if sign is None:
        raise UsageError(
            f"--stop-when {text!r}: the name does not tell whether {groups['name']} should fall or "
            f"rise. Write '{groups['name']} not lower for {count}' or '… not higher for {count}'."
        )
    return StopCondition(text=text, name=groups["name"], count=count, sign=sign, bound=bound)


@dataclass(slots=True)
class _Progress:
    """How far one condition is towards being true."""

    streak: int = 0
    best: float | None = None
    best_step: int = 0


@dataclass(slots=True)
class StopWatch:
    """Follows the conditions of one run; values before `since` count only as the best so far."""

    conditions: tuple[StopCondition, ...]
    since: float = 0.0
    reason: str | None = None
    """Which condition is true, as a sentence; None = none is."""
    _progress: dict[StopCondition, _Progress] = field(
        default_factory=dict[StopCondition, _Progress], init=False
    )

    def take(self, name: str, value: float | None, step: int, time: float) -> None:
        """Account for one value of the series `name`, logged at `step` and Unix `time`."""
        for condition in self.conditions:
            if condition.name == name and value is not None and self.reason is None:
                self._take(condition, value, step, counts=time >= self.since)

    def _take(self, condition: StopCondition, value: float, step: int, *, counts: bool) -> None:
        progress = self._progress.setdefault(condition, _Progress())
        if condition.sign in _COMPARED:
            holds = _COMPARED[condition.sign](value, condition.bound)
            progress.streak = progress.streak + 1 if holds and counts else 0
        elif _improves(value, progress.best, condition):
            progress.best, progress.best_step, progress.streak = value, step, 0
        elif counts:
            progress.streak += 1
        if progress.streak >= condition.count:
            self.reason = _sentence(condition, progress, value, step)


def _improves(value: float, best: float | None, condition: StopCondition) -> bool:
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    gain = best - value if condition.sign == "lower" else value - best
    return gain > condition.bound


def _sentence(condition: StopCondition, progress: _Progress, value: float, step: int) -> str:
    if condition.sign in _COMPARED:
        reason = f"{condition.name} is {value:.4g} at step {step}"
        if condition.count > 1:
            reason = (
                f"{condition.name} was {condition.sign} {condition.bound:g} "
                f"{condition.count} times in a row"
            )
    elif progress.best is None:
        reason = f"{condition.name} was not finite in {condition.count} values"
    else:
        reason = (
            f"{condition.name} has not become better than {progress.best:.4g} (step "
            f"{progress.best_step}) in {condition.count} values"
        )
    return f"Stopped at step {step} because {reason} (--stop-when)."
