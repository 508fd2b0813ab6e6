"""Batch size, accumulation and loader workers: one number is varied, the rate is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from workbench import recipes
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.study import MEMORY, Study
from workbench.compare.studies.trial import Trial, TrialResult
from workbench.describe.detection import detect_host
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.units import format_bytes

VALUE = "{value}"
ENOUGH = 0.95
"""Share of the best rate that the smallest good value has to reach."""
_CLOSE = 1.25  # a batch found between a good and a bad one this near each other is near enough
_HOST_SHARE = 0.8  # of a CPU host's memory, for all ranks together
RANKS = Option(help="Number of ranks of every trial.", flag="nproc", least=1)
STEPS = Option(help="Optimizer steps of each trial.", least=1)


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
            {**result.document(), "splits": None, "rate": rate}
            for result, rate in zip(self.results, self.rates, strict=True)
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
    """Abstract: what every trial of such a study has in common, beside the `Bench`."""

    KIND: ClassVar[str]
    """Of the study."""
    FLAG: ClassVar[str] = ""
    """A recipe's option for the number; "" = recipes have none."""
    processes: Annotated[int, RANKS] = 1
    """Ranks."""
    steps: Annotated[int, STEPS] = 15
    """Steps of each trial."""

    def __post_init__(self) -> None:
        check_declared(self)

    def trial(self, bench: Bench, value: int) -> Trial:
        """The trial of that value.

        Raises:
            UsageError: nothing says how the script takes it.
        """
        arguments = self._recipe if bench.is_recipe else self._script
        return Trial(
            label=f"{self.KIND} {value}",
            processes=self.processes,
            arguments=arguments(bench, value),
            steps=None if bench.is_recipe else self.steps,
            value=value,
        )

    def _recipe(self, bench: Bench, value: int) -> tuple[str, ...]:
        target, flag = bench.target, self.FLAG
        if not flag:
            raise UsageError(
                f"The recipe {target} generates its batches itself, without loader workers. Give a "
                "script with {value} in its arguments, for example -- --workers {value}."
            )
        shape = recipes.shape(bench.arguments, recipe=target)
        if shape[flag.removeprefix("--").replace("-", "_")] is None:
            raise UsageError(f"The recipe {target} does not have {flag}. Use gpt or vision.")
        return (*bench.arguments, "--steps", str(self.steps), flag, str(value))

    def _script(self, bench: Bench, value: int) -> tuple[str, ...]:
        if not any(VALUE in argument for argument in bench.arguments):
            raise UsageError(
                f"The script's option for {self.KIND} is unknown: put {VALUE} in its arguments, "
                f"for example -- --batch {VALUE}."
            )
        return tuple(argument.replace(VALUE, str(value)) for argument in bench.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize(Varied):
    """The search for the smallest micro-batch that is as fast as any."""

    KIND = "batch-size"
    FLAG = "--micro-batch"
    start: Annotated[int, Option(help="First micro-batch; doubled after each trial.", least=1)] = 1
    """First micro-batch."""
    most: Annotated[int, Option(help="Largest micro-batch to try.", least=1)] = 65_536
    """Largest one."""
    memory_limit: Annotated[
        float | None,
        Option(
            help="Memory limit of a rank [default on CPU: 80 % of the host / ranks].",
            metavar="GIB",
            above=0,
        ),
    ] = None
    """GiB per rank; None = the bench's, on CPU a part of the host's memory."""
    gain: float = 0.05
    """A doubling has to gain so much."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.most < self.start:
            raise UsageError(f"most ({self.most}) must be at least start ({self.start}).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulate(Varied):
    """Micro-batches per optimizer step at given values."""

    KIND = "accumulate"
    FLAG = "--accumulate"
    values: Annotated[
        tuple[int, ...],
        Option(help="Micro-batches per step.", least=1, metavar="N,N", split="commas"),
    ] = (1, 2, 4, 8)
    """Micro-batches per step."""
    processes: Annotated[int, RANKS] = 2
    """Ranks."""
    steps: Annotated[int, STEPS] = 12
    """Steps of each trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(Varied):
    """Loader workers of each rank at given values."""

    KIND = "workers"
    values: Annotated[
        tuple[int, ...],
        Option(help="Loader workers of each rank.", least=0, metavar="N,N", split="commas"),
    ] = (0, 1, 2, 4)
    """Loader workers of each rank."""
    steps: Annotated[int, STEPS] = 20
    """Steps of each trial."""


def batch_size(bench: Bench, search: BatchSize | None = None) -> Tuning:
    """Double the micro-batch until memory ends or doubling gains little; then close in on it.

    One doubling that gains nothing may be a moment in which the host was busy: two in a row end it.
    Running out of memory, or over the limit (on CPU 80 % of the host's memory, shared out), is a
    result.
    """
    search = search or BatchSize()
    search.trial(bench, search.start)
    bench = replace(bench, memory_limit_bytes=_limit(bench, search))
    study = Study(bench, search.KIND)
    results: list[TrialResult] = []

    def rate_of(value: int) -> float | None:
        results.append(study.run(search.trial(bench, value)))
        return _per_value(results[-1])

    good, bad = 0, None
    value, rates = search.start, list[float]()
    while value <= search.most:
        rate = rate_of(value)
        if rate is None:
            bad = value
            break
        good = value
        rates.append(rate)
        if _exhausted(rates, search.gain):
            break
        value *= 2
    if bad is not None and results[-1].outcome == MEMORY:
        _close_in(good, bad, rate_of)
    why = f"two consecutive doublings gained less than {search.gain:.0%}"
    if value > search.most:
        why = f"{search.most} is the largest allowed"
    if any(result.outcome == MEMORY for result in results):
        limit = bench.memory_limit_bytes
        why = "out of memory" + (f" (limit {format_bytes(limit)} per rank)" if limit else "")
    elif bad is not None:
        why = f"{bad} did not run: {results[-1].problem}"
    return _concluded(study, results, _per_value, why)


def _exhausted(rates: Sequence[float], gain: float) -> bool:
    """Whether each of the last two doublings gained too little over the best before it.

    >>> _exhausted([10, 19, 12, 40], 0.05), _exhausted([10, 19, 12, 19.5], 0.05)
    (False, True)
    """
    last = range(len(rates) - 2, len(rates))
    return last[0] > 0 and all(rates[index] < (1 + gain) * max(rates[:index]) for index in last)


def _close_in(good: int, bad: int, rate_of: Callable[[int], float | None]) -> None:
    while good and bad > _CLOSE * good and bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if rate_of(middle) is not None else (good, middle)


def _limit(bench: Bench, search: BatchSize) -> int | None:
    """Bytes that a rank may need; None = the card itself says when it is full."""
    if search.memory_limit is not None:
        return int(search.memory_limit * 2**30)
    host = detect_host()
    if bench.memory_limit_bytes is not None or host.memory_bytes is None:
        return bench.memory_limit_bytes
    on_gpus = host.gpus and not bench.launch.cpu
    return None if on_gpus else int(_HOST_SHARE * host.memory_bytes / search.processes)


def sweep(bench: Bench, varied: Accumulate | Workers) -> Tuning:
    """Measure the given values of accumulation or loader workers."""
    todo = [varied.trial(bench, value) for value in varied.values]
    study = Study(bench, varied.KIND, of=len(todo))
    results = [study.run(trial) for trial in todo]
    per = _per_value if isinstance(varied, Accumulate) else _per_step
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
    ordered = sorted(results, key=lambda result: float(result.value or 0))
    rates = [rate(result) for result in ordered]
    top = max((rate for rate in rates if rate is not None), default=None)
    near = [
        int(float(result.value or 0))
        for result, its in zip(ordered, rates, strict=True)
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
