"""Refit what the memory estimate has no source for: the allocator's shares, and the ranges.

    python -m tests.accuracy.fit_memory [--truth DIR] [--write]

Prints the score with the constants in use, with refitted ones, and with those that were fitted
without the source that is scored: the last gap is the overfit. The ranges likewise: the share of
runs inside, each source judged by a range that does not know it. --write renews
workbench/estimate/memory_ranges.csv; the constants stand in workbench/estimate/fitted_memory.csv.
"""

from __future__ import annotations

import argparse
import collections
import csv
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.accuracy.rows import Case, NotExpressedError, Row, case_of, metric_of
from tests.accuracy.score import percentile, read, scorable
from workbench.errors import WorkbenchError
from workbench.estimate.fitted import read_constants
from workbench.estimate.memory import training_memory
from workbench.estimate.memory_range import FILE, UNNAMED, WHY, MemoryRange, kind_of
from workbench.estimate.parts import COMMUNICATION, CONTEXT, Peak
from workbench.estimate.peaks import peaks
from workbench.estimate.rank import Rank, ranks_of
from workbench.estimate.slack import PATH, shares, slack_bytes

Values = Mapping[str, float]
Shape = tuple[float, float]
"""Share of the runs beyond each end, and the factor on the quantiles' logarithms."""
Errors = list[tuple[str, str, float]]
"""(source, kind, log(measured / estimated)) of runs."""
_STEPS = 7  # values that a fit tries of each constant
_CAP = 0.5  # an error beyond says that a row is described wrongly: it counts no more than this
_LEAST_SOURCES = 2  # of a kind; with fewer, all kinds together decide
_OUTER = (
    0.05,
    0.075,
    0.1,
    0.125,
    0.15,
)  # shares of the runs beyond each end, before a range is made wider
_HELD = 0.78  # share of left-out runs that a range holds at least; all kinds together then hold 0.8
EVERY = "all"


@dataclass(frozen=True)
class Run:
    """One measured run with everything that the constants do not change."""

    source: str
    kind: str
    metric: str
    measured: float
    case: Case
    outside: int
    """Context and communication library, where the metric counts them."""

    @cached_property
    def moments(self) -> list[tuple[Rank, tuple[Peak, ...]]]:
        return [(rank, peaks(rank)) for rank in ranks_of(self.case.workload, self.case.strategy)]

    def error(self, values: Values) -> float:
        """log(measured / estimated)."""
        with_slack = self.metric != "allocated"
        most = max(
            moment.total_bytes + (slack_bytes(rank, moment.parts, values) if with_slack else 0)
            for rank, moments in self.moments
            for moment in moments
        )
        return math.log(self.measured / (most + self.outside))


def runs_of(rows: Iterable[Row], *, named: bool = True) -> list[Run]:
    """The measured rows that can be expressed; without their trainers where not `named`."""
    found = []
    for row in rows:
        if not scorable(row) or row["kind"] != "measured" or row["result"] == "oom":
            continue
        try:
            case = case_of(row, named=named)
            estimate = training_memory(case.workload, case.strategy, case.cluster)
        except (NotExpressedError, WorkbenchError):
            continue
        metric = metric_of(row)
        parts = estimate.parts
        outside = parts.get(CONTEXT, 0) + parts.get(COMMUNICATION, 0)
        found.append(
            Run(
                source=row["source_id"],
                kind=kind_of(case.workload, case.strategy),
                metric=metric,
                measured=float(row["mem_gib"]) * 2**30,
                case=case,
                outside=outside if metric == "on_card" else 0,
            )
        )
    return found


def objective(runs: Sequence[Run], values: Values) -> float:
    """Mean over sources of their mean error, each error capped."""
    by_source: dict[str, list[float]] = collections.defaultdict(list)
    for run in runs:
        by_source[run.source].append(min(_CAP, abs(run.error(values))))
    return statistics.fmean(map(statistics.fmean, by_source.values()))


def fitted(runs: Sequence[Run]) -> Values:
    """Constants within their bounds that suit these runs, one after the other, twice."""
    best: Values = shares()
    touched = [run for run in runs if run.metric != "allocated"]
    for name, one in [*read_constants(PATH).items()] * 2:
        grid = [one.low + (one.high - one.low) * step / (_STEPS - 1) for step in range(_STEPS)]
        tried = [best, *({**best, name: value} for value in grid)]
        best = min(tried, key=lambda values: objective(touched, values))
    return best


