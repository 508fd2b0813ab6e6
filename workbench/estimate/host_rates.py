"""A CPU's coefficients from its calibration: what a pass over the model costs one process.

A forward pass costs its products and its attention at the measured rates, times a factor for
what surrounds them in training; its weights once through memory; so many seconds per element of
the residual stream and per block launched. Factor and seconds are fitted to the few real steps, for
each number of processes on its own; a number that was not measured is extrapolated by cores.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.estimate.calibration import Calibration
from workbench.estimate.calibration_rows import Collective, MeasuredStep
from workbench.estimate.least_squares import fit

DDP_BUCKETS = (1 << 20, 25 << 20)
"""Bytes of DDP's first bucket and of the others, which it fills before it sends them."""
FORWARD_PART = 2 / 7
"""Fused attention: forward's part of forward and backward."""
TENSORS = 4
"""Weights of a block; embedding and head come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one micro-batch of a model asks of one process."""

    product_flops: float
    """Of all products, forward."""
    weight_bytes: float
    """Weights that they read."""
    attention_flops: float
    """Fused causal attention, forward and backward."""
    elements: float
    """Tokens x width, of all blocks: what the pointwise operations pass over, many times."""
    blocks: int
    """Blocks."""
    parameters: float
    """Trained weights of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The coefficients of one direction."""

    factor: float
    """Products, attention and weights in training over the same alone."""
    element_seconds: float
    """Pointwise operations per element of the residual stream."""
    block_seconds: float
    """Launching one block's operations."""


