"""Advice on the strategy: DDP or FSDP, what each ZeRO stage leaves, what recomputation costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate
from workbench.estimate.sizing.limits import leaves_headroom
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import StepTime
from workbench.planning.advice.gpus import state_bytes
from workbench.planning.advice.value import Advice, Number, Rule
from workbench.units import format_bytes, format_seconds

_DDP_OR_FSDP = Rule(
    name="ddp-or-fsdp",
    evidence="memory and step-time estimates of both",
    source="arXiv 1910.02054 section 7; workbench memory and step time",
    corrects="from 32 GPUs on use FSDP or ZeRO-2 instead of DDP",
)
_ZERO_SAVINGS = Rule(
    name="zero-savings",
    evidence="mixed-precision Adam on N ranks: 4 + 12/N, 2 + 14/N, 16/N bytes per parameter",
    source="arXiv 1910.02054 figure 1 and section 5",
    corrects="ZeRO saves 4x, 8x and 64x",
)
_RECOMPUTE_COST = Rule(
    name="recompute-cost",
    evidence="step-time and memory estimates; forward 1, backward 2, repeated forward 1",
    source="arXiv 1604.06174; arXiv 2205.05198 (selective)",
    corrects="activation checkpointing costs 33 % more compute",
)


def _word(estimate: Estimate) -> str:
    """fits, tight, does not fit; with the headroom that an advice asks for."""
    return estimate.verdict if leaves_headroom(estimate) else "does not fit"


def ddp_or_fsdp(
    workload: Workload,
    cluster: Cluster,
    conditions: Conditions | None = None,
    strategy: Strategy | None = None,
) -> Advice:
    """Whether plain data parallelism is enough; memory decides, time second.

    `strategy`: the chosen one, whose recompute both have; None = not chosen yet.

    Raises:
        UsageError: fewer than two GPUs, or an accelerator that is not in the catalog.
    """
    count = cluster.world_size
    if count < 2:
        raise UsageError("DDP or FSDP is a question from 2 GPUs on; the cluster has 1.")
    layouts = _ddp_and_fsdp(count, strategy)
    memory, steps = _estimates(workload, layouts, cluster, conditions)
    fits = {name: bool(leaves_headroom(estimate)) for name, estimate in memory.items()}
    needed = {name: format_bytes(estimate.on_card_bytes) for name, estimate in memory.items()}
    seconds = {name: step.step_seconds for name, step in steps.items()}
    best = min(seconds, key=lambda name: seconds[name])
    if fits["ddp"] != fits["fsdp"]:
        best = "ddp" if fits["ddp"] else "fsdp"
    chosen = strategy.name if strategy is not None and strategy.name in layouts else None
    other = chosen is not None and (chosen != best or not fits[chosen])
    return _DDP_OR_FSDP.advice(
        holds=None if chosen is None else not other,
        next=f"--strategy {best}" if other and any(fits.values()) else "",
        verdict=f"{best.upper()}."
        if any(fits.values())
        else "Neither fits: lower the micro-batch, recompute, or add GPUs.",
        reason=f"DDP needs {needed['ddp']} per card ({_word(memory['ddp'])}), "
        f"{format_seconds(seconds['ddp'])} per step; FSDP {needed['fsdp']} "
        f"({_word(memory['fsdp'])}), {format_seconds(seconds['fsdp'])}.",
        condition=f"{count} GPUs, micro-batch {workload.micro_batch}, accumulation "
        f"{workload.accumulate}. DDP moves 2x the parameters per step, FSDP 3x; but FSDP also "
        "shares the optimizer's work.",
        numbers={
            "gpus": count,
            "ddp_on_card_bytes": memory["ddp"].on_card_bytes,
            "fsdp_on_card_bytes": memory["fsdp"].on_card_bytes,
            "ddp_step_seconds": seconds["ddp"],
            "fsdp_step_seconds": seconds["fsdp"],
        },
    )


def _ddp_and_fsdp(count: int, chosen: Strategy | None) -> dict[str, Strategy]:
    """Both by name: the chosen one as it is, the other with the same recompute."""
    layouts = {name: Strategy.parse(name, count) for name in ("ddp", "fsdp")}
    if chosen is None:
        return layouts
    names = ("recompute", "recompute_parts", "recompute_layers")
    same = {name: getattr(chosen, name) for name in names}
    layouts = {name: layout.with_options(**same) for name, layout in layouts.items()}
    return layouts | ({chosen.name: chosen} if chosen.name in layouts else {})


def _estimates(
    workload: Workload,
    layouts: Mapping[str, Strategy],
    cluster: Cluster,
    conditions: Conditions | None,
) -> tuple[dict[str, Estimate], dict[str, StepTime]]:
    """Memory and step of each layout, by its name."""
    return (
        {name: training_memory(workload, layout, cluster) for name, layout in layouts.items()},
        {
            name: step_time(workload, layout, cluster, conditions)
            for name, layout in layouts.items()
        },
    )


def zero_savings(workload: Workload, gpus: int) -> Advice:
    """What each ZeRO stage leaves of the states on one of `gpus` ranks.

    Raises:
        UsageError: fewer than one GPU.
    """
    base = replace(workload, accumulate=1)
    unsharded = state_bytes(base, Strategy.parse("zero1", 1))
    left = {stage: state_bytes(base, Strategy.parse(f"zero{stage}", gpus)) for stage in (1, 2, 3)}
    share = {stage: unsharded / stage_bytes for stage, stage_bytes in left.items()}
    each = {stage: stage_bytes / workload.model.parameters for stage, stage_bytes in left.items()}
    numbers: dict[str, Number] = {
        "gpus": gpus,
        "bytes_per_parameter": unsharded / base.model.parameters,
    }
    for stage in (1, 2, 3):
        numbers[f"zero{stage}_bytes_per_parameter"] = each[stage]
        numbers[f"zero{stage}_times_less"] = share[stage]
    return _ZERO_SAVINGS.advice(
        holds=None,
        verdict=f"On {gpus} GPUs the states shrink {share[1]:.1f}x with ZeRO-1, {share[2]:.1f}x "
        f"with ZeRO-2 and {share[3]:.1f}x with ZeRO-3.",
        reason=f"Bytes per parameter: {unsharded / base.model.parameters:.3g} without, "
        f"{each[1]:.3g}, {each[2]:.3g} and {each[3]:.3g} with stages 1 to 3.",
        condition="States only: activations, buffers and the context are not sharded, so the "
        "whole card gains less. The factor follows the number of ranks.",
        numbers=numbers,
    )


def _memory_change(saved_bytes: int, before_bytes: int) -> str:
    """What recomputing does to the memory of a card; less than 1% of it is nothing.

    >>> _memory_change(3 * 2**30, 2**36), _memory_change(-(2**20), 2**36)
    ('3 GiB less memory', 'no less memory')
    """
    if saved_bytes < 0.01 * before_bytes:
        return "no less memory"
    return f"{format_bytes(saved_bytes)} less memory"


def recompute_cost(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> Advice:
    """What recomputing activations costs in time and saves in memory, selective and full.

    Raises:
        UsageError: an impossible layout, or an accelerator that is not in the catalog.
    """
    layouts = {
        kind: strategy.with_options(recompute=kind) for kind in ("none", "selective", "full")
    }
    memory, steps = _estimates(workload, layouts, cluster, conditions)
    work = {kind: step.hardware_flops / step.model_flops for kind, step in steps.items()}
    slower = {
        kind: step.step_seconds / steps["none"].step_seconds - 1 for kind, step in steps.items()
    }
    saved = {
        kind: memory["none"].on_card_bytes - estimate.on_card_bytes
        for kind, estimate in memory.items()
    }
    before = memory["none"].on_card_bytes
    less = {kind: _memory_change(each, before) for kind, each in saved.items()}
    fits = bool(leaves_headroom(training_memory(workload, strategy, cluster)))
    return _RECOMPUTE_COST.advice(
        holds=fits,
        next="" if fits else "It does not fit: workbench memory ranks what would make it fit.",
        verdict=f"Full recompute: {slower['full']:.0%} more time, {less['full']}; "
        f"selective: {slower['selective']:.0%} more time, {less['selective']}.",
        reason=f"Full recompute runs every forward pass twice: {work['full']:.2f}x the model's "
        f"FLOPs, selective {work['selective']:.2f}x.",
        condition=f"{strategy.name}, micro-batch {workload.micro_batch}, sequence "
        f"{workload.seq_len}. MFU does not count the repetition, HFU does.",
        numbers={
            "full_time_share": slower["full"],
            "selective_time_share": slower["selective"],
            "full_flops_ratio": work["full"],
            "selective_flops_ratio": work["selective"],
            "full_saved_bytes": saved["full"],
            "selective_saved_bytes": saved["selective"],
        },
    )
