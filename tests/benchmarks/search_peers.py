"""The planner's search beside an exhaustive one: layouts per second, and whether both agree.

The exhaustive loop is built as Calculon's search is (SC 2023, doi 10.1145/3581784.3607102; its `optimal_execution`): every
layout is weighed, every one that fits is timed, none is left out. It is our own loop: Calculon is
not published as a package (`calculon` on PyPI is a producer-consumer library). It runs over the
planner's own layouts, with our formulas and with llm-analysis', which express fewer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.accuracy.rows import NotExpressedError
from tests.benchmarks import plans
from tests.benchmarks.peer_llm_analysis import LlmAnalysis
from workbench.describe import Cluster, Model, Workload
from workbench.estimate.parts import SAFETY
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.refusals import LAYOUT
from workbench.planning.search_context import NodeGroup, SearchContext, node_group
from workbench.planning.space import Choice, ParallelLayout, Space, default_batch

Row = tuple[str, str, str, bool]
GPU, PER_NODE, NODES = "h100-sxm", 8, 8
WORKLOAD = Workload(
    model=Model.catalog("llama-3-70b"), seq_len=4096, micro_batch=1, precision="bf16"
)
ROUNDS = 2


@dataclass(frozen=True)
class Searched:
    """One search, finished."""

    name: str
    layouts: int
    seconds: float
    best: float | None
    """Seconds per step of the layout it chose, by our formulas; None = by others."""

    @property
    def per_second(self) -> float:
        return self.layouts / self.seconds


def fresh() -> SearchContext:
    """Nothing remembered from a search before."""
    return SearchContext(WORKLOAD, default_batch(WORKLOAD, PER_NODE * NODES), Space())


def layouts(
    context: SearchContext, where: NodeGroup
) -> Iterator[tuple[ParallelLayout, Choice, int]]:
    """Every legal layout: layout, recompute and offload, micro-batch."""
    for layout in context.layouts(where.cluster.nodes, len(where.cluster.gpus)):
        for choice in layout.choices:
            for size in layout.micro_batches:
                yield layout, choice, size


def planner(where: NodeGroup) -> Searched:
    began = time.perf_counter()
    found = LayoutSearch(fresh(), where).run()
    seconds = time.perf_counter() - began
    looked_at = found.layouts - found.refused.get(LAYOUT, 0)
    return Searched("workbench planner", looked_at, seconds, found.best[0].step.step_seconds)


def exhaustive(where: NodeGroup) -> Searched:
    began, context, count, best = time.perf_counter(), fresh(), 0, math.inf
    limit = (1 - SAFETY) * where.card_bytes
    for layout, choice, size in layouts(context, where):
        count += 1
        fits = context.bytes(layout, choice, size) <= limit
        if fits and context.host_bytes(layout, choice) <= where.host_bytes:
            best = min(best, context.seconds(where.cluster, layout, choice, size).step_seconds)
    seconds = time.perf_counter() - began
    return Searched("exhaustive loop, our formulas", count, seconds, best)


def exhaustive_llm_analysis(where: NodeGroup) -> Searched:
    model = LlmAnalysis()
    began, context, count, best = time.perf_counter(), fresh(), 0, math.inf
    for layout, choice, size in layouts(context, where):
        work = context.work(size, layout.accumulate(size))
        try:
            said = model.summary(work, choice.strategy, GPU)
        except NotExpressedError:
            continue
        count += 1
        if said["memory_left_per_gpu"] >= 0:
            best = min(best, said["latency_per_iter"])
    seconds = time.perf_counter() - began
    return Searched("exhaustive loop, llm-analysis' formulas", count, seconds, None)


def all_offers(_where: NodeGroup) -> Searched:
    name, seq_len, tokens = plans.CASES[0]
    seconds, found = plans.measure(name, seq_len, tokens)
    label = f"workbench planner, {name} on every offer of the price table"
    return Searched(label, found.combinations, seconds, None)


def searches() -> list[Searched]:
    """The fastest of `ROUNDS` of each; the last looks at every offer of the price table too."""
    where = node_group(Cluster.rented(GPU, PER_NODE, NODES))
    kinds = (planner, exhaustive, exhaustive_llm_analysis, all_offers)
    rounds = [[search(where) for search in kinds] for _ in range(ROUNDS)]
    return [min(times, key=lambda one: one.seconds) for times in zip(*rounds, strict=True)]


def show(found: Sequence[Searched]) -> None:
    grid = Table(title=f"Fastest layout of {WORKLOAD.model.name} on {PER_NODE * NODES} H100")
    grid.add_column("search", no_wrap=True)
    for column in ("layouts", "seconds", "layouts per second", "step of the best"):
        grid.add_column(column, justify="right")
    for one in found:
        best = "" if one.best is None else f"{one.best:.3f} s"
        rate = f"{one.per_second:,.0f}"
        grid.add_row(one.name, f"{one.layouts:,}", f"{one.seconds:.2f}", rate, best)
    Console(width=150).print(grid)


def benchmark() -> Iterator[Row]:
    found = searches()
    show(found)
    mine, every = found[:2]
    assert mine.best is not None
    assert every.best is not None
    agree = math.isclose(mine.best, every.best, rel_tol=1e-9) and mine.layouts == every.layouts
    yield (
        "search: the planner's best layout against that of the exhaustive loop",
        f"{mine.best:.3f} s and {every.best:.3f} s per step",
        "equal",
        agree,
    )
    ratio = mine.per_second / every.per_second
    yield (
        "search: layouts per second, planner ÷ exhaustive loop",
        f"{ratio:.1f}  ({mine.per_second:,.0f} ÷ {every.per_second:,.0f})",
        ">= 2",
        ratio >= 2,
    )


def price_table(rounds: int, models: int) -> Iterator[Row]:
    """One workload against every layout on every offer (plans.py)."""
    for row in plans.rows(rounds, models):
        rate, seconds = float(row["combinations_per_second"]), float(row["seconds"])
        what = f"plan {row['model']} over all offers: {row['combinations']:,} combinations"
        yield f"{what}, per second on one core", f"{rate:,.0f}", ">= 20,000", rate >= 20_000
        yield f"{what}, all of them", f"{seconds:.2f} s", "<= 2 s", seconds <= 2
