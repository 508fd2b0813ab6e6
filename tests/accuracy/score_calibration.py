"""What one measured row of a software stack brings the others of its stack to.

    python tests/accuracy/score_calibration.py [--truth DIR] [--sources] [--fit]

Every published row in turn is the only measurement; the other rows of the same source and trainer
are predicted with it, by the product's own calibration. Each row counts once: its errors are spread
over the rows that could be measured before it. Each row is predicted once, without calibration.

--fit tries other values of every constant of the calibration, one after the other: the score (mean
over sources of their mean error) with the value in use, with the best one, and with the one that is
best for all other sources than the one that is scored. The last two differ by the overfit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import unittest.mock
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.accuracy.rows import NotExpressedError, Row, case_of, counts, generation, metric_of
from tests.accuracy.rows import trainer_of as trainer_text
from tests.accuracy.score import read
from tests.accuracy.score_speed import scorable
from tests.accuracy.speed_rows import speed_of
from workbench.describe import Workload
from workbench.describe.stack import StackCalibration, StackMeasurement
from workbench.describe.trainers import preset
from workbench.errors import WorkbenchError
from workbench.estimate import stack_factor
from workbench.estimate.memory import training_memory
from workbench.estimate.memory_range import MemoryRange
from workbench.estimate.parts import STATES
from workbench.estimate.stack_factor import facts_of, memory_terms, time_factor
from workbench.estimate.step_time import step_time
from workbench.store.stack_calibrations import is_near, of_trainer
from workbench.units import GIB

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Known:
    """One row: its prediction without calibration beside what was measured."""

    source: str
    predicted: float
    measured: float
    measurement: StackMeasurement
    low: float = 0.0
    high: float = 0.0

    @property
    def stack(self) -> tuple[str, str]:
        return self.source, self.measurement.stack.trainer


@dataclass(frozen=True)
class Errors:
    """Errors, each with the weight of its row."""

    label: str
    values: tuple[tuple[float, float, str, bool], ...]
    """Error, weight, source, and whether the measurement lay in the range."""

    def percentile(self, share: float) -> float:
        ordered = sorted(self.values)
        total, reached = sum(weight for _, weight, _, _ in ordered), 0.0
        for error, weight, _, _ in ordered:
            reached += weight
            if reached >= share * total:
                return error
        return ordered[-1][0] if ordered else 0.0

    @property
    def inside(self) -> float:
        total = sum(weight for _, weight, _, _ in self.values)
        return sum(weight for _, weight, _, inside in self.values if inside) / max(total, 1e-9)

    @property
    def sources(self) -> int:
        return len({source for _, _, source, _ in self.values})

    @property
    def rows(self) -> int:
        return round(sum(weight for _, weight, _, _ in self.values))

    def of(self, source: str) -> Errors:
        return Errors(source, tuple(one for one in self.values if one[2] == source))


def times(rows: Iterable[Row]) -> Iterator[Known]:
    """Seconds of a step."""
    for row in scorable(rows):
        try:
            speed = speed_of(row)
            case = speed.case
            step = step_time(case.workload, case.strategy, case.cluster)
        except (NotExpressedError, WorkbenchError):
            continue
        measured = step.tokens / speed.tokens_per_second_per_gpu / step.gpus
        ratio = measured / step.step_seconds
        known = _measurement(row, case.workload, step_ratio=ratio)
        yield Known(row["source_id"], step.step_seconds, measured, known, step.low, step.high)


def memories(rows: Iterable[Row]) -> Iterator[Known]:
    """Bytes of a rank."""
    for row in rows:
        if not counts(row, frozenset({"measured"})) or row["result"] == "oom":
            continue
        try:
            case = case_of(row)
            estimate = training_memory(case.workload, case.strategy, case.cluster, is_named=True)
        except (NotExpressedError, WorkbenchError):
            continue
        predicted = getattr(estimate, f"{metric_of(row)}_bytes")
        known = _measurement(
            row,
            case.workload,
            peak_bytes=float(row["mem_gib"]) * 2**30,
            predicted_bytes=predicted,
            tensors_bytes=estimate.allocated_bytes,
            states_bytes=sum(estimate.parts.get(name, 0) for name in STATES),
        )
        low, high = estimate.low, estimate.high
        yield Known(row["source_id"], predicted, known.peak_bytes or 0.0, known, low, high)


def _measurement(row: Row, workload: Workload, **figures: float) -> StackMeasurement:
    named = trainer_text(row)
    stack = of_trainer(None if named is None else preset(named))
    return StackMeasurement(
        name=row["id"],
        figures="",
        measured_at=0.0,
        is_run=False,
        facts=facts_of(stack, workload, "cuda", generation(row["gpu"])),
        layout=row["id"],
        gpu=row["gpu"],
        **figures,
    )


def corrected_time(measured: Sequence[Known], target: Known) -> tuple[float, float, float]:
    """The prediction with these rows measured, and the ends of its range."""
    known = time_factor(_calibration(measured), target.measurement.stack)
    value = target.predicted * known.factor
    return value, value * target.low**known.narrowed, value * target.high**known.narrowed


def corrected_memory(measured: Sequence[Known], target: Known) -> tuple[float, float, float]:
    """The same of memory."""
    one = target.measurement
    terms = memory_terms(_calibration(measured), one.stack)
    change = terms.correction(one.states_bytes or 0.0, one.tensors_bytes or 0.0)
    value = target.predicted + change
    usual = MemoryRange(target.low, target.high)
    spread = usual.centred() if terms.is_measured else usual
    return value, value * spread.low, value * spread.high


def _calibration(measured: Sequence[Known]) -> StackCalibration:
    own = measured[0].measurement.stack if measured else None
    return StackCalibration(
        trainer=own.trainer if own else "",
        measurements=tuple(one.measurement for one in measured),
    )


Corrected = Callable[[Sequence[Known], Known], tuple[float, float, float]]
Fits = Callable[[StackMeasurement, StackMeasurement], bool]


def one_row(known: Sequence[Known], corrected: Corrected, fits: Fits, label: str) -> Errors:
    """Every row with each other one of its stack measured before it."""
    values: list[tuple[float, float, str, bool]] = []
    for target, others in _stacks(known, fits):
        for other in others:
            error, inside = _error(corrected([other], target), target, corrected)
            values.append((error, 1 / len(others), target.source, inside))
    return Errors(label, tuple(values))


def all_rows(known: Sequence[Known], corrected: Corrected, fits: Fits, label: str) -> Errors:
    """Every row with all others of its stack measured before it."""
    values: list[tuple[float, float, str, bool]] = []
    for target, others in _stacks(known, fits):
        error, inside = _error(corrected(others, target), target, corrected)
        values.append((error, 1.0, target.source, inside))
    return Errors(label, tuple(values))


def no_row(known: Sequence[Known], corrected: Corrected, fits: Fits, label: str) -> Errors:
    """The same rows without any measurement."""
    values: list[tuple[float, float, str, bool]] = []
    for target, _ in _stacks(known, fits):
        error, inside = _error(corrected([], target), target, corrected)
        values.append((error, 1.0, target.source, inside))
    return Errors(label, tuple(values))


def _stacks(known: Sequence[Known], fits: Fits) -> Iterator[tuple[Known, list[Known]]]:
    """Each row, and the others of its source and trainer that could have been measured."""
    groups: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for one in known:
        groups[one.stack].append(one)
    for group in groups.values():
        for target in group:
            others = [
                one
                for one in group
                if one is not target
                and is_near(one.measured / one.predicted)
                and fits(one.measurement, target.measurement)
            ]
            if others:
                yield target, others


def _error(
    value: tuple[float, float, float], target: Known, corrected: Corrected
) -> tuple[float, bool]:
    """Of tokens per second, or of bytes; and whether what was measured lies in the range."""
    middle, low, high = value
    inside = low <= target.measured <= high
    if corrected is corrected_memory:
        return abs(middle / target.measured - 1), inside
    return abs(target.measured / middle - 1), inside


def same_kind(one: StackMeasurement, other: StackMeasurement) -> bool:
    """The same weights trained, experts or none: else a measurement does not apply."""
    mine, its = one.stack, other.stack
    return (mine.trained, mine.has_experts) == (its.trained, its.has_experts)


def same_stack(one: StackMeasurement, other: StackMeasurement) -> bool:
    """And the same GPU generation and precision."""
    mine, its = one.stack, other.stack
    return same_kind(one, other) and (mine.arch, mine.precision) == (its.arch, its.precision)


def other_generation(one: StackMeasurement, other: StackMeasurement) -> bool:
    """Of another GPU generation."""
    return same_kind(one, other) and one.stack.arch != other.stack.arch


def scores(truth: Path = DATA) -> dict[str, Errors]:
    """Every line of the table, by what it is of."""
    lines: dict[str, Errors] = {}
    for what, known, corrected in (
        ("time", list(times(read(truth / "throughput.csv"))), corrected_time),
        ("memory", list(memories(read(truth / "memory.csv"))), corrected_memory),
    ):
        for name, fits in (
            ("same generation and precision", same_stack),
            ("same trainer", same_kind),
            ("other generation", other_generation),
        ):
            for label, score in (("none", no_row), ("one row", one_row), ("all others", all_rows)):
                lines[f"{what}: {name}: {label}"] = score(known, corrected, fits, label)
    return lines


TRIED: Mapping[str, Sequence[Any]] = {
    "NOISE": (0.1, 0.15, 0.25, 0.4, 0.6, 1.0),
    "TAIL": (0.03, 0.05, 0.1, 0.2, 9.0),
    "TIME_CORRELATION release": (0.2, 0.4, 0.6, 0.8, 1.0),
    "TIME_CORRELATION arch": (0.0, 0.2, 0.35, 0.5, 0.7, 1.0),
    "TIME_CORRELATION precision": (0.4, 0.6, 0.8, 1.0),
    "MEMORY_CORRELATION release": (0.4, 0.6, 0.8, 1.0),
    "MEMORY_CORRELATION arch": (0.0, 0.2, 0.35, 0.6, 1.0),
    "MEMORY_CORRELATION precision": (0.4, 0.6, 0.8, 1.0),
    "USUAL_ERRORS 0": (0.01, 0.03, 0.1, 0.2),
    "USUAL_ERRORS 1": (0.1, 0.2, 0.3, 0.5),
    "USUAL_ERRORS 2": (0.1 * GIB, 0.5 * GIB, 1.0 * GIB, 2.0 * GIB),
    "MEMORY_TAIL": (0.005, 0.01, 0.02, 0.05, 9.0),
    "OWN_ERROR": (0.02, 0.05, 0.08, 0.12),
}
"""Constant of stack_factor, with the key or the place in it, and the values that `fit` tries."""
_OF_TIME = ("NOISE", "TAIL", "TIME")
_CAP = 0.5  # an error beyond says that a row is described wrongly: it counts no more than this


def fit(truth: Path) -> Iterator[tuple[str, float, float, float, float, float]]:
    """Constant, value in use and its score, best value and its score, score when left out."""
    speeds = list(times(read(truth / "throughput.csv")))
    peaks = list(memories(read(truth / "memory.csv")))
    for constant, values in TRIED.items():
        of_time = constant.startswith(_OF_TIME)
        known, corrected = (speeds, corrected_time) if of_time else (peaks, corrected_memory)
        used = in_use(constant)
        by_value = {
            value: with_another(constant, value, known, corrected) for value in {*values, used}
        }
        scores = {value: _mean(errors, errors) for value, errors in by_value.items()}
        best = min(scores, key=lambda value: scores[value])
        left_out = [
            by_value[min(by_value, key=lambda value: _mean(by_value[value], others))][source]
            for source in by_value[used]
            for others in (by_value[used].keys() - {source},)
        ]
        yield constant, used, scores[used], best, scores[best], statistics.fmean(left_out)


def in_use(name: str) -> float:
    attribute, _, place = name.partition(" ")
    value = getattr(stack_factor, attribute)
    if not place:
        return value
    return value[int(place)] if place.isdecimal() else value[place]


def with_another(
    name: str, value: float, known: Sequence[Known], corrected: Corrected
) -> dict[str, float]:
    """Source -> mean error after one row, with another value of a constant."""
    attribute, _, place = name.partition(" ")
    before = getattr(stack_factor, attribute)
    changed: Any = value
    if place.isdecimal():
        changed = tuple(value if at == int(place) else one for at, one in enumerate(before))
    elif place:
        changed = {**before, place: value}
    with unittest.mock.patch.object(stack_factor, attribute, changed):
        time_factor.cache_clear()
        memory_terms.cache_clear()
        errors = one_row(known, corrected, same_kind, name)
    time_factor.cache_clear()
    memory_terms.cache_clear()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for error, weight, source, _ in errors.values:
        sums[source][0] += weight * min(_CAP, error)
        sums[source][1] += weight
    return {source: total / weight for source, (total, weight) in sums.items()}


def _mean(errors: Mapping[str, float], sources: Iterable[str]) -> float:
    return statistics.fmean(errors[source] for source in sources)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=DATA)
    parser.add_argument("--sources", action="store_true", help="Each source by itself.")
    parser.add_argument("--fit", action="store_true", help="Try other constants.")
    options = parser.parse_args()
    if options.fit:
        print(f"{'constant':<32}{'in use':>9}{'error':>9}{'best':>9}{'error':>9}{'left out':>10}")
        for name, used, score, best, least, left_out in fit(options.truth):
            scale = GIB if best > 1e6 else 1.0
            print(
                f"{name:<32}{used / scale:>9.2f}{score:>9.2%}{best / scale:>9.2f}{least:>9.2%}"
                f"{left_out:>10.2%}"
            )
        return 0
    print(f"{'measured before':<52}{'rows':>6}{'sources':>9}{'median':>9}{'p90':>9}{'inside':>9}")
    for name, errors in scores(options.truth).items():
        _print(name, errors)
        if options.sources and name.endswith("one row"):
            for source in sorted({one[2] for one in errors.values}):
                _print(f"    {source}", errors.of(source))
    return 0


def _print(name: str, errors: Errors) -> None:
    print(
        f"{name:<52}{errors.rows:>6}{errors.sources:>9}{errors.percentile(0.5):9.1%}"
        f"{errors.percentile(0.9):9.1%}{errors.inside:9.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
