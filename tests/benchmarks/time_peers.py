"""Time estimates side by side: predictions per second and error on published runs.

    python -m tests.benchmarks time            (part of `make bench`; search_peers.py is the rest)

llm-analysis answers the published throughput rows (tests/accuracy/data) that it can express, the
workbench the same rows beside it. Its FLOP efficiency is what its README gives for training; a
further line takes the efficiency that suits these very rows best. Our constants were set on the
same published rows, its were not: what ours are worth on other rows, these errors do not say.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.accuracy.rows import Case, NotExpressedError
from tests.accuracy.score import percentile, read
from tests.accuracy.score_speed import scorable
from tests.accuracy.speed_rows import Speed, speed_of
from tests.benchmarks import search_peers
from tests.benchmarks.peer_llm_analysis import README_EFFICIENCY, LlmAnalysis, reachable
from workbench.errors import WorkbenchError
from workbench.estimate.step_time import step_time

Row = tuple[str, str, str, bool]
Predict = Callable[[Case], float]
TRUTH = Path(__file__).parents[1] / "accuracy" / "data" / "throughput.csv"
PASSES = 3


@dataclass
class Answers:
    """One predictor on a list of rows."""

    name: str
    ratios: list[float]
    """Predicted over measured tokens per second and GPU."""
    strata: list[str]
    """Of each row, as score.py names them."""
    per_second: float | None = None

    def errors(self) -> tuple[float, float, float, float]:
        """Median and p90 over the rows, then both as means over the strata (as score.py)."""
        every = [abs(ratio - 1) for ratio in self.ratios]
        groups: dict[str, list[float]] = {}
        for stratum, error in zip(self.strata, every, strict=True):
            groups.setdefault(stratum, []).append(error)
        return (
            statistics.median(every),
            percentile(every, 0.9),
            statistics.fmean(statistics.median(one) for one in groups.values()),
            statistics.fmean(percentile(one, 0.9) for one in groups.values()),
        )


def ours(case: Case) -> float:
    return step_time(case.workload, case.strategy, case.cluster).tokens_per_second_per_gpu


def dense_rows() -> list[Speed]:
    """Every scorable dense row of the truth table that the workbench can express."""
    found: list[Speed] = []
    for row in scorable(read(TRUTH)):
        try:
            speed = speed_of(row)
            ours(speed.case)
        except (NotExpressedError, WorkbenchError):
            continue
        if not speed.case.workload.model.experts:
            found.append(speed)
    return found


def answers(name: str, predict: Predict, rows: Sequence[Speed]) -> Answers:
    ratios = [predict(one.case) / one.tokens_per_second_per_gpu for one in rows]
    return Answers(name, ratios, [one.case.stratum for one in rows])


def rates(predictors: Sequence[Predict], rows: Sequence[Speed]) -> list[float]:
    """Predictions per second over all rows, best pass of each; the passes alternate."""
    best = [0.0] * len(predictors)
    for _ in range(PASSES):
        for index, predict in enumerate(predictors):
            began = time.perf_counter()
            for one in rows:
                predict(one.case)
            best[index] = max(best[index], len(rows) / (time.perf_counter() - began))
    return best


def compared(most: int | None = None) -> tuple[list[Answers], int, Counter[str]]:
    """Answers of both on the same rows, the number of dense rows, why some were not expressed."""
    every, theirs = dense_rows()[:most], LlmAnalysis()
    rows: list[Speed] = []
    missing: Counter[str] = Counter()
    for one in every:
        try:
            theirs.rate(one.case)
            rows.append(one)
        except NotExpressedError as error:
            missing[str(error)] += 1
    mine = answers("workbench, closed form", ours, rows)
    their = answers(f"llm-analysis, efficiency {README_EFFICIENCY}", theirs.rate, rows)
    fitted = README_EFFICIENCY / statistics.median(their.ratios)  # its latency goes as 1/efficiency
    tuned = answers(f"same, {fitted:.2f}: fitted to these rows", LlmAnalysis(fitted).rate, rows)
    mine.per_second, their.per_second = rates((ours, theirs.rate), rows)
    return [mine, their, tuned], len(every), missing


def show(found: Sequence[Answers], every: int, missing: Counter[str]) -> None:
    rows, strata = len(found[0].ratios), len(set(found[0].strata))
    grid = Table(title=f"Tokens/s of published runs: the {rows} of {every} dense rows both express")
    grid.add_column("predictor")
    for column in ("per second", "median error", "p90", f"median, mean of {strata} strata", "p90"):
        grid.add_column(column, justify="right")
    for one in found:
        rate = "" if one.per_second is None else f"{one.per_second:,.0f}"
        grid.add_row(one.name, rate, *(f"{error:.1%}" for error in one.errors()))
    console = Console(width=150)
    console.print(grid)
    said = ", ".join(f"{reason} ({count})" for reason, count in missing.most_common())
    console.print(f"llm-analysis does not express: {said}", style="dim")


def benchmark(*, smoke: bool = False) -> Iterator[Row]:
    """Print both tables; what is promised of them. `smoke`: of a few rows, and no search."""
    with reachable():
        try:
            found, every, missing = compared(40 if smoke else None)
        except ImportError as error:
            yield "time: beside llm-analysis", f"{error}; make bench installs it", "", False
            return
        show(found, every, missing)
        mine, their, tuned = found
        assert mine.per_second is not None
        assert their.per_second is not None
        yield (
            "time: predictions per second (÷ llm-analysis', whose call gives memory too)",
            f"{mine.per_second:,.0f}  ({mine.per_second / their.per_second:.2f})",
            ">= 500",
            mine.per_second >= 500,
        )
        error, bound = mine.errors()[0], min(their.errors()[0], tuned.errors()[0])
        yield (
            f"time: median error on {len(mine.ratios)} published runs, against llm-analysis' best",
            f"{error:.1%}",
            f"<= {bound:.1%}",
            error <= bound,
        )
        if not smoke:
            yield from search_peers.benchmark()
