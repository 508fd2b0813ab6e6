"""What one measured row of a software stack brings the others of its stack to.

    python tests/accuracy/score_calibration.py [--truth DIR] [--sources]

Every published row in turn is the only measurement; the other rows of the same source and trainer
are predicted with it, by the product's own calibration. Each row counts once: its errors are spread
over the rows that could be measured before it. Each row is predicted once, without calibration.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from workbench.estimate import step_time, training_memory
from workbench.estimate.memory_range import MemoryRange
from workbench.estimate.parts import STATES
from workbench.estimate.stack_factor import facts_of, memory_terms, time_factor
from workbench.store.stack_calibrations import is_near, of_trainer

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=DATA)
    parser.add_argument("--sources", action="store_true", help="Each source by itself.")
    options = parser.parse_args()
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
