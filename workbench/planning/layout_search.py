"""The fastest layouts on one kind of machine: memory, then time, and a reason for all others.

A candidate is a parallel layout (degrees and data parallelism) with recompute, offload and a
micro-batch. The search is exact although most candidates are never timed. Why:

Laws of `training_memory` and `step_time`. tests/plan holds each against brute force.
(1) The same work with less recompute or less offload is never slower, unless the step waits both
    for the host and for other ranks: `step_time` adds these waits, so more work may hide more
    than it takes (`_waits_twice`).
(2) Without pipeline a larger micro-batch is never slower: it exchanges less often.
(3) A larger micro-batch needs more memory while there are more micro-batches than stages. With as
    many as stages no gradients exist while all activations do, so that one is asked by itself.
(4) No data parallelism is faster than none, and N ranks are at most N times as fast as one.

What is left out, and the proof that it cannot be among the best:
- Memory. `least_bytes` (states and buffers) is at most the need of every candidate with the same
  offload. Where it exceeds the card, all of them are out. Under (3) the largest micro-batch that
  fits is found by doubling and bisection.
- Time. `LowerBounds` are at most the step of every candidate that they cover, by (2) and (4).
  Candidates are tried in the order of their bounds. Once the lowest bound reaches the step of the
  slowest one kept, all that follow are out: their steps are longer still.
- Dominance. If a candidate fits that does less work (1) or the same in larger pieces (2), it is at
  least as fast, so `_is_dominated` leaves the other one out.
- Offers (offer_search.py). An offer's best case is one GPU's step shared out without loss (4). If
  a plan is cheaper and faster than that best case, the offer is not on the Pareto front. It is not
  among the `KEEP` cheapest either, since that many plans must be cheaper before it is left out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace

from workbench.estimate.timing import StepTime
from workbench.planning.layout_result import FittingLayout, LayoutResult
from workbench.planning.lower_bounds import LowerBounds
from workbench.planning.memory_search import Fitting, MemorySearch
from workbench.planning.refusals import LAUNCH, LAYOUT, MEMORY, SLOWER, Bar, Refusal
from workbench.planning.search_context import NodeGroup, SearchContext
from workbench.planning.space import Choice, ParallelLayout


class LayoutSearch:
    """Finds the best `keep` layouts on one kind of machine; use it once."""

    def __init__(
        self, context: SearchContext, where: NodeGroup, keep: int = 1, bar: Bar | None = None
    ) -> None:
        self._context, self._where, self._keep, self._outer = context, where, keep, bar
        self._best: list[FittingLayout] = []
        self._refusals: list[Refusal] = []
        self._bounds = LowerBounds(context, where)
        self._memory = MemorySearch(context, where, self._refusals)

    def run(self) -> LayoutResult:
        """Look at every layout."""
        cluster = self._where.cluster
        layouts = self._context.layouts(cluster.nodes, max(1, len(cluster.gpus)))
        legal: list[tuple[ParallelLayout, tuple[int, ...]]] = []
        for layout in layouts:
            if layout.reason:
                kind = LAYOUT if layout.is_launchable else LAUNCH
                self._refusals.append(Refusal(kind, layout))
            elif positions := self._memory.possible(layout):
                legal.append((layout, positions))
        self._search(legal)
        refused: Counter[str] = Counter()
        for refusal in self._refusals:
            refused[refusal.kind] += refusal.count
        return LayoutResult(
            best=tuple(self._best),
            refusals=tuple(self._refusals),
            layouts=sum(layout.count for layout in layouts),
            first_legal=next((layout for layout in layouts if not layout.reason), None),
            refused=refused,
            bar=self._outer.seconds if self._outer else math.inf,
            weigh=self._exact,
        )

    def _search(self, legal: list[tuple[ParallelLayout, tuple[int, ...]]]) -> None:
        """In the order of their bounds, the quick one first; those above the bar are too slow."""
        bounds = self._bounds
        queue = [
            (bounds.least_work(layout), index, False) for index, (layout, _) in enumerate(legal)
        ]
        heapq.heapify(queue)
        while queue:
            bound, index, is_exact = heapq.heappop(queue)
            layout, positions = legal[index]
            if bound >= self._bar:
                choices = tuple(layout.choices[position] for position in positions)
                self._too_slow(layout, choices, layout.micro_batches, bound)
            elif not is_exact:
                moved = {layout.choices[position].strategy.offload for position in positions}
                better = min(bounds.least_step(layout, offload) for offload in moved)
                heapq.heappush(queue, (max(bound, better), index, True))
            else:
                fit = self._fastest_of(layout, positions)
                if fit is not None:
                    self._insert(fit)

    def _exact(self, rough: Refusal) -> Refusal:
        """The refusal with what its smallest layout needs."""
        needs = self._context.smallest(rough.layout, rough.choices, 0.0)
        return replace(rough, needed=needs, rough=False)

    def simplest(self) -> FittingLayout | None:
        """The first layout that fits without offloading, with its largest micro-batch."""
        cluster = self._where.cluster
        for layout in self._context.layouts(cluster.nodes, max(1, len(cluster.gpus))):
            stays = [choice for choice in layout.choices if not choice.strategy.offload]
            if not stays or (self._memory.none_fits(layout, tuple(stays))):
                continue
            for position, choice in enumerate(layout.choices):
                sizes = self._memory.micro_batches(layout, position, {}) if choice in stays else ()
                if sizes:
                    size = sizes[-1]
                    step = self._context.seconds(cluster, layout, choice, size)
                    return FittingLayout(layout, choice, size, step)
        return None

    @property
    def _bar(self) -> float:
        """Seconds that a further layout must beat."""
        outer = self._outer.seconds if self._outer else math.inf
        return min(outer, self._own_bar)

    @property
    def _own_bar(self) -> float:
        return self._best[-1].step.step_seconds if len(self._best) >= self._keep else math.inf

    def _too_slow(
        self,
        layout: ParallelLayout,
        choices: tuple[Choice, ...],
        sizes: tuple[int, ...],
        seconds: float,
        than: float = math.inf,
    ) -> None:
        """Refuse layouts that take at least `seconds`, because of `than`, the best, or the bar."""
        limit = min(than, self._own_bar)
        outer = self._outer
        if outer is not None and outer.seconds <= limit:
            refusal = Refusal(outer.kind, layout, choices, sizes, seconds, outer.seconds, outer)
        else:
            refusal = Refusal(SLOWER, layout, choices, sizes, seconds, limit)
        self._refusals.append(refusal)

    def _insert(self, fit: FittingLayout) -> None:
        self._best.append(fit)
        self._best.sort(key=lambda fitting: fitting.step.step_seconds)
        worse = self._best[self._keep :]
        del self._best[self._keep :]
        for slower in worse:
            self._slower(slower)

    def _slower(self, fit: FittingLayout, than: float = math.inf) -> None:
        seconds = fit.step.step_seconds
        self._too_slow(fit.layout, (fit.choice,), (fit.micro_batch,), seconds, than)

    def _fastest_of(
        self, layout: ParallelLayout, positions: tuple[int, ...]
    ) -> FittingLayout | None:
        """The fastest candidate of a layout, unless it cannot be among the best."""
        choices = tuple(layout.choices[position] for position in positions)
        if self._memory.none_fits(layout, choices):
            return None
        bounds = {
            offload: self._bounds.least_step(layout, offload)
            for offload in self._context.least(layout)
        }
        pairs = sorted(
            (max(bounds[layout.choices[position].strategy.offload], rough), position, -size)
            for size in layout.micro_batches
            for rough in (self._bounds.work(layout, size),)
            for position in positions
        )
        return self._time(layout, pairs)

    def _time(
        self, layout: ParallelLayout, pairs: list[tuple[float, int, int]]
    ) -> FittingLayout | None:
        """Try the candidates in the order of their bounds; account for every one."""
        fitting: Fitting = {}
        loose: set[int] = set()
        tops: dict[int, float] = {}
        best: FittingLayout | None = None
        left: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for rough, position, negative in pairs:
            size, choice = -negative, layout.choices[position]
            bar = min(self._bar, best.step.step_seconds if best else math.inf)
            bound = rough
            if rough < bar and _is_dominated(layout, position, size, fitting, loose):
                left.setdefault(("", position), []).append((size, 0.0))
                continue
            if rough < bar:
                s = choice.strategy
                bound = max(rough, self._bounds.step(layout, size, s.recompute, s.offload))
            if bound < bar and position not in fitting and choice.strategy.offload:
                bound = max(bound, self._in_one_piece(layout, choice, tops))
            if bound >= bar:
                left.setdefault((SLOWER, position), []).append((size, bound))
            elif size not in self._memory.micro_batches(layout, position, fitting):
                left.setdefault((MEMORY, position), []).append((size, 0.0))
            else:
                step = self._context.seconds(self._where.cluster, layout, choice, size)
                fit = FittingLayout(layout, choice, size, step)
                if _waits_twice(step):
                    loose.add(position)
                if step.step_seconds < bar:
                    fit, best = best, fit
                if fit is not None:
                    self._slower(fit, best.step.step_seconds if best else math.inf)
        self._account(layout, left, best)
        return best

    def _in_one_piece(
        self, layout: ParallelLayout, choice: Choice, seconds_by_choice: dict[int, float]
    ) -> float:
        """A step with the largest micro-batch: without pipeline no other is faster.

        Asked for offloading before memory is, which would have to be weighed several times.
        """
        if layout.strategy.pp > 1:
            return 0.0
        if id(choice) not in seconds_by_choice:
            size = layout.micro_batches[-1]
            step = self._context.seconds(self._where.cluster, layout, choice, size)
            seconds_by_choice[id(choice)] = step.step_seconds
        return seconds_by_choice[id(choice)]

    def _account(
        self,
        layout: ParallelLayout,
        left: dict[tuple[str, int], list[tuple[int, float]]],
        best: FittingLayout | None,
    ) -> None:
        """One refusal per reason and choice."""
        than = best.step.step_seconds if best else math.inf
        for (kind, position), pairs in left.items():
            choice = layout.choices[position]
            sizes = tuple(sorted(size for size, _ in pairs))
            if kind == MEMORY:
                needs = min(self._context.bytes(layout, choice, size) for size in sizes[:1])
                refusal = Refusal(MEMORY, layout, (choice,), sizes, needs, self._memory.limit)
                self._refusals.append(refusal)
            elif kind == SLOWER:
                bound = min(bound for _, bound in pairs)
                self._too_slow(layout, (choice,), sizes, bound, than)
            else:  # a layout that does less work fits
                self._refusals.append(Refusal(SLOWER, layout, (choice,), sizes))


def _is_dominated(
    layout: ParallelLayout, position: int, size: int, fitting: Fitting, loose: set[int]
) -> bool:
    """Whether a layout that fits does the same with less work: lighter, or in larger pieces."""
    flat = layout.strategy.pp == 1
    for other in layout.choices[position].lighter:
        sizes = fitting.get(other, ())
        if other not in loose and (size in sizes or (flat and sizes and sizes[-1] >= size)):
            return True
    own_sizes = fitting.get(position, ())
    return flat and bool(own_sizes) and own_sizes[-1] > size


def _waits_twice(step: StepTime) -> bool:
    """Whether it waits for the host and for others.

    `step_time` adds both, so more work can hide more than it takes: less recompute proves nothing.
    """
    host = "kernel launches" in step.parts or "offload traffic" in step.parts
    return host and step.exposed_seconds > 0
