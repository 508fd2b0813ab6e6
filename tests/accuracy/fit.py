"""Refit the time model's constants with each source of published runs left out: `make fit`.

    python -m tests.accuracy.fit [--write] [--rows]

Every constant of workbench/estimate/fitted.csv is fitted to the published throughput rows: a robust
least squares of log(measured / predicted), each constant drawn to the middle of its bounds, each
source with a level of its own that no estimate knows (its machine, its way of measuring). Then each
source is left out, all constants are fitted again, and its rows are predicted with what the others
say. The plain and the left-out score stand beside each other: their gap is the overfit.
"""

from __future__ import annotations

import argparse
import csv
import math
import operator
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.accuracy.fit_ranges import Residual, chosen, write
from tests.accuracy.rows import Case, NotExpressedError, Row
from tests.accuracy.score import percentile, read
from tests.accuracy.score_speed import scorable
from tests.accuracy.speed_rows import speed_of
from workbench.errors import WorkbenchError
from workbench.estimate.fitted import PATH, constants, reading, using
from workbench.estimate.step_time import step_time
from workbench.estimate.time_range import kind_of

ROWS = Path(__file__).parent / "data" / "throughput.csv"
NOISE = 0.10
"""Spread of log(measured / predicted) within a source where the model is right."""
OUTLIER = 1.5
"""Residuals beyond so many times the noise count linearly, not squared."""
MANY = 15
"""Runs of a source from which on each more says less: they share what the model leaves out."""
WIDTHS = 6
"""Standard deviations between the ends of a constant's bounds."""
LEVEL = 0.10
"""Spread of the sources' own levels."""
SHARED = 0.01
"""Spread of the levels' mean: what all sources share is for the constants to say."""
STEP = 0.02
"""Change of a constant's logarithm for a derivative."""
ROUNDS = 6
"""Linearised fits at most, each from where the last one ended."""
CONVERGED = 0.1
"""Change of a constant's logarithm below which the linearised fit is exact enough."""
SWEEPS = 30
"""Reweightings of one linearised fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run."""

    row: Row
    """Its columns."""
    case: Case
    """What was run."""
    rate: float
    """Measured tokens per second and GPU."""

    @property
    def source(self) -> str:
        """Who published it: what is left out together."""
        return self.row["source_id"]

    @property
    def stratum(self) -> str:
        """GPU generation, one or several nodes, dense or MoE, task."""
        return self.case.stratum


def runs(rows: Iterable[Row]) -> list[Run]:
    """Every row that can be expressed and timed."""
    known: list[Run] = []
    for row in scorable(list(rows)):
        try:
            speed = speed_of(row)
            step_time(speed.case.workload, speed.case.strategy, speed.case.cluster)
        except (NotExpressedError, WorkbenchError):
            continue
        known.append(Run(row=row, case=speed.case, rate=speed.tokens_per_second_per_gpu))
    return known


def residuals(known: Sequence[Run], values: Mapping[str, float]) -> np.ndarray:
    """log(measured / predicted) of each run with these constants."""
    with using(values):
        return np.array(
            [
                math.log(
                    run.rate
                    / step_time(
                        run.case.workload, run.case.strategy, run.case.cluster
                    ).tokens_per_second_per_gpu
                )
                for run in known
            ]
        )


def read_constants(known: Sequence[Run]) -> list[frozenset[str]]:
    """Which constants each run's time depends on."""
    names: list[frozenset[str]] = []
    for run in known:
        with reading() as read:
            step_time(run.case.workload, run.case.strategy, run.case.cluster)
        names.append(frozenset(read))
    return names


