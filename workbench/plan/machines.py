"""The fastest layouts on one kind of machine: memory, then time, and a reason for all others.

Exact although most layouts are never timed, by laws of `step_time` and `training_memory` that
tests/plan holds against brute force: (1) the same work with less recompute or less offload is never
slower; (2) without pipeline a larger micro-batch is never slower; (3) a larger micro-batch needs
more memory as long as gradients are accumulated; (4) no data parallelism is faster than none at
all, and N ranks are never more than N times as fast as one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import SAFETY
from workbench.estimate.stages import rank_elements, stages
from workbench.estimate.states import states
from workbench.estimate.step_time import step_time
from workbench.estimate.switching import HOST_BYTES_PER_GPU
from workbench.estimate.timing import StepTime
from workbench.plan.refusals import HOST, LAYOUT, MEMORY, SLOWER, Refusal
from workbench.plan.space import Choice, Space, Spread, spreads

_OPTIMIZER = "optimizer"  # the part of a step that sharding makes shorter than on one replica


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout that fits, with its time."""

    spread: Spread
    choice: Choice
    micro_batch: int
    step: StepTime

    @property
    def accumulate(self) -> int:
        """Micro-batches per optimizer step."""
        return self.spread.accumulate(self.micro_batch)


@dataclass(frozen=True, slots=True)
class Machines:
    """Equal machines as the search sees them: what decides memory and time, no price."""

    cluster: Cluster
    host_bytes: float
    """Host memory per GPU that offloading may take."""

    @property
    def card_bytes(self) -> int:
        """Memory of the smallest card."""
        return min(gpu.memory_bytes for gpu in self.cluster.gpus)

    @property
    def key(self) -> tuple[object, ...]:
        """What two clusters must share to have the same answer."""
        c = self.cluster
        fabric = (c.network.kind, c.network.bytes_per_second) if c.network else None
        gpu = c.accelerator.id if c.accelerator else ""
        return (gpu, self.card_bytes, len(c.gpus), c.nodes, c.link, fabric, self.host_bytes)


def machines(cluster: Cluster) -> Machines:
    """`cluster` with the host memory that each of its GPUs may use."""
    memory, gpus = cluster.memory_bytes, max(1, len(cluster.gpus))
    return Machines(cluster, memory / gpus if memory else HOST_BYTES_PER_GPU)


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind of machine can do."""

    best: tuple[Fit, ...]
    """The fastest layout of each of the best spreads, fastest first; empty = nothing fits."""
    refusals: tuple[Refusal, ...]
    """Every other layout."""
    layouts: int
    """All layouts looked at: those of `refusals` and `best`."""

    @property
    def nearest(self) -> Refusal | None:
        """The refusal for memory that lacks least."""
        short = [one for one in self.refusals if one.kind in {MEMORY, HOST}]
        return min(short, key=lambda one: one.found - one.limit, default=None)


@dataclass
class Case:
    """One workload at one global batch; remembers what does not depend on the machine."""

    workload: Workload
    batch: int
    space: Space
    conditions: Conditions | None = None
    timed: int = 0
    """Calls of `step_time`, for the benchmark."""
    weighed: int = 0
    """Calls of `training_memory`, for the benchmark."""
    _spreads: dict[tuple[int, int], tuple[Spread, ...]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _works: dict[tuple[int, int], Workload] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _micro: dict[object, float] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _alone: dict[str, StepTime] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _host: dict[int, float] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]

    def spreads(self, nodes: int, per_node: int) -> tuple[Spread, ...]:
        """Every spread over that many ranks."""
        key = (nodes, per_node)
        if key not in self._spreads:
            self._spreads[key] = spreads(
                self.workload, nodes=nodes, per_node=per_node, batch=self.batch, space=self.space
            )
        return self._spreads[key]

    def work(self, micro_batch: int, accumulate: int) -> Workload:
        """The workload with another micro-batch."""
        key = (micro_batch, accumulate)
        if key not in self._works:
            self._works[key] = replace(
                self.workload, micro_batch=micro_batch, accumulate=accumulate
            )
        return self._works[key]

    def bytes(self, spread: Spread, choice: Choice, size: int) -> int:
        """What one rank needs on its card; asked once for all cards."""
        known = choice.fits.get(size)
        if known is None:
            self.weighed += 1
            work = self.work(size, spread.accumulate(size))
            known = training_memory(work, choice.strategy, "cuda").on_card_bytes
            choice.fits[size] = known
        return known

    def seconds(self, cluster: Cluster, spread: Spread, choice: Choice, size: int) -> StepTime:
        """One optimizer step."""
        self.timed += 1
        work = self.work(size, spread.accumulate(size))
        return step_time(work, choice.strategy, cluster, self.conditions)

    def host_bytes(self, spread: Spread, choice: Choice) -> float:
        """What offloading puts into host memory, per GPU: the fullest stage's states."""
        known = self._host.get(id(choice))
        if known is None:
            work = self.work(spread.micro_batches[0], spread.accumulate(spread.micro_batches[0]))
            stays = replace(choice.strategy, offload=())
            known = 0.0
            for stage in stages(work.model, stays, work.accumulate):
                held = states(work, stays, rank_elements(work, stays, stage))
                moved = held.master + held.optimizer
                if "parameters" in choice.strategy.offload:
                    moved += held.weights + held.gradients
                known = max(known, moved)
            self._host[id(choice)] = known
        return known

    def micro_seconds(self, where: Machines, spread: Spread, size: int, recompute: str) -> float:
        """One micro-batch through the whole model on one replica: no data parallelism at all.

        Pipeline stages are laid end to end; what one rank of the tensor and context group takes.
        """
        s, cluster = spread.strategy, where.cluster
        inside = s.tp * s.cp <= len(cluster.gpus)
        key = (where.key[:-1] if not inside else where.key[:3], where.cluster.link)
        full = (*key, s.tp, s.cp, s.sequence_parallel, size, recompute)
        known = self._micro.get(full)
        if known is None:
            self.timed += 1
            strategy = replace(
                spread.choices[0].strategy,
                dp_replicate=1,
                dp_shard=1,
                pp=1,
                ep=1,
                zero_stage=None,
                recompute=recompute,
                offload=(),
            )
            one = replace(cluster, nodes=1) if inside else cluster
            step = step_time(self.work(size, 1), strategy, one, self.conditions)
            known = step.step_seconds - step.parts.get(_OPTIMIZER, 0.0)
            self._micro[full] = known
        return known

    def ideal(self, cluster: Cluster) -> StepTime:
        """No step on these machines is shorter: one GPU's best, shared out without any loss."""
        assert cluster.accelerator is not None
        key = cluster.accelerator.id
        if key not in self._alone:
            self.timed += 1
            one = replace(cluster, gpus=cluster.gpus[:1], nodes=1)
            single = Strategy(name="single")
            self._alone[key] = step_time(self.work(self.batch, 1), single, one, self.conditions)
        best, ranks = self._alone[key], cluster.world_size
        parts = {name: seconds / ranks for name, seconds in best.parts.items()}
        peak = best.peak_flops and best.peak_flops * ranks
        return replace(best, parts=parts, gpus=ranks, peak_flops=peak)


