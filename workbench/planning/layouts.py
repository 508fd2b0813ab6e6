"""Every way to lay out one workload over the ranks of a machine, legal or not, with the reason.

The global batch is fixed, so every layout does the same optimisation: ranks and micro-batch decide
how often a step accumulates. Ranks are dealt tp, cp, dp, pp from the inside (as Megatron and
torch's DeviceMesh do), so tensor parallelism stays within a node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from workbench.describe import Strategy, Workload
from workbench.describe.strategy import RECOMPUTE
from workbench.describe.supported import launchable, why_not, why_not_in
from workbench.errors import UsageError
from workbench.estimate.memory import check_layout
from workbench.estimate.sizing.strategy_switches import layout_name
from workbench.estimate.stages import stages
from workbench.planning.space import Choice, ParallelLayout, Space

OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("optimizer",), ("optimizer", "parameters"))
CONTEXT_SLICE = 2048
"""Fewest tokens of a sequence that one context-parallel rank is given: below it attention is too
short to hide the ring's messages."""


def enumerate_layouts(
    workload: Workload, *, nodes: int, per_node: int, batch: int, space: Space
) -> tuple[ParallelLayout, ...]:
    """Every layout of `nodes` x `per_node` ranks; simple ones (no model parallelism) first.

    Args:
        workload: What is trained; its own micro-batch and accumulation do not matter.
        nodes: Machines.
        per_node: GPUs of one.
        batch: Sequences per optimizer step, all ranks.
        space: What to look at.
    """
    world = nodes * per_node
    layouts: list[ParallelLayout] = []
    for pp in _divisors(world):
        for tp in _divisors(world // pp):
            for cp in _divisors(world // pp // tp):
                reason = _degree_reason(workload, per_node, space, tp=tp, cp=cp, pp=pp)
                ranks = world // (pp * tp * cp)
                degrees = {"tp": tp, "cp": cp, "pp": pp, "schedule": space.schedule}
                base = Strategy(name="").with_options(**degrees)
                if reason:
                    layouts.append(_named(replace(base, dp_replicate=ranks), reason))
                    continue
                sequences = tp > 1 and workload.sequence % tp == 0
                base = replace(base, sequence_parallel=sequences)
                for strategy in _data(base, ranks, space):
                    layouts += _experts(workload, strategy, batch, space)
    return tuple(sorted(layouts, key=_simplicity))


def _simplicity(layout: ParallelLayout) -> tuple[int, ...]:
    s = layout.strategy
    return (s.tp * s.cp * s.pp * s.ep, s.pp, s.cp, s.tp, s.zero_stage is not None, s.dp_shard)


@functools.cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _degree_reason(  # noqa: PLR0911  (one line per rule)
    workload: Workload, per_node: int, space: Space, *, tp: int, cp: int, pp: int
) -> str:
    """Why these degrees cannot be, in words; empty when they can."""
    model = workload.model
    if model.kind == "module" and max(tp, cp, pp) > 1:
        return f"{model.name} is a traced module: only data parallelism is known for it"
    if model.kind == "vision" and cp > 1:
        return "an image's patches are not split over context-parallel ranks"
    if tp > (space.most_tp or tp) or pp > space.most_pp or cp > (space.most_cp or cp):
        return f"tp {tp}, pp {pp}, cp {cp}: more than is looked at"
    if not space.tp_across_nodes and per_node % tp:
        return f"tp {tp} would leave the node of {per_node} GPUs"
    if cp > 1 and workload.sequence % cp == 0 and workload.sequence // cp < CONTEXT_SLICE:
        return (
            f"cp {cp} would leave {workload.sequence // cp:,} tokens of a sequence per rank; "
            f"at least {CONTEXT_SLICE:,} are worth it"
        )
    strategy = Strategy(name="", tp=tp, cp=cp, pp=pp)
    try:
        check_layout(workload, strategy)
        stages(model, strategy, 1)
    except UsageError as error:
        return str(error)
    return ""


def _data(base: Strategy, ranks: int, space: Space) -> Iterator[Strategy]:
    """Every way of data parallelism over `ranks`."""
    if ranks == 1:
        yield base
        if base.world_size == 1 and space.offload:
            # What the launcher can start with states (2) and weights (3) in host memory.
            yield replace(base, zero_stage=2)
            yield replace(base, zero_stage=3)
        return
    sharded = replace(base, dp_shard=ranks)
    degrees = {
        "ddp": replace(base, dp_replicate=ranks),
        "fsdp": sharded,
        "fsdp-grad-op": sharded.with_options(reshard_after_forward=False),
        **{f"zero{stage}": replace(sharded, zero_stage=stage) for stage in (1, 2, 3)},
    }
    for name in space.data:
        if name == "fsdp-grad-op" and base.keeps_gathered_weights and "fsdp" in space.data:
            continue  # the same as fsdp there
        if name in degrees:
            yield degrees[name]
        else:
            for replicas in _divisors(ranks)[1:-1]:
                yield replace(base, dp_replicate=replicas, dp_shard=ranks // replicas)


def _experts(
    workload: Workload, strategy: Strategy, batch: int, space: Space
) -> Iterator[ParallelLayout]:
    """The layout with every expert-parallel degree, its batch shared out."""
    model = workload.model
    ranks = strategy.data_ranks * strategy.cp * strategy.tp
    degrees = [
        ep for ep in _divisors(ranks) if ep == 1 or (model.experts and not model.experts % ep)
    ]
    for ep in degrees:
        split = strategy if ep == strategy.ep else replace(strategy, ep=ep)
        if batch % split.data_ranks:
            ranks = split.data_ranks
            yield _named(split, f"a batch of {batch} sequences cannot be split over {ranks} ranks")
        else:
            yield _legal(workload, split, batch, space)


def _legal(workload: Workload, strategy: Strategy, batch: int, space: Space) -> ParallelLayout:
    share = batch // strategy.data_ranks
    sizes = tuple(
        size
        for size in _divisors(share)
        if (size == share or size & (size - 1) == 0) and share // size >= strategy.pp
    )
    if not sizes:
        reason = f"{share} sequences per rank make fewer micro-batches than {strategy.pp} stages"
        return _named(strategy, reason)
    if workload.kernels.optimizer_in_backward:
        if strategy.world_size > 1:
            return _named(strategy, "an optimizer in backward runs on one GPU")
        sizes = sizes[-1:]
    named = replace(strategy, name=layout_name(strategy))
    choices = _choices(workload, named, space)
    if not choices:
        reason = why_not(named)
        if space.launchable and not space.any_script and launchable(named):
            reason = why_not_in(named, workload.precision) or reason
        if not reason:
            return _named(strategy, "one GPU shards nothing")
        return replace(_named(strategy, reason), is_launchable=False)
    return ParallelLayout(strategy=named, micro_batches=sizes, share=share, choices=choices)


def _named(strategy: Strategy, reason: str) -> ParallelLayout:
    return ParallelLayout(strategy=replace(strategy, name=layout_name(strategy)), reason=reason)


def _choices(workload: Workload, strategy: Strategy, space: Space) -> tuple[Choice, ...]:
    offloads = [offload for offload in OFFLOADS if _can_offload(strategy, offload, space)]
    levels = [level for level in RECOMPUTE if level in space.recompute]
    if workload.model.kind == "module" and "selective" in levels:
        levels.remove("selective")
    # Fused attention keeps no scores, so recomputing its core saves nothing: torchtitan's way then.
    parts = ("attention",) if workload.attention == "eager" else ("op",)
    partly = {"recompute": "selective", "recompute_parts": parts}
    strategies = {
        (offload, level): replace(
            strategy, offload=offload, **(partly if level == "selective" else {"recompute": level})
        )
        for offload in offloads
        for level in levels
    }
    pairs = [
        pair for pair, full in strategies.items() if _proposed(full, workload.precision, space)
    ]
    return tuple(
        Choice(
            strategy=strategies[offload, level],
            lighter=tuple(
                index
                for index, (other, less) in enumerate(pairs[:position])
                if set(other) <= set(offload) and levels.index(less) <= levels.index(level)
            ),
        )
        for position, (offload, level) in enumerate(pairs)
    )


def _proposed(strategy: Strategy, precision: str, space: Space) -> bool:
    """Whether the layout may be a plan: what the launcher refuses is not one."""
    if not space.launchable:
        return True
    return launchable(strategy, any_script=space.any_script, precision=precision)


def _can_offload(strategy: Strategy, parts: tuple[str, ...], space: Space) -> bool:
    """DeepSpeed moves optimizer states (stage 3: weights too), FSDP both; one GPU needs ZeRO."""
    third = strategy.zero_stage == 3
    single_zero = strategy.zero_stage is not None and strategy.world_size == 1
    if not parts:
        return not single_zero
    if not space.offload:
        return False
    if "parameters" in parts:
        return third or (strategy.zero_stage is None and strategy.shard_ranks > 1)
    return strategy.zero_stage is not None and not (single_zero and third)
