"""Seconds that a step takes at least, quicker than `step_time`: what a search is ordered by.

Two bounds: of the work alone, which is the same for all ways of data parallelism; and with what the
data-parallel ranks exchange and what is offloaded, as far as compute can hide it, and the
optimizer's step. tests/plan holds both against `step_time`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.describe import Conditions
from workbench.estimate.context import ways
from workbench.estimate.exchange import exchange
from workbench.estimate.fitted import fitted
from workbench.estimate.network import groups, links
from workbench.estimate.optimizer_time import optimizer_seconds
from workbench.estimate.rank import ranks_of
from workbench.estimate.rates import machine
from workbench.estimate.stack_factor import stack_factor
from workbench.planning.search_context import NodeGroup, SearchContext
from workbench.planning.space import ParallelLayout


class _Overhead(NamedTuple):
    """Seconds of one stage beside its work, nothing hidden."""

    each: float
    """Exchange of one micro-batch."""
    once: float
    """Exchange once per step."""
    moved: float
    """Weights of one micro-batch from the host."""
    optimizer: float
    """Once per step."""


class LowerBounds:
    """LowerBounds on one kind of machine."""

    def __init__(self, context: SearchContext, where: NodeGroup) -> None:
        self._context, self._where = context, where
        measured = context.conditions or Conditions()
        self._links = links(where.cluster, measured)
        work, accelerator = context.workload, where.cluster.accelerator
        assert accelerator is not None, "`SearchContext.ideal` has timed one of them"
        factor = stack_factor(work, "cuda", accelerator.arch)
        self._ratio = factor * (measured.measured_ratio or 1.0)
        self._gpu = machine(accelerator, work.precision, work.kernels.flash_version, measured)
        self._overheads: dict[tuple[int, tuple[str, ...], int], _Overhead] = {}
        nodes = max(1, where.cluster.nodes)
        wait = fitted("spread") * math.sqrt(2 * math.log(nodes)) if nodes > 1 else 0.0
        self._slowest = 1 + wait + measured.straggler
        self._micros: dict[tuple[int, int, int, str, int], float] = {}

    def least_work(self, layout: ParallelLayout) -> float:
        """Work alone: any candidate of the layout."""
        sizes = layout.micro_batches
        if layout.strategy.pp == 1:  # the largest needs the fewest turns
            sizes = sizes[-1:]
        return min(self.work(layout, size) for size in sizes)

    def work(self, layout: ParallelLayout, size: int, recompute: str = "none") -> float:
        """Work alone: its micro-batches on one replica, spread evenly.

        p stages with m micro-batches work m + p - 1 turns of the slowest stage (arXiv 2104.04473),
        which takes at least 1/p of the whole; other schedules than 1F1B and GPipe idle less. A
        micro-batch takes its share of the largest possible one, and no less than one sequence.
        """
        return self._slowest * self._turns(layout, size) * self._turn(layout, size, recompute)

    def least_step(self, layout: ParallelLayout, offload: tuple[str, ...]) -> float:
        """With everything else that is known quickly: any layout that offloads this."""
        sizes = layout.micro_batches
        if layout.strategy.pp == 1:  # the largest exchanges least often
            sizes = sizes[-1:]
        return min(self.step(layout, size, "none", offload) for size in sizes)

    def step(
        self, layout: ParallelLayout, size: int, recompute: str, offload: tuple[str, ...]
    ) -> float:
        """With exchange, offload traffic and the optimizer's step: one layout."""
        s = layout.strategy
        turns, turn = self._turns(layout, size), self._turn(layout, size, recompute)
        overhead = self._overhead(layout, size, offload)
        offload_share, hidden = fitted("offload_beside"), 1 - fitted("contention")
        # Where both hide behind the same work, more of it may take less in all: least at this much.
        busy = max(turn, min(overhead.each, overhead.moved / offload_share))
        each = busy + overhead.each - hidden * min(overhead.each, busy)
        each += max(0.0, overhead.moved - offload_share * busy)
        once, count = overhead.once, layout.accumulate(size)
        # what comes once hides behind one micro-batch: gradients behind its backward, weights that
        # a stage gathers once behind its forward
        passes = 1.0
        if ways(s).weights == 1:
            passes = fitted("hideable") * (1.5 if s.overlap_gradients else 1.0)
        once -= hidden * min(once, passes * turn)
        rest = (turns - count) * turn + once + overhead.optimizer
        return self._slowest * (count * each + rest)

    def _overhead(self, layout: ParallelLayout, size: int, offload: tuple[str, ...]) -> _Overhead:
        """Besides its work, what one stage does if nothing hid it; any stage gives a bound."""
        context, s = self._context, layout.strategy
        count = layout.accumulate(size)
        key = (id(layout), offload, count if s.pp > 1 else 1)
        cached = self._overheads.get(key)
        if cached is None:
            plain = context.offloading(layout, offload)
            work, strategy = context.trained(plain, size, count, self._where.cluster)
            ranks = ranks_of(work, strategy)
            rank, peers = ranks[len(ranks) // 2], groups(s, self._links)
            exposed = exchange(rank, self._links, peers, forward=0.0, backward=0.0)
            step = optimizer_seconds(rank, self._gpu)
            moved = 0.0
            if "parameters" in offload:
                size_bytes = 2 * work.compute_bytes * rank.elements.trained
                moved = size_bytes / s.shard_ranks / self._gpu.host_bytes
            cached = _Overhead(
                each=self._ratio * (exposed.forward + exposed.backward),
                once=self._ratio * exposed.once,
                moved=self._ratio * moved,
                optimizer=self._ratio * sum(step.values()),
            )
            self._overheads[key] = cached
        return cached

    @staticmethod
    def _turns(layout: ParallelLayout, size: int) -> int:
        s, turns = layout.strategy, layout.accumulate(size)
        bubble = s.pp > 1 and s.pipeline.schedule in {"1f1b", "gpipe", "naive"}
        return turns + s.pp - 1 if bubble else turns

    def _turn(self, layout: ParallelLayout, size: int, recompute: str) -> float:
        """One micro-batch on one stage."""
        batch = self._context.batch
        share = size / batch * self._micro(layout, recompute, batch)
        return max(share, self._micro(layout, recompute, 1)) / layout.strategy.pp

    def _micro(self, layout: ParallelLayout, recompute: str, size: int) -> float:
        s = layout.strategy
        key = (s.tp, s.cp, s.ep, recompute, size)
        cached = self._micros.get(key)
        if cached is None:
            strategy = layout.choices[0].strategy
            cached = self._context.micro_seconds(self._where, strategy, recompute, size)
            self._micros[key] = cached
        return cached