UNCORRECTED = Pass(factor=1.0, element_seconds=0.0, block_seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """One process's rates beside its fellows."""

    processes: int
    """How many there are."""
    measured: bool
    """False: extrapolated from another number of processes."""
    product_flops: float
    """Per second."""
    attention_flops: float
    """Per second."""
    memory_bytes: float
    """Per second."""
    forward: Pass
    """Forward and loss."""
    backward: Pass
    """Backward, weights read and gradients written."""
    optimizer_seconds: tuple[float, float]
    """Per parameter, and per tensor."""
    message_seconds: float = 0.0
    """All-reduce of next to nothing."""
    byte_seconds: float = 0.0
    """All-reduce, per byte of the tensor."""
    exposed: float = 0.0
    """The gradients' all-reduce as it is waited for, over the same alone."""
    straggling: float = 0.0
    """Waiting for the slowest process over the time of the passes."""


def forward_work(rates: HostRates, work: Work) -> tuple[float, float, float]:
    """Seconds of products, attention, and weights in one forward pass, alone."""
    return (
        work.product_flops / rates.product_flops,
        FORWARD_PART * work.attention_flops / rates.attention_flops,
        work.weight_bytes / rates.memory_bytes,
    )


def backward_work(rates: HostRates, work: Work) -> tuple[float, float, float]:
    """The same of backward: two products for each of forward's."""
    return (
        2 * work.product_flops / rates.product_flops,
        (1 - FORWARD_PART) * work.attention_flops / rates.attention_flops,
        2 * work.weight_bytes / rates.memory_bytes,
    )


def messages(gradient_bytes: float) -> float:
    """Buckets that DDP sends."""
    first, usual = DDP_BUCKETS
    return 1 + max(0.0, gradient_bytes - first) // usual + (gradient_bytes > first)


def step_work(step: MeasuredStep) -> Work:
    """What a measured step of the recipe's model asked for."""
    tokens, hidden = step.seq_len * step.micro_batch, step.hidden
    weights = 12.0 * step.layers * hidden**2 + 256 * hidden
    return Work(
        product_flops=2.0 * tokens * weights,
        weight_bytes=4 * weights,
        attention_flops=7.0 * step.layers * step.micro_batch * step.seq_len**2 * hidden,
        elements=float(tokens * hidden * step.layers),
        blocks=step.layers,
        parameters=weights + 256 * hidden,
    )


@functools.lru_cache(maxsize=64)
def host_rates(calibration: Calibration, processes: int) -> HostRates | None:
    """The rates of one of `processes` processes; None where the calibration has too little."""
    sizes = {row.processes for row in calibration.steps} & {
        row.processes for row in calibration.rates
    }
    if not sizes:
        return None
    nearest = max((size for size in sizes if size <= processes), default=min(sizes))
    rates = _measured(calibration, nearest)
    if rates is None or nearest == processes:
        return rates
    if processes > 1 and nearest == 1:
        return None  # nothing is known of what they tell each other
    return _extrapolated(rates, processes, calibration.cores)


def _measured(calibration: Calibration, processes: int) -> HostRates | None:
    rows = [row for row in calibration.products if row.processes == processes]
    flops = [row.flops_per_second for row in rows if row.precision == "fp32"]
    attention = [row.flops_per_second for row in rows if row.precision == "attention"]
    memory = calibration.memory_bytes_per_second(processes)
    steps = [
        step
        for step in calibration.steps
        if (step.processes, step.precision) == (processes, "fp32")
    ]
    if not flops or not attention or not memory or len(steps) < 3:
        return None
    bare = HostRates(
        processes=processes,
        measured=True,
        product_flops=statistics.median(flops),
        attention_flops=statistics.median(attention),
        memory_bytes=memory,
        forward=UNCORRECTED,
        backward=UNCORRECTED,
        optimizer_seconds=(0.0, 0.0),
    )
    works = [step_work(step) for step in steps]
    fitted = replace(
        bare,
        forward=_pass(
            [sum(forward_work(bare, work)) for work in works],
            works,
            [step.forward_seconds for step in steps],
        ),
        backward=_pass(
            [sum(backward_work(bare, work)) for work in works],
            works,
            [step.backward_seconds for step in steps],
        ),
        optimizer_seconds=_pair(
            [[work.parameters, float(TENSORS * work.blocks + 2)] for work in works],
            [step.update_seconds for step in steps],
            [step.step_seconds for step in steps],
        ),
    )
    return _with_exchange(fitted, calibration.collectives, steps, works)


def _pass(first_terms: Sequence[float], works: Sequence[Work], seconds: Sequence[float]) -> Pass:
    rows = [
        [first, work.elements, float(work.blocks)]
        for first, work in zip(first_terms, works, strict=True)
    ]
    factor, element, block = fit(rows, seconds)
    return Pass(factor=factor, element_seconds=element, block_seconds=block)


def _pair(
    rows: Sequence[Sequence[float]],
    seconds: Sequence[float],
    scales: Sequence[float] | None = None,
) -> tuple[float, float]:
    """Two coefficients; small parts of a step are held to the step's time, not to their own."""
    first, second = fit(rows, seconds, scales)
    return first, second


def _with_exchange(
    rates: HostRates,
    collectives: Sequence[Collective],
    steps: Sequence[MeasuredStep],
    works: Sequence[Work],
) -> HostRates:
    sent = [row for row in collectives if (row.kind, row.ranks) == ("all-reduce", rates.processes)]
    if rates.processes == 1 or not sent:
        return rates
    message, byte = _pair([[1.0, float(row.bytes)] for row in sent], [row.seconds for row in sent])
    rows = [
        [
            messages(4 * work.parameters) * message + 4 * work.parameters * byte,
            step.forward_seconds + step.backward_seconds,
        ]
        for work, step in zip(works, steps, strict=True)
    ]
    exposed, straggling = _pair(
        rows, [step.exchange_seconds for step in steps], [step.step_seconds for step in steps]
    )
    return replace(
        rates,
        message_seconds=message,
        byte_seconds=byte,
        exposed=exposed,
        straggling=straggling,
    )


def _extrapolated(rates: HostRates, processes: int, cores: int) -> HostRates:
    """Other numbers of processes share the same cores; what is not measured is left as it is."""
    before, now = rates.processes, processes
    slower = _cores_each(before, cores) / _cores_each(now, cores)
    solo_slowdown = min(1.0, _cores_each(before, cores)) / min(1.0, _cores_each(now, cores))

    def scaled(direction: Pass) -> Pass:
        return Pass(
            factor=direction.factor,
            element_seconds=direction.element_seconds * slower,
            block_seconds=direction.block_seconds * solo_slowdown,
        )

    # A ring in one machine's memory: 2 (P - 1) S bytes are copied and added, by all cores.
    ring = ((now - 1) / min(now, cores)) / ((before - 1) / min(before, cores)) if before > 1 else 0
    parameter, tensor = rates.optimizer_seconds
    return replace(
        rates,
        processes=now,
        measured=False,
        product_flops=rates.product_flops / slower,
        attention_flops=rates.attention_flops / slower,
        memory_bytes=rates.memory_bytes / slower,
        forward=scaled(rates.forward),
        backward=scaled(rates.backward),
        optimizer_seconds=(parameter * slower, tensor * solo_slowdown),
        message_seconds=rates.message_seconds * ring,
        byte_seconds=rates.byte_seconds * ring,
    )


def _cores_each(processes: int, cores: int) -> float:
    """Cores of one process: its whole threads, or its part of a core where there are too many."""
    return min(float(max(1, cores // processes)), cores / processes)
