"""One pass over the user's data: steps, tokens, hours, dollars; and the micro-batch that it wants.

The command line and the launch form say the same from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.sizing import largest_micro_batch
from workbench.estimate.sizing.limits import Answer
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.step_prediction import predict
from workbench.units import format_count, format_seconds, format_usd

_MOST_ON_CPU = 1024  # examples: beyond that nothing is gained
_HOST_SHARE = 0.9  # of the host's memory that all ranks together may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass over the data, as it is asked for."""

    steps: int
    """Optimizer steps."""
    tokens: int | None
    """Tokens at most: no example is longer than the sequence length; None = not of tokens."""
    seconds: float | None
    """Predicted time; None where that of a step is not known."""
    usd: float | None
    """Predicted bill; None where time or price is not known."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)

    def __str__(self) -> str:
        """In one line."""
        parts = [f"{self.steps:,} steps"]
        parts += [] if self.tokens is None else [f"at most {format_count(self.tokens)} tokens"]
        parts += [] if self.seconds is None else [format_seconds(self.seconds)]
        parts += [] if self.usd is None else [format_usd(self.usd)]
        return f"an epoch: {', '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestEpoch:
    """The micro-batch by which a pass over the data is over soonest."""

    micro_batch: int
    """Examples per rank and micro-step."""
    epoch: Epoch
    """The pass with it."""
    global_batch: int
    """Examples per optimizer step with it."""
    before: int
    """Examples per optimizer step as asked."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"micro_batch": self.micro_batch, "epoch": self.epoch.document()}

    def __str__(self) -> str:
        """In one line."""
        batch = f"{self.before:,} examples a step, as asked"
        if self.global_batch != self.before:
            batch = f"{self.global_batch:,} examples a step instead of {self.before:,}"
        return f"shortest epoch: micro-batch {self.micro_batch:,} ({self.epoch}; {batch})"


def epoch_of(request: Request) -> Epoch | None:
    """One pass over the data; None where the data, or how many steps they make, are not known."""
    if request.epoch_steps is None:
        return None
    step = request.predicted_time
    return _epoch(request, request.epoch_steps, None if step is None else step.step_seconds)


def _epoch(request: Request, steps: int, step_seconds: float | None) -> Epoch:
    work, price = request.workload, request.usd_per_hour
    tokens = None
    if work is not None and request.epoch_examples is not None:
        tokens = request.epoch_examples * work.seq_len
    seconds = None if step_seconds is None else steps * step_seconds
    usd = None if seconds is None or price is None else seconds / 3600 * price
    return Epoch(steps=steps, tokens=tokens, seconds=seconds, usd=usd)


def largest_batch(request: Request) -> Answer | None:
    """The largest micro-batch that fits; None where nothing is known, or there is no card."""
    if request.job is None or request.device != "cuda":
        return None
    return largest_micro_batch(request.job)


def shortest_epoch(request: Request) -> ShortestEpoch | None:
    """The micro-batch with the shortest epoch that fits, accumulation unchanged; None = unknown."""
    work, now = request.workload, request.predicted_time
    if work is None or now is None or request.epoch_examples is None:
        return None
    usual = _step_seconds(request, work.micro_batch)
    if usual is None:
        return None
    ranks = request.strategy.data_ranks
    best: tuple[float, int, Epoch] | None = None
    for size in _candidates(request):
        seconds = _step_seconds(request, size)
        if seconds is None:
            continue
        steps = _steps(request.epoch_examples, ranks, size, work.accumulate)
        epoch = _epoch(request, steps, now.step_seconds * seconds / usual)
        if best is None or (epoch.seconds or math.inf) < best[0]:
            best = (epoch.seconds or math.inf, size, epoch)
    if best is None:
        return None
    every = ranks * work.accumulate
    return ShortestEpoch(
        micro_batch=best[1],
        epoch=best[2],
        global_batch=best[1] * every,
        before=work.micro_batch * every,
    )


def _steps(examples: int, ranks: int, micro_batch: int, accumulate: int) -> int:
    return math.ceil(math.ceil(math.ceil(examples / ranks) / micro_batch) / accumulate)


def _step_seconds(request: Request, micro_batch: int) -> float | None:
    assert request.workload is not None
    strategy = request.strategy
    if request.trainer is not None:
        strategy = request.trainer.on(strategy)
    work = replace(request.workload, micro_batch=micro_batch)
    step = predict(work, strategy, request.cluster, request.device, request.store)
    return None if step is None else step[0].step_seconds


def _candidates(request: Request) -> Iterator[int]:
    """Powers of two that fit, and the largest that fits; no more than a rank has examples."""
    assert request.epoch_examples is not None
    most = math.ceil(request.epoch_examples / request.strategy.data_ranks)
    largest = largest_batch(request)
    most = min(most, _MOST_ON_CPU if largest is None else largest.value or 0)
    size = 1
    while size < most and _fits_host(request, size):
        yield size
        size *= 2
    if most and _fits_host(request, most):
        yield most


def _fits_host(request: Request, micro_batch: int) -> bool:
    """On CPU: whether all ranks together leave the host room."""
    memory = request.cluster.memory_bytes
    if request.device != "cpu" or memory is None or request.workload is None:
        return True
    work = replace(request.workload, micro_batch=micro_batch)
    try:
        rank = training_memory(work, request.strategy, "cpu")
    except UsageError:
        return False
    return rank.total_bytes * request.processes_here <= _HOST_SHARE * memory
