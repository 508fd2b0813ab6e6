"""Batch size, accumulation and loader workers: one number is varied, the rate is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench import recipes
from workbench.compare.studies.study import MEMORY, Bench, Study
from workbench.compare.studies.trial import Trial, TrialResult
from workbench.describe.detection import detect_host
from workbench.errors import UsageError
from workbench.units import format_bytes

VALUE = "{value}"
ENOUGH = 0.95
"""Share of the best rate that the smallest good value has to reach."""
_CLOSE = 1.25  # a batch found between a good and a bad one this near each other is near enough
_HOST_SHARE = 0.8  # of a CPU host's memory, for all ranks together
_FLAGS = {"batch-size": "--micro-batch", "accumulate": "--accumulate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a study of one number found."""

    study: str
    """Id: the file in ``<store>/studies``."""
    kind: str
    """batch-size, accumulate or workers."""
    results: tuple[TrialResult, ...]
    """Every trial in order, those that failed too."""
    rates: tuple[float | None, ...]
    """Micro-batches x ranks x value (workers: steps) per second, of each trial."""
    best: int | None
    """The smallest value within 5 % of the best rate; None = no trial was good."""
    why: str
    """What decided, in one sentence."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        rows = [
            {**one.document(), "splits": None, "rate": rate}
            for one, rate in zip(self.results, self.rates, strict=True)
        ]
        return {
            "study": self.study,
            "kind": self.kind,
            "best": self.best,
            "why": self.why,
            "trials": rows,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """What every trial of such a study has in common."""

    kind: str
    """batch-size, accumulate or workers."""
    arguments: tuple[str, ...] = ()
    """Of the script or recipe; {value} in a script's stands for the number."""
    processes: int = 1
    """Ranks."""
    strategy: str = "ddp"
    """Where there are several."""
    steps: int = 15
    """Steps of each trial."""

    def trial(self, target: str, value: int) -> Trial:
        """The trial of that value.

        Raises:
            UsageError: nothing says how the script takes it.
        """
        known = target in recipes.recipes()
        return Trial(
            label=f"{self.kind} {value}",
            processes=self.processes,
            arguments=self._recipe(target, value) if known else self._script(value),
            strategy=self.strategy,
            steps=None if known else self.steps,
            value=value,
        )

    def _recipe(self, target: str, value: int) -> tuple[str, ...]:
        flag = _FLAGS.get(self.kind)
        shape = recipes.shape(self.arguments, recipe=target)
        if flag is None:
            raise UsageError(
                f"The recipe {target} generates its batches itself, without loader workers. Give a "
                "script with {value} in its arguments, for example -- --workers {value}."
            )
        if shape["accumulate" if self.kind == "accumulate" else "micro_batch"] is None:
            raise UsageError(f"The recipe {target} does not have {flag}. Use gpt or vision.")
        return (*self.arguments, "--steps", str(self.steps), flag, str(value))

    def _script(self, value: int) -> tuple[str, ...]:
        if not any(VALUE in one for one in self.arguments):
            raise UsageError(
                f"The script's option for {self.kind} is unknown: put {VALUE} in its arguments, "
                f"for example -- --batch {VALUE}."
            )
        return tuple(one.replace(VALUE, str(value)) for one in self.arguments)


def batch_size(
    bench: Bench, varied: Varied, *, start: int = 1, most: int = 65_536, gain: float = 0.05
) -> Tuning:
    """Double the micro-batch until memory ends or doubling gains little; then close in on it.

    One doubling that gains nothing may be a moment in which the host was busy: two in a row end it.
    Running out of memory, or over `bench.memory_limit_bytes` (on CPU 80 % of the host's memory,
    shared out), is a result.
    """
    varied.trial(bench.target, start)
    if bench.memory_limit_bytes is None:
        bench = replace(bench, memory_limit_bytes=_host_limit(bench, varied.processes))
    study = Study(bench, "batch-size")
    results: list[TrialResult] = []

    def rate_of(value: int) -> float | None:
        results.append(study.run(varied.trial(bench.target, value)))
        return _per_value(results[-1])

    good, bad = 0, None
    value, rates = start, list[float]()
    while value <= most:
        rate = rate_of(value)
        if rate is None:
            bad = value
            break
        good = value
        rates.append(rate)
        if _exhausted(rates, gain):
            break
        value *= 2
    if bad is not None and results[-1].outcome == MEMORY:
        _close_in(good, bad, rate_of)
    limit = bench.memory_limit_bytes
    why = f"two consecutive doublings gained less than {gain:.0%}"
    if value > most:
        why = f"{most} is the largest allowed"
    if any(one.outcome == MEMORY for one in results):
        why = "out of memory"
        why += f" (limit {format_bytes(limit)} per rank)" if limit else ""
    elif bad is not None:
        why = f"{bad} did not run: {results[-1].problem}"
    return _concluded(study, results, _per_value, why)


def _exhausted(rates: Sequence[float], gain: float) -> bool:
    """Whether each of the last two doublings gained too little over the best before it.

    >>> _exhausted([10, 19, 12, 40], 0.05), _exhausted([10, 19, 12, 19.5], 0.05)
    (False, True)
    """
    last = range(len(rates) - 2, len(rates))
    return last[0] > 0 and all(rates[one] < (1 + gain) * max(rates[:one]) for one in last)


def _close_in(good: int, bad: int, rate_of: Callable[[int], float | None]) -> None:
    while good and bad > _CLOSE * good and bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if rate_of(middle) is not None else (good, middle)


def _host_limit(bench: Bench, processes: int) -> int | None:
    host = detect_host()
    if (host.gpus and not bench.cpu) or host.memory_bytes is None:
        return None  # the card itself says when it is full
    return int(_HOST_SHARE * host.memory_bytes / processes)


def sweep(bench: Bench, varied: Varied, values: Sequence[int]) -> Tuning:
    """Measure the given values of accumulation or loader workers."""
    todo = [varied.trial(bench.target, value) for value in values]
    study = Study(bench, varied.kind, of=len(todo))
    results = [study.run(trial) for trial in todo]
    per = _per_value if varied.kind == "accumulate" else _per_step
    return _concluded(study, results, per, f"{len(todo)} values were measured")


def _per_value(result: TrialResult) -> float | None:
    step = result.step_seconds
    return float(result.value or 0) * result.processes / step if result.good and step else None


def _per_step(result: TrialResult) -> float | None:
    step = result.step_seconds
    return 1 / step if result.good and step else None


def _concluded(
    study: Study,
    results: Sequence[TrialResult],
    rate: Callable[[TrialResult], float | None],
    why: str,
) -> Tuning:
    ordered = sorted(results, key=lambda one: float(one.value or 0))
    rates = [rate(one) for one in ordered]
    top = max((one for one in rates if one is not None), default=None)
    near = [
        int(float(one.value or 0))
        for one, its in zip(ordered, rates, strict=True)
        if its is not None and top is not None and its >= ENOUGH * top
    ]
    conclusion = Tuning(
        study=study.id,
        kind=study.kind,
        results=tuple(ordered),
        rates=tuple(rates),
        best=near[0] if near else None,
        why=f"{why}; chosen: the smallest value within {1 - ENOUGH:.0%} of the best rate",
    )
    study.save(found=conclusion.document())
    return conclusion