def ranges_of(errors: Errors, shapes: Mapping[str, Shape]) -> dict[str, MemoryRange]:
    """Kind -> its range: quantiles in which every source counts alike, made wider."""
    found = {}
    for kind, (outer, wider) in shapes.items():
        own = [(source, error) for source, one, error in errors if one == kind]
        if len({source for source, _ in own}) < _LEAST_SOURCES:
            own = [(source, error) for source, _, error in errors]
        many = collections.Counter(source for source, _ in own)
        weighted = sorted((error, 1 / many[source]) for source, error in own)
        low, high = (_quantile(weighted, share) for share in (outer, 1 - outer))
        low, high = math.exp(wider * min(0, low)), math.exp(wider * max(0, high))
        found[kind] = MemoryRange(round(low, 3), round(high, 3), kind)
    return found


def shapes_of(errors: Errors) -> dict[str, Shape]:
    """Kind -> the shape whose ranges are narrowest of those that hold `_HELD` of left-out runs."""
    found: dict[str, Shape] = {}
    for kind in dict.fromkeys(kind for _, kind, _ in errors):
        every = [(outer, step / 20) for outer in _OUTER for step in range(8, 41)]
        tried = [(*inside(errors, {kind: shape})[kind][1:], shape) for shape in every]
        enough = [one for one in tried if one[0] >= _HELD] or [max(tried)]
        found[kind] = min(enough, key=lambda one: one[1])[2]
    return found


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        passed += weight
        if passed >= share * total:
            return value
    return weighted[-1][0]


def left_out(runs: Sequence[Run]) -> Errors:
    """Every run with the constants that the other sources give."""
    found: Errors = []
    for source in dict.fromkeys(run.source for run in runs):
        values = fitted([run for run in runs if run.source != source])
        found += _errors([run for run in runs if run.source == source], values)
    return found


def inside(errors: Errors, shapes: Mapping[str, Shape]) -> dict[str, tuple[int, float, float]]:
    """Kind -> its runs, the share of them in the range of the other sources, median high / low."""
    held: dict[str, list[tuple[bool, float]]] = {kind: [] for kind in shapes}
    for source in dict.fromkeys(source for source, _, _ in errors):
        ranges = ranges_of([one for one in errors if one[0] != source], shapes)
        for _, kind, error in (one for one in errors if one[0] == source and one[1] in shapes):
            low, high, _ = ranges[kind]
            held[kind].append((low <= math.exp(error) <= high, high / low))
    every = [one for found in held.values() for one in found]
    own = {kind: (len(found), *_share_and_width(found)) for kind, found in held.items() if found}
    return own | {EVERY: (len(every), *_share_and_width(every))}


def _share_and_width(found: Sequence[tuple[bool, float]]) -> tuple[float, float]:
    return (
        statistics.fmean(is_in for is_in, _ in found),
        statistics.median(width for _, width in found),
    )


def _score(errors: Errors) -> str:
    sizes = [abs(math.exp(-error) - 1) for _, _, error in errors]
    return f"median {percentile(sizes, 0.5):.1%}, p90 {percentile(sizes, 0.9):.1%}"


def _errors(runs: Sequence[Run], values: Values) -> Errors:
    return [(run.source, run.kind, run.error(values)) for run in runs]


def write(ranges: Mapping[str, MemoryRange], errors: Errors) -> None:
    """Renew the file that the product reads."""
    with FILE.open("w", encoding="utf-8", newline="") as opened:
        table = csv.writer(opened, lineterminator="\n")
        table.writerow(["kind", "low", "high", "rows", "sources"])
        for kind in WHY:
            one = ranges[kind]
            own = [source for source, other, _ in errors if other == kind]
            table.writerow([kind, one.low, one.high, len(own), len(set(own))])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--write", action="store_true", help="renew memory_ranges.csv")
    options = parser.parse_args(arguments)
    rows = read(options.truth / "memory.csv")
    runs = runs_of(rows)
    best = fitted(runs)
    used = _errors(runs, shares())
    print(f"memory: {len(runs)} runs of {len({run.source for run in runs})} sources")
    print(f"  constants in use           {_score(used)}")
    print(f"  refitted                   {_score(_errors(runs, best))}")
    print(f"  refitted without a source  {_score(left_out(runs))}")
    for name, one in read_constants(PATH).items():
        bounds = f"{one.low:g} to {one.high:g}"
        print(f"    {name:<18}{one.value:>6.2f} refitted {best[name]:.2f} of {bounds}")
    unnamed = [(run.source, UNNAMED, run.error(shares())) for run in runs_of(rows, named=False)]
    ranges: dict[str, MemoryRange] = {}
    for errors in (used, unnamed):
        shapes = shapes_of(errors)
        ranges |= ranges_of(errors, shapes)
        print("  range: runs, inside with the source left out, median high / low; low, high")
        for kind, (many, held, wide) in inside(errors, shapes).items():
            ends = f"x {ranges[kind].low:.2f} to {ranges[kind].high:.2f}" if kind in ranges else ""
            print(f"    {kind:<18}{many:>4} {held:>6.1%} {wide:>6.2f}  {ends}")
    if options.write:
        write(ranges, used + unnamed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
