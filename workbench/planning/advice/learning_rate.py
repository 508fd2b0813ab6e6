"""Learning rate, betas and warm-up for another global batch; how large that batch may be.

Linear for SGD (Goyal 2017, arXiv 1706.02677), square root for Adam (Malladi 2022, arXiv
2205.10287: with k times the batch lr x sqrt(k), 1 - beta x k, eps / sqrt(k)). The rate follows the
global batch, never the number of GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.checks import require_number
from workbench.errors import UsageError
from workbench.estimate.sizing.limits import largest_micro_batch
from workbench.planning.advice.value import Advice, Rule
from workbench.units import format_count

_SGD = frozenset({"sgd", "sgd-momentum"})
_LEAST_BETA = 0.5  # below it the moments average next to nothing: the rule has left its range
# Kaplan 2020 (arXiv 2001.08361, figure 10): critical batch 2.1e8 tokens x loss^-4.8.
_CRITICAL_TOKENS, _CRITICAL_POWER = 2.1e8, 4.8
_USUAL_LOSS = 3.0  # nats per token where most of a pretraining run is spent after its start

_LEARNING_RATE = Rule(
    name="learning-rate",
    evidence="SGD: rate x k; Adam: rate x sqrt(k), 1 - beta x k, eps / sqrt(k)",
    source="arXiv 1706.02677 section 2.1 (SGD); arXiv 2205.10287 (Adam); "
    "arXiv 1910.04209 (warm-up 2 / (1 - beta2))",
    corrects="multiply the learning rate by the number of GPUs",
)
_BATCH_LIMITS = Rule(
    name="batch-limits",
    evidence="critical batch 2.1e8 x loss^-4.8 tokens; data E_min (1 + B/B_crit), "
    "steps S_min (1 + B_crit/B); micro-batch from the memory estimate",
    source="arXiv 2001.08361 figure 10 and section 5.1; arXiv 1812.06162",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Optimizer settings for another global batch."""

    optimizer: str
    """One of the workload's."""
    before: float
    """Learning rate that works with `batch`."""
    batch: float
    """Global batch, in tokens or sequences."""
    new_batch: float
    """The other one, in the same unit."""
    rate: float
    """Learning rate for it."""
    rule: str
    """linear, sqrt or unchanged."""
    ratio: float
    """New global batch over the old one."""
    beta1: float | None
    """Adam's first decay rate; None for SGD."""
    beta2: float | None
    """Adam's second decay rate; None for SGD."""
    warmup_steps: int | None
    """Least linear warm-up; None for SGD, which counts epochs."""


def scaled_rate(
    rate: float,
    batch: float,
    new_batch: float,
    optimizer: str = "adamw",
    betas: tuple[float, float] = (0.9, 0.95),
) -> Rate:
    """Optimizer settings when the global batch changes from `batch` to `new_batch`.

    Args:
        rate: learning rate that works with `batch`.
        batch: global batch, in tokens or sequences.
        new_batch: the other one, in the same unit.
        optimizer: one of the workload's.
        betas: Adam's decay rates with `batch`.

    Raises:
        UsageError: a rate or a batch that is not above 0, a beta outside 0 to 1.

    >>> scaled_rate(3e-4, 0.5e6, 2e6).rate, scaled_rate(0.1, 256, 8192, "sgd").rate
    (0.0006, 3.2)
    """
    for name, value in (("rate", rate), ("batch", batch), ("new_batch", new_batch)):
        require_number(name, value, above=0)
    if not all(0 <= beta < 1 for beta in betas):
        raise UsageError(f"betas must be at least 0 and below 1, not {betas}.")
    ratio = new_batch / batch
    adam = optimizer not in _SGD
    beta1, beta2 = (max(_LEAST_BETA, 1 - ratio * (1 - beta)) if adam else None for beta in betas)
    rule = "sqrt" if adam else "linear"
    return Rate(
        optimizer=optimizer,
        before=rate,
        batch=batch,
        new_batch=new_batch,
        rate=rate * (math.sqrt(ratio) if adam else ratio),
        rule="unchanged" if ratio == 1 else rule,
        ratio=ratio,
        beta1=beta1,
        beta2=beta2,
        warmup_steps=math.ceil(2 / (1 - betas[1]) - 1e-9) if adam else None,
    )