class Search:
    """Finds the best `keep` spreads on one kind of machine; use it once."""

    def __init__(self, case: Case, where: Machines, keep: int = 1) -> None:
        self._case, self._where, self._keep = case, where, keep
        self._limit = (1 - SAFETY) * where.card_bytes
        self._best: list[Fit] = []
        self._refusals: list[Refusal] = []

    def run(self) -> Found:
        """Look at every spread."""
        cluster = self._where.cluster
        every = self._case.spreads(cluster.nodes, max(1, len(cluster.gpus)))
        for spread in every:
            if spread.reason:
                self._refusals.append(Refusal(LAYOUT, spread))
                continue
            open_choices = tuple(
                position
                for position, choice in enumerate(spread.choices)
                if self._host_holds(spread, choice)
            )
            fit = self._spread(spread, open_choices) if open_choices else None
            if fit is not None:
                self._insert(fit)
        return Found(
            best=tuple(self._best),
            refusals=tuple(self._refusals),
            layouts=sum(spread.count for spread in every),
        )

    @property
    def _bar(self) -> float:
        """Seconds that a further spread must beat."""
        return self._best[-1].step.step_seconds if len(self._best) >= self._keep else math.inf

    def _insert(self, fit: Fit) -> None:
        self._best.append(fit)
        self._best.sort(key=lambda one: one.step.step_seconds)
        for worse in self._best[self._keep :]:
            self._slower(worse, worse.step.step_seconds, self._bar)
        del self._best[self._keep :]

    def _slower(self, fit: Fit, seconds: float, bar: float) -> None:
        refusal = Refusal(SLOWER, fit.spread, (fit.choice,), (fit.micro_batch,), seconds, bar)
        self._refusals.append(refusal)

    def _host_holds(self, spread: Spread, choice: Choice) -> bool:
        needed = self._case.host_bytes(spread, choice) if choice.strategy.offload else 0
        if needed <= self._where.host_bytes:
            return True
        sizes, limit = spread.micro_batches, self._where.host_bytes
        self._refusals.append(Refusal(HOST, spread, (choice,), sizes, needed, limit))
        return False

    def _spread(self, spread: Spread, positions: tuple[int, ...]) -> Fit | None:
        """The fastest layout of one spread, unless it cannot be among the best."""
        choices = tuple(spread.choices[position] for position in positions)
        pairs = sorted(
            (self._floor(spread, size, spread.choices[position]), position, -size)
            for position in positions
            for size in spread.micro_batches
        )
        first = pairs[0][0]
        if first >= self._bar:
            refusal = Refusal(SLOWER, spread, choices, spread.micro_batches, first, self._bar)
            self._refusals.append(refusal)
            return None
        if self._none_fits(spread, choices):
            return None
        return self._time(spread, pairs)

    def _time(self, spread: Spread, pairs: list[tuple[float, int, int]]) -> Fit | None:
        """Try the layouts in the order of their floors; account for every one."""
        reach: dict[int, int] = {}
        best: Fit | None = None
        left: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for floor, position, negative in pairs:
            size, choice = -negative, spread.choices[position]
            bar = min(self._bar, best.step.step_seconds if best else math.inf)
            if floor >= bar:
                left.setdefault((SLOWER, position), []).append((size, floor))
            elif _covered(spread, position, size, reach):
                left.setdefault(("", position), []).append((size, 0.0))
            elif size > self._reach(spread, position, reach):
                left.setdefault((MEMORY, position), []).append((size, 0.0))
            else:
                step = self._case.seconds(self._where.cluster, spread, choice, size)
                fit = Fit(spread, choice, size, step)
                if step.step_seconds < bar:
                    fit, best = best, fit
                if fit is not None:
                    self._slower(fit, fit.step.step_seconds, min(bar, step.step_seconds))
        self._account(spread, left, best)
        return best

    def _account(
        self,
        spread: Spread,
        left: dict[tuple[str, int], list[tuple[int, float]]],
        best: Fit | None,
    ) -> None:
        """One refusal per reason and choice."""
        bar = min(self._bar, best.step.step_seconds if best else math.inf)
        for (kind, position), found in left.items():
            choice = spread.choices[position]
            sizes = tuple(sorted(size for size, _ in found))
            if kind == MEMORY:
                needs = min(self._case.bytes(spread, choice, size) for size in sizes[:1])
                refusal = Refusal(MEMORY, spread, (choice,), sizes, needs, self._limit)
            else:
                floor = min(floor for _, floor in found)
                refusal = Refusal(SLOWER, spread, (choice,), sizes, floor, bar)
            self._refusals.append(refusal)

    def _floor(self, spread: Spread, size: int, choice: Choice) -> float:
        """Seconds that a step takes at least: its micro-batches on one replica, spread evenly.

        p stages with m micro-batches work m + p - 1 turns of the slowest stage (arXiv 2104.04473),
        which takes at least 1/p of the whole; other schedules than 1F1B and GPipe idle less.
        """
        s = spread.strategy
        turns = spread.accumulate(size)
        if s.ep > 1:  # experts see more tokens at a time: larger products
            step = self._case.ideal(self._where.cluster)
            return step.step_seconds
        if s.pp > 1 and s.schedule in {"1f1b", "gpipe", "naive"}:
            turns += s.pp - 1
        recompute = choice.strategy.recompute
        return turns / s.pp * self._case.micro_seconds(self._where, spread, size, recompute)

    def _none_fits(self, spread: Spread, choices: tuple[Choice, ...]) -> bool:
        """Whether not even the smallest need of the spread fits; then all of it is refused."""
        sizes, last = spread.micro_batches, choices[-1]
        needs = self._case.bytes(spread, last, sizes[0])
        if needs > self._limit and spread.accumulate(sizes[-1]) == 1:
            needs = min(needs, self._case.bytes(spread, last, sizes[-1]))  # keeps no gradients
        if needs <= self._limit:
            return False
        self._refusals.append(Refusal(MEMORY, spread, choices, sizes, needs, self._limit))
        return True

    def _reach(self, spread: Spread, position: int, known: dict[int, int]) -> int:
        """Largest micro-batch that fits; 0 when none does."""
        if position in known:
            return known[position]
        sizes, choice = spread.micro_batches, spread.choices[position]

        def fits(index: int) -> bool:
            return self._case.bytes(spread, choice, sizes[index]) <= self._limit

        if fits(-1):
            known[position] = sizes[-1]
            return sizes[-1]
        low, high = -1, len(sizes) - 1  # fits(low) or none, not fits(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        known[position] = sizes[low] if low >= 0 else 0
        return known[position]


def _covered(spread: Spread, position: int, size: int, reach: dict[int, int]) -> bool:
    """Whether a layout that fits does the same with less work: lighter, or in larger pieces."""
    if any(reach.get(other, 0) >= size for other in spread.choices[position].lighter):
        return True
    return spread.strategy.pp == 1 and reach.get(position, 0) > size
