"""Advice on the number of GPUs: whether one is enough, and how many the states alone need."""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.describe import Accelerator, Cluster, Conditions, Strategy, Workload
from workbench.describe.catalog import gpu as find_gpu
from workbench.describe.checks import require_number
from workbench.describe.job import Job
from workbench.describe.job_function import as_job
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.rank import ranks_of
from workbench.estimate.sizing.gpus import Option, fewest_gpus, on_one_gpu
from workbench.estimate.sizing.limits import HEADROOM, leaves_headroom
from workbench.estimate.sizing.switch import switches
from workbench.estimate.step_time import step_time
from workbench.planning.advice.value import Advice, Rule
from workbench.units import format_bytes, format_count, format_seconds

_HINTS = (
    "Mixed precision (bf16) and a compiled model: both are faster on the GPU you have.",
    "Data loading: GPU utilisation that dips between steps is the host's fault, not the GPU's.",
)
_KINDS = ("same result", "changes the result")
_SINGLE = Strategy.parse("single", 1)

_MORE_GPUS = Rule(
    name="more-gpus",
    evidence="memory estimate of every switch on one GPU, cheapest first, then of each strategy "
    "on 2, 4, 8 … GPUs; step-time estimate for the hours",
    source="workbench memory",
    corrects="models under 30B train on one 80 GB GPU with gradient accumulation",
)
_MEMORY_RUBRIC = Rule(
    name="memory-rubric",
    evidence="weights + gradients + optimizer states + master copy",
    source="arXiv 1910.02054 section 3; card memory as the driver reports it",
    corrects="above 10B it takes model parallelism; 7B fits 80 GB; 70B takes 4 to 8 H100",
)


def need_more_gpus(
    workload: Workload | Job,
    gpu: str | Accelerator,
    tokens: float | None = None,
    deadline_hours: float | None = None,
    conditions: Conditions | None = None,
) -> Advice:
    """Whether the job needs more than one GPU: first what one GPU can do, then how many.

    Args:
        workload: what is trained; micro-batch and accumulation are those of one GPU. Or a job,
            whose own GPUs do not count.
        gpu: which GPU.
        tokens: tokens of the whole run; None = time is not asked for.
        deadline_hours: when it has to end; None = no matter.
        conditions: what was measured on the GPU.

    Raises:
        UsageError: an unknown GPU, or tokens or deadline not above 0.
    """
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    for name, value in (("tokens", tokens), ("deadline_hours", deadline_hours)):
        if value is not None:
            require_number(name, value, above=0)
    job = as_job(workload, _SINGLE, Cluster.rented(card, gpus=1))
    ways = _ways_to_fit(job, card, tokens, deadline_hours, conditions)
    on_one = on_one_gpu(job, card)
    as_described = training_memory(on_one)
    fewest = min((option.gpus for option in ways.several), default=None)
    return _MORE_GPUS.advice(
        holds=bool(ways.unchanged) and ways.gpus_for_deadline is None,
        next=ways.next_step,
        verdict=ways.verdict,
        reason=f"{job.workload.model.name} as described needs "
        f"{format_bytes(as_described.on_card_bytes)} of {format_bytes(as_described.card_bytes)} "
        f"on one {card.name}." + _time(ways.hours, deadline_hours),
        condition=f"It must fit with {HEADROOM:.0%} of the card free as headroom"
        + (f" and end within {deadline_hours:g} h." if deadline_hours else "."),
        numbers={
            "on_card_bytes": as_described.on_card_bytes,
            "card_bytes": as_described.card_bytes,
            "switches": _joined(ways.unchanged[0]) if ways.unchanged else None,
            "gpus_at_least": 1 if ways.unchanged else fewest,
            "gpus_if_the_result_may_change": 1 if ways.unchanged or ways.changed else None,
            "hours_on_one_gpu": ways.hours,
            "gpus_for_the_deadline": ways.gpus_for_deadline,
        },
        steps=_steps(on_one, ways.several),
    )


