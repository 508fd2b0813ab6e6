"""Advice that memory decides: more GPUs or not, how many at least, DDP or FSDP, what ZeRO saves."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.describe import Accelerator, Cluster, Conditions, Strategy, Workload
from workbench.describe.catalog import gpu as find_gpu
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.rank import ranks_of
from workbench.estimate.sizing.gpus import Option, fewest_gpus
from workbench.estimate.sizing.limits import HEADROOM, leaves_headroom
from workbench.estimate.sizing.switch import switches
from workbench.estimate.step_time import step_time
from workbench.planning.advice_value import Advice, Number, Rule
from workbench.units import format_bytes, format_count, format_seconds

_HINTS = (
    "Mixed precision (bf16) and a compiled model: both are faster on the GPU you have.",
    "Data loading: GPU utilisation that dips between steps is the host's fault, not the GPU's.",
)
_KINDS = ("same result", "changes the result")

_MORE_GPUS = Rule(
    name="more-gpus",
    evidence="memory estimate of every switch on one GPU, cheapest first, then of each strategy "
    "on 2, 4, 8 … GPUs; step-time estimate for the hours",
    source="workbench memory; checklist S0, S4",
    corrects="C9",
)
_MEMORY_RUBRIC = Rule(
    name="memory-rubric",
    evidence="weights + gradients + optimizer states + master copy",
    source="arXiv 1910.02054 section 3; card memory as the driver reports it",
    corrects="C8, C9, C10",
)
_DDP_OR_FSDP = Rule(
    name="ddp-or-fsdp",
    evidence="memory and step-time estimates of both",
    source="arXiv 1910.02054 section 7; workbench memory and step time",
    corrects="C39, C1b",
)
_ZERO_SAVINGS = Rule(
    name="zero-savings",
    evidence="mixed-precision Adam on N ranks: 4 + 12/N, 2 + 14/N, 16/N bytes per parameter",
    source="arXiv 1910.02054 figure 1 and section 5",
    corrects="C1",
)


def need_more_gpus(
    workload: Workload,
    gpu: str | Accelerator,
    tokens: float | None = None,
    deadline_hours: float | None = None,
    conditions: Conditions | None = None,
) -> Advice:
    """Whether the job needs more than one GPU: first what one GPU can do, then how many.

    Args:
        workload: what is trained; micro-batch and accumulation are those of one GPU.
        gpu: which GPU.
        tokens: tokens of the whole run; None = time is not asked for.
        deadline_hours: when it has to end; None = no matter.
        conditions: what was measured on the GPU.

    Raises:
        UsageError: an unknown GPU, or tokens or deadline not above 0.
    """
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    for name, value in (("tokens", tokens), ("deadline_hours", deadline_hours)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} must be above 0 and finite, not {value}.")
    options = fewest_gpus(workload, card)
    alone = [one for one in options if one.gpus == 1]
    same = [one for one in alone if not one.changes_result]
    many = [one for one in options if one.gpus > 1]
    single, cluster = Strategy.parse("single", 1), Cluster.rented(card, gpus=1)
    plain = training_memory(workload, single, cluster)
    same.sort(key=lambda one: _seconds_per_token(one, card, conditions) or math.inf)
    hours = late = None
    if same and tokens is not None:
        hours, late = _time_needed(same[0], many, card, conditions, tokens, deadline_hours)
    enough = bool(same) and late is None
    return _MORE_GPUS.says(
        holds=enough,
        next=_more_next(same, alone, many, late),
        verdict=_verdict(card, same, alone, many, late),
        reason=f"{workload.model.name} as described needs {format_bytes(plain.on_card_bytes)} of "
        f"{format_bytes(plain.card_bytes)} on one {card.name}." + _time(hours, deadline_hours),
        condition=f"It must fit with {HEADROOM:.0%} of the card free as headroom"
        + (f" and end within {deadline_hours:g} h." if deadline_hours else "."),
        numbers={
            "on_card_bytes": plain.on_card_bytes,
            "card_bytes": plain.card_bytes,
            "switches": " + ".join(same[0].switches) if same else None,
            "gpus_at_least": 1 if same else min((one.gpus for one in many), default=None),
            "gpus_if_the_result_may_change": 1 if alone else None,
            "hours_on_one_gpu": hours,
            "gpus_for_the_deadline": late,
        },
        steps=_steps(workload, single, cluster, many),
    )


def _seconds_per_token(
    option: Option, card: Accelerator, conditions: Conditions | None
) -> float | None:
    """GPU-seconds of one token; None where the time has no closed form."""
    cluster = Cluster.rented(card, option.gpus // option.nodes, option.nodes)
    try:
        found = step_time(option.workload, option.strategy, cluster, conditions)
    except UsageError:
        return None
    return 1 / found.tokens_per_second_per_gpu


def _time_needed(
    alone: Option,
    many: list[Option],
    card: Accelerator,
    conditions: Conditions | None,
    tokens: float,
    deadline_hours: float | None,
) -> tuple[float | None, int | None]:
    """Hours of the run on one GPU, and GPUs for the deadline at the best rate of any of them."""
    own = _seconds_per_token(alone, card, conditions)
    if own is None:
        return None, None
    hours = tokens * own / 3600
    if deadline_hours is None or hours <= deadline_hours:
        return hours, None
    others = [_seconds_per_token(one, card, conditions) for one in many[:3]]
    best = min([own, *(seconds for seconds in others if seconds is not None)])
    return hours, max(2, math.ceil(tokens * best / 3600 / deadline_hours))


def _verdict(
    card: Accelerator,
    same: list[Option],
    alone: list[Option],
    many: list[Option],
    late: int | None,
) -> str:
    if late is not None and late > 1:
        return f"Yes, for time: at least {late} x {card.name}, if they scaled without loss."
    if same and not same[0].switches:
        return f"No: it fits on one {card.name} as it is."
    if same:
        return f"No: it fits on one {card.name} with {' + '.join(same[0].switches)}."
    least = f"{many[0].gpus} x {card.name} with {many[0].strategy.name}" if many else "no number"
    if alone:
        names = " + ".join(alone[0].switches)
        return f"Only if training must stay as it is: {least}. With {names} one is enough."
    return f"Yes: {least}."


def _more_next(
    same: list[Option], alone: list[Option], many: list[Option], late: int | None
) -> str:
    if late is not None:
        return f"Rent {late} or more: workbench plan compares them by hours and dollars."
    if same:
        extra = f" with {' + '.join(same[0].switches)}" if same[0].switches else ""
        return f"Use one GPU{extra}; more of them only save time (workbench plan)."
    if many:
        least = f"Use {many[0].gpus} GPUs with --strategy {many[0].strategy.name}"
        return f"{least}, or {' + '.join(alone[0].switches)} on one." if alone else f"{least}."
    return "Choose a larger GPU (workbench gpus) or a smaller model."


def _time(hours: float | None, deadline_hours: float | None) -> str:
    if hours is None:
        return ""
    limit = f", {format_seconds(deadline_hours * 3600)} are allowed" if deadline_hours else ""
    return f" The run takes {format_seconds(hours * 3600)} on one{limit}."


def _steps(
    workload: Workload, single: Strategy, cluster: Cluster, many: list[Option]
) -> tuple[str, ...]:
    """The checklist, each switch with the bytes it saves here, then the smallest layouts."""
    saving = [
        f"{one.name}: {format_bytes(-one.saves_bytes)}"
        f"{', fits' if leaves_headroom(one.estimate) else ''} ({_KINDS[one.changes_result]})"
        for one in sorted(switches(workload, single, cluster), key=lambda one: one.tier)
    ]
    spread = [f"{one.gpus} GPUs: {one.strategy.name}" for one in many[:3]]
    return (*_HINTS, *saving, *spread)


def memory_rubric(workload: Workload, gpu: str | Accelerator, gpus: int | None = None) -> Advice:
    """How many GPUs weights, gradients and optimizer states need at least, activations apart.

    `gpus`: how many there are; None = nobody has chosen yet.

    Raises:
        UsageError: an unknown GPU.
    """
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    count, needed = workload.model.parameters, state_bytes(workload)
    each = needed / count
    least = math.ceil(needed / card.memory_bytes)
    plural = "s" * (least > 1)
    adapters = f", LoRA r{workload.lora_rank}" if workload.lora_rank else ""
    return _MEMORY_RUBRIC.says(
        holds=None if gpus is None else least <= gpus,
        next=f"Use at least {least} GPUs, or a mode with fewer bytes per parameter (--lora-rank)."
        if gpus is not None and least > gpus
        else "",
        verdict=f"At least {least} x {card.name} for the states alone.",
        reason=f"{workload.precision}, {workload.optimizer}{adapters}: {format_count(count)} "
        f"parameters x {each:.3g} bytes = {needed / 1e9:,.0f} GB; "
        f"{least} card{plural} of {card.memory_bytes / 1e9:.1f} GB leave "
        f"{(least * card.memory_bytes - needed) / 1e9:,.0f} GB for activations.",
        condition="States sharded over all GPUs (ZeRO-3, FSDP, or tensor and pipeline parallel); "
        "activations come on top. The bytes per parameter follow the mode, not the size.",
        numbers={
            "parameters": count,
            "bytes_per_parameter": each,
            "state_bytes": needed,
            "card_bytes": card.memory_bytes,
            "gpus_at_least": least,
        },
    )


def state_bytes(workload: Workload, strategy: Strategy | None = None) -> int:
    """Weights, gradients, optimizer states and master copy of one rank; of the whole model alone.

    >>> from workbench.describe import Model
    >>> model = Model.catalog("llama-2-7b")
    >>> job = Workload(model=model, seq_len=4096, micro_batch=1, precision="bf16")
    >>> state_bytes(job) / model.parameters
    16.0
    """
    layout = strategy or Strategy.parse("single", 1)
    held = ranks_of(workload, layout)[0].states
    return held.weights + held.gradients + held.optimizer + held.master


def ddp_or_fsdp(
    workload: Workload,
    cluster: Cluster,
    conditions: Conditions | None = None,
    strategy: str | None = None,
) -> Advice:
    """Whether plain data parallelism is enough; memory decides, time second.

    `strategy`: the name of the one that is meant; None = nobody has chosen yet.

    Raises:
        UsageError: fewer than two GPUs, or an accelerator that is not in the catalog.
    """
    count = cluster.world_size
    if count < 2:
        raise UsageError("DDP or FSDP is a question from 2 GPUs on; the cluster has 1.")
    fits: dict[str, bool] = {}
    seconds: dict[str, float] = {}
    needed: dict[str, int] = {}
    for name in ("ddp", "fsdp"):
        layout = Strategy.parse(name, count)
        memory = training_memory(workload, layout, cluster)
        fits[name] = bool(leaves_headroom(memory))
        needed[name] = memory.on_card_bytes
        seconds[name] = step_time(workload, layout, cluster, conditions).step_seconds
    faster = min(seconds, key=lambda name: seconds[name])
    chosen = faster if fits["ddp"] == fits["fsdp"] else ("ddp" if fits["ddp"] else "fsdp")
    verdict = f"{chosen.upper()}."
    if not any(fits.values()):
        verdict = "Neither fits: lower the micro-batch, recompute, or add GPUs."
    meant = strategy if strategy in fits else None
    other = meant is not None and (meant != chosen or not fits[meant])
    return _DDP_OR_FSDP.says(
        holds=None if meant is None else not other,
        next=f"--strategy {chosen}" if other and any(fits.values()) else "",
        verdict=verdict,
        reason=f"DDP needs {format_bytes(needed['ddp'])} per card "
        f"({'fits' if fits['ddp'] else 'does not fit'}), {format_seconds(seconds['ddp'])} per "
        f"step; FSDP {format_bytes(needed['fsdp'])} "
        f"({'fits' if fits['fsdp'] else 'does not fit'}), {format_seconds(seconds['fsdp'])}.",
        condition=f"{count} GPUs, micro-batch {workload.micro_batch}, accumulation "
        f"{workload.accumulate}. DDP moves 2x the parameters per step, FSDP 3x; but FSDP also "
        "shares the optimizer's work.",
        numbers={
            "gpus": count,
            "ddp_on_card_bytes": needed["ddp"],
            "fsdp_on_card_bytes": needed["fsdp"],
            "ddp_step_seconds": seconds["ddp"],
            "fsdp_step_seconds": seconds["fsdp"],
        },
    )


def zero_savings(workload: Workload, gpus: int) -> Advice:
    """What each ZeRO stage leaves of the states on one of `gpus` ranks.

    Raises:
        UsageError: fewer than one GPU.
    """
    base = replace(workload, accumulate=1)
    whole = state_bytes(base, Strategy.parse("zero1", 1))
    left = {stage: state_bytes(base, Strategy.parse(f"zero{stage}", gpus)) for stage in (1, 2, 3)}
    share = {stage: whole / held for stage, held in left.items()}
    each = {stage: held / workload.model.parameters for stage, held in left.items()}
    numbers: dict[str, Number] = {
        "gpus": gpus,
        "bytes_per_parameter": whole / base.model.parameters,
    }
    for stage in (1, 2, 3):
        numbers[f"zero{stage}_bytes_per_parameter"] = each[stage]
        numbers[f"zero{stage}_times_less"] = share[stage]
    return _ZERO_SAVINGS.says(
        holds=None,
        verdict=f"On {gpus} GPUs the states shrink {share[1]:.1f}x with ZeRO-1, {share[2]:.1f}x "
        f"with ZeRO-2 and {share[3]:.1f}x with ZeRO-3.",
        reason=f"Bytes per parameter: {whole / base.model.parameters:.3g} without, "
        f"{each[1]:.3g}, {each[2]:.3g} and {each[3]:.3g} with stages 1 to 3.",
        condition="States only: activations, buffers and the context are not sharded, so the "
        "whole card gains less. The factor follows the number of ranks.",
        numbers=numbers,
    )
