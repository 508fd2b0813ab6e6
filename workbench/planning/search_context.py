"""One workload at one global batch, and what is remembered of it while machines are compared.

Memory does not depend on the card, a replica's micro-batch not on how many replicas there are: both
are asked once and shared by all offers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.describe.job import Job
from workbench.describe.supported import is_counted
from workbench.describe.trainers import Assumption, Preset
from workbench.estimate.card import offloaded_bytes
from workbench.estimate.memory import least_bytes, needed_bytes
from workbench.estimate.rank import ranks_of
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import COMMUNICATION, STACK, StepTime
from workbench.planning.layouts import enumerate_layouts
from workbench.planning.space import Choice, ParallelLayout, Space

# Parts of a step that no data parallelism, sharding or pipeline makes shorter per token.
_WORK = (
    *("matmul", "attention", "memory-bound operations", "recompute", STACK),
    *(f"{COMMUNICATION}: tp", f"{COMMUNICATION}: cp", f"{COMMUNICATION}: ep"),
)


@dataclass(frozen=True, slots=True)
class NodeGroup:
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


def node_group(cluster: Cluster) -> NodeGroup:
    """`cluster` with the host memory that each of its GPUs may use."""
    return NodeGroup(cluster, cluster.host_bytes_per_gpu)


@dataclass
class SearchContext:
    """One workload at one global batch; remembers what does not depend on the machine."""

    workload: Workload
    batch: int
    space: Space
    conditions: Conditions | None = None
    job: Job | None = None
    """The job whose trainer runs the layouts; None = they differ in nothing but themselves."""
    timed: int = 0
    """Calls of `step_time`, for the benchmark."""
    weighed: int = 0
    """Layouts whose memory was worked out, for the benchmark."""
    _layouts: dict[tuple[int, int], tuple[ParallelLayout, ...]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _works: dict[tuple[int, int], Workload] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _trained: dict[object, tuple[Workload, dict[str, Any]]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _micro: dict[object, float] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _bytes: dict[tuple[object, ...], int] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _least: dict[int, dict[tuple[str, ...], int]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _single_gpu_steps: dict[str, StepTime] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _host: dict[tuple[int, tuple[str, ...]], float] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]

    def layouts(self, nodes: int, per_node: int) -> tuple[ParallelLayout, ...]:
        """Every layout of that many ranks."""
        key = (nodes, per_node)
        if key not in self._layouts:
            self._layouts[key] = enumerate_layouts(
                self.workload, nodes=nodes, per_node=per_node, batch=self.batch, space=self.space
            )
        return self._layouts[key]

    def work(self, micro_batch: int, accumulate: int) -> Workload:
        """The workload with another micro-batch."""
        key = (micro_batch, accumulate)
        if key not in self._works:
            self._works[key] = replace(
                self.workload, micro_batch=micro_batch, accumulate=accumulate
            )
        return self._works[key]

    def trained(
        self, strategy: Strategy, micro_batch: int, accumulate: int, cluster: Cluster | None = None
    ) -> tuple[Workload, Strategy]:
        """What the job's trainer makes of that micro-batch in a layout, and of the layout."""
        work = self.work(micro_batch, accumulate)
        if self.job is None or not self.job.has_named_trainer:
            return work, strategy
        card = cluster.accelerator if cluster else None
        s, arch = strategy, card.arch if card else ""
        key = (
            *(s.zero_stage, s.dp_shard > 1, s.dp_replicate > 1, s.tp, s.pp > 1, s.cp, s.ep),
            *(bool(s.offload), s.data_ranks * s.cp % s.ep, arch),
        )
        cached = self._trained.get(key)
        if cached is None:
            cached = self._trained[key] = self.job.in_layout(strategy, arch)
        workload, own = cached
        own = {name: value for name, value in own.items() if is_counted(strategy, name, value)}
        return (
            replace(workload, micro_batch=micro_batch, accumulate=accumulate),
            strategy.with_options(**own) if own else strategy,
        )

    def trainer(self, strategy: Strategy, trained: Strategy) -> Preset | None:
        """The job's named trainer with what it makes of a layout; None = none is named."""
        if self.job is None or self.job.trainer is None or not self.job.has_named_trainer:
            return None
        trainer, before, after = self.job.trainer, strategy.options(), trained.options()
        kept = (each for each in trainer.assumptions if each.field not in after)
        name = trainer.trainer.name
        own = (
            Assumption(field=option, value=value, source="", trainer=name)
            for option, value in after.items()
            if value != before[option]
        )
        return replace(trainer, assumptions=(*kept, *own))

    def bytes(self, layout: ParallelLayout, choice: Choice, size: int) -> int:
        """What one rank needs on its card; asked once for all cards."""
        cached = choice.fits.get(size)
        if cached is None:
            key = (
                self._memory_key(choice.strategy),
                size,
                self._counted_micro_batches(layout, size),
            )
            cached = self._bytes.get(key)
            if cached is None:
                self.weighed += 1
                work = self.trained(choice.strategy, size, layout.accumulate(size))
                self._bytes[key] = cached = needed_bytes(*work)
            choice.fits[size] = cached
        return cached

    def least(self, layout: ParallelLayout) -> dict[tuple[str, ...], int]:
        """What is offloaded -> no candidate of the layout needs less: states and buffers alone."""
        cached = self._least.get(id(layout))
        if cached is None:
            size = layout.micro_batches[0]
            by_offload = {choice.strategy.offload: choice.strategy for choice in layout.choices}
            cached = {
                offload: least_bytes(*self.trained(strategy, size, layout.accumulate(size)))
                for offload, strategy in by_offload.items()
            }
            self._least[id(layout)] = cached
        return cached

    def offloading(self, layout: ParallelLayout, offload: tuple[str, ...]) -> Strategy:
        """The layout's strategy with this in host memory."""
        return next(
            choice.strategy for choice in layout.choices if choice.strategy.offload == offload
        )

    def smallest(self, layout: ParallelLayout, choices: tuple[Choice, ...], limit: float) -> int:
        """What the smallest layout of these choices needs, or the first found within `limit`."""
        sizes, most = layout.micro_batches, choices[-1].strategy.offload
        # A block that runs again may need more than it saves where activations are few.
        smallest = [choice for choice in reversed(choices) if choice.strategy.offload == most]
        try_last = layout.accumulate(sizes[-1]) == layout.strategy.pp  # see `MemorySearch._weigh`
        needs: int | None = None
        for size in (sizes[0], sizes[-1]) if try_last else sizes[:1]:
            for choice in smallest:
                size_bytes = self.bytes(layout, choice, size)
                needs = size_bytes if needs is None else min(needs, size_bytes)
                if needs <= limit:
                    return needs
        assert needs is not None
        return needs

    def _memory_key(self, strategy: Strategy) -> tuple[object, ...]:
        """What decides memory: of replicas, whether there is more than one."""
        s = strategy
        return (
            *(s.dp_replicate > 1, s.dp_shard, s.tp, s.cp, s.pp, s.ep, s.zero_stage),
            *(s.fsdp.reshard_after_forward, s.sequence_parallel, s.recompute, s.offload),
        )

    def _counted_micro_batches(self, layout: ParallelLayout, size: int) -> int:
        """Micro-batches per step as far as memory notices: more than are in flight do not count."""
        count = layout.accumulate(size)
        if layout.strategy.pipeline.schedule == "gpipe":
            return count
        return min(count, 2 * layout.strategy.pp)

    def seconds(
        self, cluster: Cluster, layout: ParallelLayout, choice: Choice, size: int
    ) -> StepTime:
        """One optimizer step."""
        self.timed += 1
        work, strategy = self.trained(choice.strategy, size, layout.accumulate(size), cluster)
        return step_time(work, strategy, cluster, self.conditions)

    def host_bytes(self, layout: ParallelLayout, choice: Choice) -> float:
        """What offloading puts into host memory, per GPU: states of the first or the last stage."""
        if not choice.strategy.offload:
            return 0.0
        key = (id(layout), choice.strategy.offload)
        cached = self._host.get(key)
        if cached is None:
            size = layout.micro_batches[0]
            ranks = ranks_of(*self.trained(choice.strategy, size, layout.accumulate(size)))
            cached = float(max(offloaded_bytes(rank) for rank in (ranks[0], ranks[-1])))
            self._host[key] = cached
        return cached

    def micro_seconds(
        self, where: NodeGroup, strategy: Strategy, recompute: str, size: int
    ) -> float:
        """One micro-batch of `size` sequences through the whole model on one replica.

        Pipeline stages lie end to end and nothing is said between replicas: what no layout with
        these tensor, context and expert degrees undercuts.
        """
        s, cluster = strategy, where.cluster
        inner = s.tp * s.cp
        copies = s.ep // math.gcd(s.ep, inner)
        inside = inner * copies <= len(cluster.gpus)
        key = (where.key[:3] if inside else where.key[:-1], cluster.link, s.tp, s.cp, s.ep)
        full = (*key, s.sequence_parallel, recompute, size)
        cached = self._micro.get(full)
        if cached is None:
            self.timed += 1
            # More replicas than needed change nothing here: their exchange is not counted.
            replicas = copies if inside else cluster.world_size // inner
            degrees = {"dp_replicate": replicas, "dp_shard": 1, "pp": 1}
            plain = {"zero_stage": None, "recompute": recompute, "offload": ()}
            part = cluster.gpus[: inner * copies]
            nodes = replace(cluster, gpus=part, nodes=1) if inside else cluster
            one_replica = replace(
                s, **degrees, **plain, pipeline=replace(s.pipeline, virtual_stages=1)
            )
            work, _ = self.trained(strategy, size, 1, cluster)
            step = step_time(work, one_replica, nodes, self.conditions)
            counted = _WORK if inner * copies > 1 else (*_WORK, "kernel launches")
            cached = sum(step.parts.get(name, 0.0) for name in counted) * step.calibration_factor
            self._micro[full] = cached
        return cached

    def ideal(self, cluster: Cluster) -> StepTime:
        """No step on these machines is shorter: one GPU's best, shared out without any loss."""
        assert cluster.accelerator is not None
        key = cluster.accelerator.id
        if key not in self._single_gpu_steps:
            self.timed += 1
            gpu = replace(cluster, gpus=cluster.gpus[:1], nodes=1)
            single = Strategy(name="single")
            work, _ = self.trained(single, self.batch, 1, gpu)
            self._single_gpu_steps[key] = step_time(work, single, gpu, self.conditions)
        best, ranks = self._single_gpu_steps[key], cluster.world_size
        parts = {name: seconds / ranks for name, seconds in best.parts.items()}
        peak = best.peak_flops and best.peak_flops * ranks
        return replace(best, parts=parts, gpus=ranks, peak_flops=peak)