class Fit:
    """Constants of some runs, linearised around `values`."""

    def __init__(self, known: Sequence[Run], values: Mapping[str, float]) -> None:
        self.known, self.values = known, dict(values)
        self.names = list(constants())
        bounds = [constants()[name] for name in self.names]
        self.low, self.high = (
            np.log([getattr(one, end) for one in bounds]) for end in ("low", "high")
        )
        self.middle, self.width = (self.low + self.high) / 2, (self.high - self.low) / WIDTHS
        self.sources = sorted({run.source for run in known})
        places = {name: place for place, name in enumerate(self.sources)}
        self.levels = np.zeros((len(known), len(self.sources)))
        for line, run in enumerate(known):
            self.levels[line, places[run.source]] = 1.0
        self.now, self.read = residuals(known, self.values), read_constants(known)
        self.slopes = self._slopes()

    @property
    def logs(self) -> np.ndarray:
        """Logarithms of the constants."""
        return np.log([self.values[name] for name in self.names])

    def _slopes(self) -> np.ndarray:
        """Change of each residual with each constant's logarithm."""
        slopes = np.zeros((len(self.known), len(self.names)))
        for column, name in enumerate(self.names):
            lines = [line for line, names in enumerate(self.read) if name in names]
            moved = {**self.values, name: self.values[name] * math.exp(STEP)}
            after = residuals([self.known[line] for line in lines], moved)
            slopes[lines, column] = (after - self.now[lines]) / STEP
        return slopes

    def move_to(self, values: Mapping[str, float]) -> None:
        """Other constants, so near that the slopes hold there too."""
        self.values, self.now = dict(values), residuals(self.known, values)

    def without(self, source: str | None) -> dict[str, float]:
        """Constants that suit all runs but one source's; None = all."""
        kept = np.array([run.source != source for run in self.known])
        slopes, levels, now = self.slopes[kept], self.levels[kept], self.now[kept]
        share = np.minimum(1.0, np.sqrt(MANY / (levels @ levels.sum(axis=0))))
        design = np.hstack([slopes, levels])
        start, scale = self.logs, np.concatenate([self.width, np.full(levels.shape[1], LEVEL)])
        prior = np.concatenate([self.middle - start, np.zeros(levels.shape[1])])
        move = np.zeros(design.shape[1])
        fixed = np.zeros(design.shape[1], dtype=bool)
        count, present = len(self.names), levels.any(axis=0)
        mean = np.concatenate([np.zeros(count), present / present.sum()])
        for _ in range(SWEEPS):
            left = now + slopes @ move[:count] - levels @ move[count:]
            weight = share / np.maximum(1.0, np.abs(left) / (OUTLIER * NOISE)) / NOISE**2
            signed = np.hstack([-slopes, levels])
            matrix = signed.T @ (weight[:, None] * signed) + np.diag(1 / scale**2)
            matrix += np.outer(mean, mean) / SHARED**2
            goal = signed.T @ (weight * now) + prior / scale**2
            free = ~fixed
            goal = goal - matrix[:, fixed] @ move[fixed]
            move[free] = np.linalg.solve(matrix[np.ix_(free, free)], goal[free])
            inside = np.clip(start + move[:count], self.low, self.high) - start
            fixed[:count] |= inside != move[:count]
            move[:count] = inside
        return dict(zip(self.names, np.exp(start + move[:count]).tolist(), strict=True))


def fitted_to_all(known: Sequence[Run]) -> Fit:
    """Linearised at the constants that suit all runs."""
    fit = Fit(known, {name: constant.value for name, constant in constants().items()})
    for _ in range(ROUNDS):
        goal = fit.without(None)
        moved = max(abs(math.log(goal[name] / fit.values[name])) for name in goal)
        if moved < CONVERGED:
            fit.move_to(goal)
            break
        fit = Fit(known, goal)
    return fit


