"""The fastest layouts on one kind of machine: memory, then time, and a reason for all others.

Exact although most layouts are never timed, by laws of `step_time` and `training_memory` that
tests/plan holds against brute force: (1) the same work with less recompute or less offload is never
slower; (2) without pipeline a larger micro-batch is never slower; (3) a larger micro-batch needs
more memory while there are more of them than stages; (4) no data parallelism is faster than none at
all, and N ranks are never more than N times as fast as one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace

from workbench.estimate.parts import SAFETY
from workbench.plan.case import Case, Machines
from workbench.plan.covered import Fitting, covered, waits_twice
from workbench.plan.floors import Floors
from workbench.plan.found import Fit, Found
from workbench.plan.refusals import HOST, LAYOUT, MEMORY, SLOWER, Bar, Refusal
from workbench.plan.space import Choice, Spread


class LayoutSearch:
    """Finds the best `keep` spreads on one kind of machine; use it once."""

    def __init__(self, case: Case, where: Machines, keep: int = 1, bar: Bar | None = None) -> None:
        self._case, self._where, self._keep, self._outer = case, where, keep, bar
        self._limit = (1 - SAFETY) * where.card_bytes
        self._best: list[Fit] = []
        self._refusals: list[Refusal] = []
        self._floors = Floors(case, where)

    def run(self) -> Found:
        """Look at every spread."""
        cluster = self._where.cluster
        every = self._case.spreads(cluster.nodes, max(1, len(cluster.gpus)))
        legal: list[tuple[Spread, tuple[int, ...]]] = []
        for spread in every:
            if spread.reason:
                self._refusals.append(Refusal(LAYOUT, spread))
            elif positions := self._possible(spread):
                legal.append((spread, positions))
        self._search(legal)
        refused: Counter[str] = Counter()
        for refusal in self._refusals:
            refused[refusal.kind] += refusal.count
        return Found(
            best=tuple(self._best),
            refusals=tuple(self._refusals),
            layouts=sum(spread.count for spread in every),
            refused=refused,
            bar=self._outer.seconds if self._outer else math.inf,
            weigh=self._exact,
        )

    def _possible(self, spread: Spread) -> tuple[int, ...]:
        """Choices whose states alone are not too much for the card or the host."""
        least, limit = self._case.least(spread), self._limit
        sizes, needs = spread.micro_batches, min(least.values())
        if needs > limit:
            one = Refusal(MEMORY, spread, spread.choices, sizes, needs, limit, rough=True)
            self._refusals.append(one)
            return ()
        left: list[int] = []
        for position, choice in enumerate(spread.choices):
            needs = least[choice.strategy.offload]
            if needs > limit:
                one = Refusal(MEMORY, spread, (choice,), sizes, needs, limit, rough=True)
                self._refusals.append(one)
            elif self._host_holds(spread, choice):
                left.append(position)
        return tuple(left)

    def _search(self, legal: list[tuple[Spread, tuple[int, ...]]]) -> None:
        """In the order of their floors, the quick one first; those of the rest are too slow."""
        floors = self._floors
        queue = [(floors.least(spread), index, False) for index, (spread, _) in enumerate(legal)]
        heapq.heapify(queue)
        while queue:
            floor, index, whole = heapq.heappop(queue)
            spread, positions = legal[index]
            if floor >= self._bar:
                choices = tuple(spread.choices[position] for position in positions)
                self._too_slow(spread, choices, spread.micro_batches, floor)
            elif not whole:
                moved = {spread.choices[position].strategy.offload for position in positions}
                better = min(floors.whole(spread, what) for what in moved)
                heapq.heappush(queue, (max(floor, better), index, True))
            else:
                fit = self._spread(spread, positions)
                if fit is not None:
                    self._insert(fit)

    def _exact(self, rough: Refusal) -> Refusal:
        """The refusal with what its smallest layout needs."""
        needs = self._case.smallest(rough.spread, rough.choices, 0.0)
        return replace(rough, found=needs, rough=False)

    def simplest(self) -> Fit | None:
        """The first spread that fits without offloading, with its largest micro-batch."""
        cluster = self._where.cluster
        for spread in self._case.spreads(cluster.nodes, max(1, len(cluster.gpus))):
            stays = [one for one in spread.choices if not one.strategy.offload]
            if not stays or (self._none_fits(spread, tuple(stays))):
                continue
            for position, choice in enumerate(spread.choices):
                sizes = self._fitting(spread, position, {}) if choice in stays else ()
                if sizes:
                    size = sizes[-1]
                    step = self._case.seconds(cluster, spread, choice, size)
                    return Fit(spread, choice, size, step)
        return None

    @property
    def _bar(self) -> float:
        """Seconds that a further spread must beat."""
        outer = self._outer.seconds if self._outer else math.inf
        return min(outer, self._own_bar)

    @property
    def _own_bar(self) -> float:
        return self._best[-1].step.step_seconds if len(self._best) >= self._keep else math.inf

    def _too_slow(
        self,
        spread: Spread,
        choices: tuple[Choice, ...],
        sizes: tuple[int, ...],
        seconds: float,
        than: float = math.inf,
    ) -> None:
        """Refuse layouts that take at least `seconds`, because of `than`, the best, or the bar."""
        limit = min(than, self._own_bar)
        outer = self._outer
        if outer is not None and outer.seconds <= limit:
            one = Refusal(outer.kind, spread, choices, sizes, seconds, outer.seconds, outer)
        else:
            one = Refusal(SLOWER, spread, choices, sizes, seconds, limit)
        self._refusals.append(one)

    def _insert(self, fit: Fit) -> None:
        self._best.append(fit)
        self._best.sort(key=lambda one: one.step.step_seconds)
        worse = self._best[self._keep :]
        del self._best[self._keep :]
        for one in worse:
            self._slower(one)

    def _slower(self, fit: Fit, than: float = math.inf) -> None:
        seconds = fit.step.step_seconds
        self._too_slow(fit.spread, (fit.choice,), (fit.micro_batch,), seconds, than)

    def _host_holds(self, spread: Spread, choice: Choice) -> bool:
        needed = self._case.host_bytes(spread, choice)
        if needed <= self._where.host_bytes:
            return True
        sizes, limit = spread.micro_batches, self._where.host_bytes
        self._refusals.append(Refusal(HOST, spread, (choice,), sizes, needed, limit))
        return False

    def _spread(self, spread: Spread, positions: tuple[int, ...]) -> Fit | None:
        """The fastest layout of one spread, unless it cannot be among the best."""
        choices = tuple(spread.choices[position] for position in positions)
        if self._none_fits(spread, choices):
            return None
        whole = {what: self._floors.whole(spread, what) for what in self._case.least(spread)}
        pairs = sorted(
            (max(whole[spread.choices[position].strategy.offload], rough), position, -size)
            for size in spread.micro_batches
            for rough in (self._floors.work(spread, size),)
            for position in positions
        )
        return self._time(spread, pairs)

    def _time(self, spread: Spread, pairs: list[tuple[float, int, int]]) -> Fit | None:
        """Try the layouts in the order of their floors; account for every one."""
        fitting: Fitting = {}
        loose: set[int] = set()
        tops: dict[int, float] = {}
        best: Fit | None = None
        left: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for rough, position, negative in pairs:
            size, choice = -negative, spread.choices[position]
            bar = min(self._bar, best.step.step_seconds if best else math.inf)
            floor = rough
            if rough < bar and covered(spread, position, size, fitting, loose):
                left.setdefault(("", position), []).append((size, 0.0))
                continue
            if rough < bar:
                s = choice.strategy
                floor = max(rough, self._floors.layout(spread, size, s.recompute, s.offload))
            if floor < bar and position not in fitting and choice.strategy.offload:
                floor = max(floor, self._in_one_piece(spread, choice, tops))
            if floor >= bar:
                left.setdefault((SLOWER, position), []).append((size, floor))
            elif size not in self._fitting(spread, position, fitting):
                left.setdefault((MEMORY, position), []).append((size, 0.0))
            else:
                step = self._case.seconds(self._where.cluster, spread, choice, size)
                fit = Fit(spread, choice, size, step)
                if waits_twice(step):
                    loose.add(position)
                if step.step_seconds < bar:
                    fit, best = best, fit
                if fit is not None:
                    self._slower(fit, best.step.step_seconds if best else math.inf)
        self._account(spread, left, best)
        return best

    def _in_one_piece(self, spread: Spread, choice: Choice, known: dict[int, float]) -> float:
        """A step with the largest micro-batch: without pipeline no other is faster.

        Asked for offloading before memory is, which would have to be weighed several times.
        """
        if spread.strategy.pp > 1:
            return 0.0
        if id(choice) not in known:
            size = spread.micro_batches[-1]
            step = self._case.seconds(self._where.cluster, spread, choice, size)
            known[id(choice)] = step.step_seconds
        return known[id(choice)]

    def _account(
        self,
        spread: Spread,
        left: dict[tuple[str, int], list[tuple[int, float]]],
        best: Fit | None,
    ) -> None:
        """One refusal per reason and choice."""
        than = best.step.step_seconds if best else math.inf
        for (kind, position), found in left.items():
            choice = spread.choices[position]
            sizes = tuple(sorted(size for size, _ in found))
            if kind == MEMORY:
                needs = min(self._case.bytes(spread, choice, size) for size in sizes[:1])
                refusal = Refusal(MEMORY, spread, (choice,), sizes, needs, self._limit)
                self._refusals.append(refusal)
            elif kind == SLOWER:
                floor = min(floor for _, floor in found)
                self._too_slow(spread, (choice,), sizes, floor, than)
            else:  # a layout that does less work fits
                self._refusals.append(Refusal(SLOWER, spread, (choice,), sizes))

    def _none_fits(self, spread: Spread, choices: tuple[Choice, ...]) -> bool:
        """Whether not even the smallest need of the spread fits; then all of it is refused."""
        needs = self._case.smallest(spread, choices, self._limit)
        if needs <= self._limit:
            return False
        sizes = spread.micro_batches
        self._refusals.append(Refusal(MEMORY, spread, choices, sizes, needs, self._limit))
        return True

    def _fitting(self, spread: Spread, position: int, known: Fitting) -> tuple[int, ...]:
        """Micro-batches that fit, ascending."""
        if position not in known:
            known[position] = self._weigh(spread, spread.choices[position])
        return known[position]

    def _weigh(self, spread: Spread, choice: Choice) -> tuple[int, ...]:
        """Find the largest micro-batch that fits by doubling and bisection.

        With as many micro-batches as stages no gradients exist while all activations do: then the
        largest micro-batch may fit where smaller ones do not, and is asked for itself.
        """
        s, sizes = spread.strategy, spread.micro_batches
        apart = spread.accumulate(sizes[-1]) == s.pp
        count = len(sizes) - apart

        def lacks(index: int) -> float:
            return self._case.bytes(spread, choice, sizes[index]) - self._limit

        low, high, step = -1, 0, 1  # fits(low) or none; the next to ask
        while high < count and lacks(high) <= 0:
            low, high, step = high, min(high + step, max(high + 1, count - 1)), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if lacks(middle) <= 0 else (low, middle)
        fits = sizes[: low + 1]
        gradients = 4 * self._case.workload.model.parameters / (s.tp * s.pp)
        near = high >= count or lacks(high) < gradients
        return (*fits, sizes[-1]) if apart and near and lacks(-1) <= 0 else fits
