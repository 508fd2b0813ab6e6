"""Every way to lay out one workload over the ranks of a machine, legal or not, with the reason.

The global batch is fixed, so every layout does the same optimisation: ranks and micro-batch decide
how often a step accumulates. Ranks are dealt tp, cp, dp, pp from the inside (as Megatron and
torch's DeviceMesh do), so tensor parallelism stays within a node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from workbench.describe import Strategy, Workload
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.strategy import RECOMPUTE, SCHEDULES
from workbench.describe.supported import launchable, why_not
from workbench.errors import UsageError
from workbench.estimate.memory import check_layout
from workbench.estimate.sizing.strategy_switches import layout_name
from workbench.estimate.stages import stages

DATA = ("ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero2", "zero3")
OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("optimizer",), ("optimizer", "parameters"))
BATCH_TOKENS = 2**19
"""Tokens per optimizer step where no global batch is given: what GPT-3's models of 125 M to 760 M
parameters were trained with (arXiv 2005.14165, table 2.1)."""
CONTEXT_SLICE = 2048
"""Fewest tokens of a sequence that one context-parallel rank is given: below it attention is too
short to hide the ring's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which layouts are looked at; the defaults are what PyTorch, Accelerate and Megatron run."""

    data: tuple[str, ...] = ("ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1")
    """Ways to lay out data parallelism, of `DATA`; zero2 and zero3 are DeepSpeed's names for what
    FSDP does too."""
    most_tp: int | None = None
    """Largest tensor-parallel degree; None = the GPUs of a node."""
    tp_across_nodes: bool = False
    """Let tensor parallelism leave the node."""
    most_pp: int = 16
    """Most pipeline stages: Llama 3 405B was trained with 16 (arXiv 2407.21783, table 4)."""
    most_cp: int | None = None
    """Largest context-parallel degree; None = what the sequence allows."""
    recompute: tuple[str, ...] = RECOMPUTE
    """Activation checkpointing, lightest first."""
    offload: bool = True
    """Look at optimizer states and weights in host memory too."""
    schedule: str = "1f1b"
    """Pipeline schedule."""
    any_script: bool = False
    """Only layouts that the launcher gives to any script unchanged."""
    launchable: bool = True
    """Leave out what the launcher does not start; False: estimates for other launchers too."""

    def __post_init__(self) -> None:
        for name in self.data:
            require_choice("data parallelism", name, DATA)
        for name in self.recompute:
            require_choice("recompute", name, RECOMPUTE)
        require_choice("schedule", self.schedule, SCHEDULES)
        if not self.data or not self.recompute:
            raise UsageError("A search needs at least one way each of data and recompute.")
        for name in ("most_tp", "most_pp", "most_cp"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


ANY_SCRIPT = Space(
    data=("ddp", "fsdp", "fsdp-grad-op", "hsdp"),
    most_tp=1,
    most_pp=1,
    most_cp=1,
    recompute=("none", "full"),
    offload=False,
    any_script=True,
)
"""Layouts that the launcher gives to any script unchanged: no model parallelism in its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with its recompute and offload decided; only the micro-batch is open."""

    strategy: Strategy
    """Complete strategy."""
    lighter: tuple[int, ...]
    """Choices of the same layout (by position) that do no more work: less recompute and less
    offload. They are never slower at the same micro-batch."""
    fits: dict[int, int] = field(default_factory=dict[int, int], compare=False)
    """Micro-batch -> bytes on the card, as far as anybody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """One set of degrees and one way of data parallelism on a number of ranks."""

    strategy: Strategy
    """Without recompute and offload."""
    reason: str = ""
    """Why no library can run it; empty = legal."""
    micro_batches: tuple[int, ...] = ()
    """Sequences per forward pass and rank, ascending; each divides the rank's share."""
    share: int = 0
    """Sequences per optimizer step and data-parallel rank."""
    choices: tuple[Choice, ...] = ()
    """Recompute x offload, lightest first."""

    @property
    def count(self) -> int:
        """Layouts it stands for; an impossible one counts once."""
        return max(1, len(self.choices) * len(self.micro_batches))

    def accumulate(self, micro_batch: int) -> int:
        """Micro-batches per optimizer step."""
        return self.share // micro_batch


def default_batch(workload: Workload, ranks: int = 1) -> int:
    """Sequences per optimizer step where none are given.

    The smallest power of two that holds `BATCH_TOKENS`, and at least one sequence per rank.

    >>> from workbench.describe import Model
    >>> default_batch(Workload(model=Model.catalog("gpt2"), seq_len=1024, micro_batch=1))
    512
    """
    wanted = max(-(-BATCH_TOKENS // workload.sequence), ranks)
    return 1 << (wanted - 1).bit_length()


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
    found: list[ParallelLayout] = []
    for pp in _divisors(world):
        for tp in _divisors(world // pp):
            for cp in _divisors(world // pp // tp):
                reason = _degree_reason(workload, per_node, space, tp=tp, cp=cp, pp=pp)
                ranks = world // (pp * tp * cp)
                degrees = {"tp": tp, "cp": cp, "pp": pp, "schedule": space.schedule}
                base = Strategy(name="").with_options(**degrees)
                if reason:
                    found.append(_named(replace(base, dp_replicate=ranks), reason))
                    continue
                sequences = tp > 1 and workload.sequence % tp == 0
                base = replace(base, sequence_parallel=sequences)
                for strategy in _data(base, ranks, space):
                    found += _experts(workload, strategy, batch, space)
    return tuple(sorted(found, key=_simplicity))


def _simplicity(layout: ParallelLayout) -> tuple[int, ...]:
    s = layout.strategy
    return (s.tp * s.cp * s.pp * s.ep, s.pp, s.cp, s.tp, s.zero_stage is not None, s.dp_shard)


@functools.cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)


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
    if tp > 1 and workload.quantization != "none":
        return f"{workload.quantization} weights cannot be split over tp {tp}"
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
    heads = model.key_value_heads if model.kind != "module" else tp
    if heads % tp and tp % heads:
        return f"{heads} key/value heads cannot be shared out over tp {tp}"
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
    whole = replace(base, dp_shard=ranks)
    made = {
        "ddp": replace(base, dp_replicate=ranks),
        "fsdp": whole,
        "fsdp-grad-op": whole.with_options(reshard_after_forward=False),
        **{f"zero{stage}": replace(whole, zero_stage=stage) for stage in (1, 2, 3)},
    }
    for name in space.data:
        if name in made:
            yield made[name]
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
        one = replace(strategy, ep=ep)
        if one.zero_stage is not None and workload.quantization != "none":
            yield _named(one, f"{workload.quantization} weights are not sharded by ZeRO")
        elif batch % one.data_ranks:
            ranks = one.data_ranks
            yield _named(one, f"a batch of {batch} sequences cannot be split over {ranks} ranks")
        else:
            yield _legal(workload, one, batch, space)


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
        return _named(strategy, why_not(named) or "one GPU shards nothing")
    return ParallelLayout(strategy=named, micro_batches=sizes, share=share, choices=choices)


def _named(strategy: Strategy, reason: str) -> ParallelLayout:
    return ParallelLayout(strategy=replace(strategy, name=layout_name(strategy)), reason=reason)


def _choices(workload: Workload, strategy: Strategy, space: Space) -> tuple[Choice, ...]:
    offloads = [one for one in OFFLOADS if _can_offload(strategy, one, space)]
    levels = [one for one in RECOMPUTE if one in space.recompute]
    if workload.model.kind == "module" and "selective" in levels:
        levels.remove("selective")
    # Fused attention keeps no scores, so recomputing its core saves nothing: torchtitan's way then.
    parts = ("attention",) if workload.attention == "eager" else ("op",)
    partly = {"recompute": "selective", "recompute_parts": parts}
    made = {
        (offload, level): replace(
            strategy, offload=offload, **(partly if level == "selective" else {"recompute": level})
        )
        for offload in offloads
        for level in levels
    }
    pairs = [pair for pair, full in made.items() if _proposed(full, space)]
    return tuple(
        Choice(
            strategy=made[offload, level],
            lighter=tuple(
                index
                for index, (other, less) in enumerate(pairs[:position])
                if set(other) <= set(offload) and levels.index(less) <= levels.index(level)
            ),
        )
        for position, (offload, level) in enumerate(pairs)
    )


def _proposed(strategy: Strategy, space: Space) -> bool:
    """Whether the layout may be a plan: what the launcher refuses is not one."""
    return not space.launchable or launchable(strategy, any_script=space.any_script)


def _can_offload(strategy: Strategy, what: tuple[str, ...], space: Space) -> bool:
    """DeepSpeed moves optimizer states (stage 3: weights too), FSDP both; one GPU needs ZeRO."""
    third = strategy.zero_stage == 3
    alone = strategy.zero_stage is not None and strategy.world_size == 1
    if not what:
        return not alone
    if not space.offload:
        return False
    if "parameters" in what:
        return third or (strategy.zero_stage is None and strategy.shard_ranks > 1)
    return strategy.zero_stage is not None and not (alone and third)