def learning_rate_advice(new: Rate) -> Advice:
    """What to set when the global batch changes; `new` is from `scaled_rate`."""
    if new.rule == "unchanged":
        verdict = f"Leave the learning rate at {new.before:.3g}."
        reason = (
            f"The global batch stays {format_count(new.batch)}: more GPUs with less accumulation "
            "compute the same step."
        )
    else:
        verdict = f"Set the learning rate to {new.rate:.3g} instead of {new.before:.3g}."
        how = "in proportion" if new.rule == "linear" else "with the square root"
        sides = f"{format_count(new.batch)} to {format_count(new.new_batch)}"
        reason = (
            f"The global batch goes from {sides} ({new.ratio:.3g}x): {how} for {new.optimizer}."
        )
    return _LEARNING_RATE.advice(
        verdict=verdict,
        holds=new.rule == "unchanged",
        next="" if new.rule == "unchanged" else f"Give the script a rate of {new.rate:.3g}.",
        reason=reason,
        condition="The global batch changes: micro-batch x accumulation x data-parallel ranks. "
        "Beyond the critical batch no rule keeps the loss; a short sweep beats every rule.",
        numbers={
            "rate": new.rate,
            "batch_ratio": new.ratio,
            "rule": new.rule,
            "beta1": new.beta1,
            "beta2": new.beta2,
            "warmup_steps": new.warmup_steps,
        },
        steps=_rate_steps(new),
    )


def _rate_steps(new: Rate) -> tuple[str, ...]:
    if new.rule == "unchanged":
        return ()
    if new.beta2 is None:
        return ("Warm up from the old rate to the new one over the first 5 epochs.",)
    least = " (the least the rule is good for)" if _LEAST_BETA in {new.beta1, new.beta2} else ""
    betas = f"Betas {new.beta1:.4g} and {new.beta2:.4g}{least}, if you follow the whole rule"
    return (
        f"{betas}; most recipes leave them.",
        f"Warm up linearly over at least {new.warmup_steps} steps.",
    )


def critical_batch_tokens(loss: float = _USUAL_LOSS) -> float:
    """Global batch in tokens beyond which data is wasted, at that loss in nats per token.

    Raises:
        UsageError: the loss is not above 0.

    >>> round(critical_batch_tokens(3.0), -4), round(critical_batch_tokens(2.0), -5)
    (1080000.0, 7500000.0)
    """
    require_number("loss", loss, above=0)
    return _CRITICAL_TOKENS / loss**_CRITICAL_POWER


def batch_limits(
    workload: Workload, strategy: Strategy, cluster: Cluster, loss: float | None = None
) -> Advice:
    """How large micro-batch and global batch may be.

    Args:
        workload: what is trained.
        strategy: how it is spread.
        cluster: where.
        loss: training loss in nats per token; None = 3.0.

    Raises:
        UsageError: an impossible layout.
    """
    tokens = workload.tokens_per_step(strategy.data_ranks)
    critical = critical_batch_tokens(_USUAL_LOSS if loss is None else loss)
    extra = tokens / critical
    most = largest_micro_batch(workload, strategy, cluster)
    text = workload.model.kind == "decoder"
    room = f"Memory allows a micro-batch of {most}."
    if most.value == 0:
        room = f"No micro-batch fits: {most.reason}."
    verdict = f"A global batch of {format_count(tokens)} tokens is below the critical one."
    reason = (
        f"It is {extra:.2g} of the critical batch of {format_count(critical)} tokens: to the same "
        f"loss it takes about {1 + extra:.3g}x the tokens of a small batch and "
        f"{1 + 1 / extra:.3g}x the steps of a huge one. {room}"
    )
    if extra > 1:
        verdict = f"A global batch of {format_count(tokens)} tokens is above the critical one."
    if not text:
        verdict, reason = "The critical batch is known for language models only.", room
    return _BATCH_LIMITS.advice(
        verdict=verdict,
        holds=extra <= 1 if text else None,
        next="Lower --accumulate or --micro-batch, or use fewer GPUs."
        if text and extra > 1
        else "",
        reason=reason,
        condition=f"A rule of thumb, at a loss of {loss or _USUAL_LOSS:g} nats: the critical "
        "batch grows as the loss falls. Newer work ties it to the tokens seen instead "
        "(arXiv 2410.21676, 2505.13738), and fine-tuning is outside all of them.",
        numbers={
            "global_batch_tokens": tokens,
            "critical_batch_tokens": critical if text else None,
            "largest_micro_batch": most.value,
            "tokens_over_least": 1 + extra if text else None,
            "steps_over_least": 1 + 1 / extra if text else None,
        },
    )