class _WaysToFit(NamedTuple):
    """What makes a job fit on one GPU of a kind or on several, and how long one takes."""

    card: Accelerator
    unchanged: list[Option]  # on one GPU with the same result, the fastest first
    changed: list[Option]  # on one GPU with another result
    several: list[Option]  # on more than one GPU, the fewest first
    hours: float | None = None  # the whole run on one GPU; None = not asked for, or unknown
    gpus_for_deadline: int | None = None  # None = one is quick enough, or no deadline

    @property
    def verdict(self) -> str:
        """Whether one GPU is enough, and with what."""
        name = self.card.name
        if self.gpus_for_deadline is not None:
            count = self.gpus_for_deadline
            return f"Yes, for time: at least {count} x {name}, if they scaled without loss."
        if self.unchanged:
            added = _joined(self.unchanged[0])
            return f"No: it fits on one {name} {f'with {added}' if added else 'as it is'}."
        least = "no number"
        if self.several:
            least = f"{self.several[0].gpus} x {name} with {self.several[0].strategy.name}"
        if self.changed:
            return (
                f"Only if training must stay as it is: {least}. "
                f"With {_joined(self.changed[0])} one is enough."
            )
        return f"Yes: {least}."

    @property
    def next_step(self) -> str:
        """What to do."""
        if self.gpus_for_deadline is not None:
            count = self.gpus_for_deadline
            return f"Rent {count} or more: workbench plan compares them by hours and dollars."
        if self.unchanged:
            added = _joined(self.unchanged[0])
            extra = f" with {added}" if added else ""
            return f"Use one GPU{extra}; more of them only save time (workbench plan)."
        if not self.several:
            return "Choose a larger GPU (workbench gpus) or a smaller model."
        least = f"Use {self.several[0].gpus} GPUs with --strategy {self.several[0].strategy.name}"
        return f"{least}, or {_joined(self.changed[0])} on one." if self.changed else f"{least}."


def _joined(option: Option) -> str:
    """The switches of an option, in words."""
    return " + ".join(option.switches)


def _ways_to_fit(
    job: Job,
    card: Accelerator,
    tokens: float | None,
    deadline_hours: float | None,
    conditions: Conditions | None,
) -> _WaysToFit:
    """Each way in order; hours at the best rate of one GPU, and GPUs for the deadline."""

    def seconds_per_token(option: Option) -> float:
        """GPU-seconds of one token; infinite where the time has no closed form."""
        cluster = Cluster.rented(card, option.gpus // option.nodes, option.nodes)
        try:
            step = step_time(option.workload, option.strategy, cluster, conditions)
        except UsageError:
            return math.inf
        return 1 / step.tokens_per_second_per_gpu

    options = fewest_gpus(job, card)
    ways = _WaysToFit(
        card=card,
        unchanged=sorted(
            (option for option in options if option.gpus == 1 and not option.changes_result),
            key=seconds_per_token,
        ),
        changed=[option for option in options if option.gpus == 1 and option.changes_result],
        several=[option for option in options if option.gpus > 1],
    )
    own = seconds_per_token(ways.unchanged[0]) if ways.unchanged else math.inf
    if tokens is None or own == math.inf:
        return ways
    hours = tokens * own / 3600
    if deadline_hours is None or hours <= deadline_hours:
        return ways._replace(hours=hours)
    best = min([own, *(seconds_per_token(option) for option in ways.several[:3])])
    needed = max(2, math.ceil(tokens * best / 3600 / deadline_hours))
    return ways._replace(hours=hours, gpus_for_deadline=needed)


def _time(hours: float | None, deadline_hours: float | None) -> str:
    if hours is None:
        return ""
    limit = f", {format_seconds(deadline_hours * 3600)} are allowed" if deadline_hours else ""
    return f" The run takes {format_seconds(hours * 3600)} on one{limit}."


def _steps(on_one: Job, several: list[Option]) -> tuple[str, ...]:
    """The checklist, each switch with the bytes it saves here, then the smallest layouts."""
    saving = [
        f"{switch.name}: {format_bytes(-switch.saves_bytes)}"
        f"{', fits' if leaves_headroom(switch.estimate) else ''} ({_KINDS[switch.changes_result]})"
        for switch in sorted(switches(on_one), key=lambda switch: switch.tier)
    ]
    return (*_HINTS, *saving, *(f"{way.gpus} GPUs: {way.strategy.name}" for way in several[:3]))


def memory_rubric(workload: Workload, gpu: str | Accelerator, gpus: int | None = None) -> Advice:
    """How many GPUs weights, gradients and optimizer states need at least, activations apart.

    `gpus`: how many there are; None = not chosen yet.

    Raises:
        UsageError: an unknown GPU.
    """
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    count, needed = workload.model.parameters, state_bytes(workload)
    each = needed / count
    least = math.ceil(needed / card.memory_bytes)
    plural = "s" * (least > 1)
    return _MEMORY_RUBRIC.advice(
        holds=None if gpus is None else least <= gpus,
        next=f"Use at least {least} GPUs, or a mode with fewer bytes per parameter (--lora-rank)."
        if gpus is not None and least > gpus
        else "",
        verdict=f"At least {least} x {card.name} for the states alone.",
        reason=f"{workload.method}: {format_count(count)} "
        f"parameters x {each:.3g} bytes = {needed / 1e9:,.0f} GB. Of {least} card{plural} of "
        f"{card.memory_bytes / 1e9:.1f} GB that leaves "
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
    states = ranks_of(workload, strategy or _SINGLE)[0].states
    return states.weights + states.gradients + states.optimizer + states.master