def left_out(fit: Fit) -> np.ndarray:
    """Each run's residual with constants that its source has no part in."""
    found = np.zeros(len(fit.known))
    for source in fit.sources:
        lines = [line for line, run in enumerate(fit.known) if run.source == source]
        found[lines] = residuals([fit.known[line] for line in lines], fit.without(source))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Median and 90th percentile of |predicted / measured - 1|."""

    flat: tuple[float, float]
    """Over all runs."""
    strata: tuple[float, float]
    """Means over strata of at least four runs; smaller ones are merged."""
    sources: float
    """Median over sources of their medians."""


def errors(known: Sequence[Run], logs: np.ndarray) -> Errors:
    """Of residuals log(measured / predicted)."""
    sizes = np.abs(np.exp(-logs) - 1)
    by_stratum, by_source = _grouped(known, sizes, "stratum"), _grouped(known, sizes, "source")
    merged: dict[str, list[float]] = {}
    for name, values in by_stratum.items():
        merged.setdefault(name if len(values) >= 4 else "other", []).extend(values)
    return Errors(
        flat=_two(list(sizes)),
        strata=tuple(np.mean([_two(values) for values in merged.values()], axis=0)),
        sources=statistics.median(statistics.median(values) for values in by_source.values()),
    )


def _grouped(known: Sequence[Run], sizes: np.ndarray, attribute: str) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for run, size in zip(known, sizes, strict=True):
        groups.setdefault(getattr(run, attribute), []).append(float(size))
    return groups


def _two(values: list[float]) -> tuple[float, float]:
    return percentile(values, 0.5), percentile(values, 0.9)


def residual_of(run: Run, log: float) -> Residual:
    """One run's residual with what its range may depend on."""
    workload, strategy = run.case.workload, run.case.strategy
    known = "unknown" if workload.kernels.software_stack == "unknown" else "named"
    return Residual(run.source, kind_of(workload, strategy), known, log)


def unnamed(run: Run) -> Run:
    """The same run by a stack that nothing is known of."""
    workload = run.case.workload
    kernels = replace(workload.kernels, software_stack="unknown")
    return replace(run, case=replace(run.case, workload=replace(workload, kernels=kernels)))


def range_residuals(fit: Fit, left: np.ndarray) -> list[Residual]:
    """Residuals of runs left out, each also as if its trainer were not named."""
    every = [residual_of(run, float(log)) for run, log in zip(fit.known, left, strict=True)]
    for source in fit.sources:
        some = [
            unnamed(run)
            for run in fit.known
            if run.source == source and run.case.workload.kernels.software_stack != "unknown"
        ]
        logs = residuals(some, fit.without(source))
        every += [residual_of(run, float(log)) for run, log in zip(some, logs, strict=True)]
    return every


def write_constants(values: Mapping[str, float]) -> None:
    """Replace the values in the product's table; bounds and meanings stay."""
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "value", "low", "high", "meaning"))
        for name, one in constants().items():
            number = [f"{value:.3g}" for value in (values[name], one.low, one.high)]
            writer.writerow((name, *number, one.meaning))


def show(label: str, found: Errors) -> None:
    two = [f"{share:6.1%}" for share in (*found.flat, *found.strata, found.sources)]
    print(f"{label:<26}{two[0]:>8}{two[1]:>8}{two[2]:>9}{two[3]:>8}{two[4]:>10}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="renew fitted.csv and ranges.csv")
    parser.add_argument("--rows", action="store_true", help="every run with its ratios")
    options = parser.parse_args(arguments)
    known = runs(read(ROWS))
    now = residuals(known, {name: one.value for name, one in constants().items()})
    fit = fitted_to_all(known)
    left = left_out(fit)
    print(f"{len(known)} published runs of {len(fit.sources)} sources, {len(fit.names)} constants")
    print(f"{'|error| of tokens/s':<26}{'flat':>8}{'p90':>8}{'strata':>9}{'p90':>8}{'sources':>10}")
    show("as the product is", errors(known, now))
    show("fitted to all", errors(known, fit.now))
    show("each source left out", errors(known, left))
    gap = errors(known, left).strata[0] - errors(known, fit.now).strata[0]
    print(f"overfit, median over strata: {100 * gap:.1f} points")
    found, share = chosen(range_residuals(fit, left))
    width = statistics.median(
        operator.truediv(*reversed(found[residual_of(run, 0.0)[1:3]])) for run in known
    )
    print(f"ranges of sources left out hold {share:.0%}; median high / low {width:.2f}")
    for run, before, one, other in zip(known, now, fit.now, left, strict=True):
        if options.rows:
            print(f"{run.row['id']:<22}{before:+7.2f}{one:+7.2f}{other:+7.2f}")
    if options.write:
        write_constants(fit.values)
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
