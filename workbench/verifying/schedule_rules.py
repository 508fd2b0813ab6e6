"""The learning rate: how often its schedule advances, and what the number of ranks does to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.verifying.trace import Trace
from workbench.verifying.verdict import Severity, Verdict

_EQUAL = 1e-6  # relative
_ENOUGH = 3  # values of a schedule that are not one


def scheduler_steps(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """The script steps its scheduler several times for each optimizer step."""
    rank = trace.ranks[0]
    often = [step.schedules for step in rank.steps[1:]]
    if rank.accelerate or not often or min(often) < 2:
        return
    yield Verdict(
        kind="scheduler-steps",
        part="schedule",
        step=2,
        what="the learning rate",
        evidence=f"scheduler.step() is called {min(often)} times for each optimizer step.",
        bound="Once for each optimizer step, or less.",
        cause="It is called for each micro-batch or for each rank: the schedule ends early.",
        next="Call scheduler.step() once, beside optimizer.step().",
        severity="warning",
    )


def faster_schedule(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """The schedule advances as many times faster as there are ranks."""
    rates, single_rates = _rates(trace), _rates(reference)
    times = len(trace.ranks) // trace.split
    pairs = list(zip(rates, single_rates[::times], strict=False)) if times > 1 else []
    if len(pairs) < _ENOUGH or not all(_same(rate, expected) for rate, expected in pairs):
        return
    if all(_same(rate, expected) for rate, expected in zip(rates, single_rates, strict=False)):
        return
    ended = next((n for n, rate in enumerate(rates) if not rate and single_rates[n]), None)
    severity: Severity = "note" if trace.ranks[0].accelerate and ended is None else "error"
    end = "" if ended is None else f" From step {ended + 1} on it is 0, which trains nothing."
    rates_text = ", ".join(f"{rate:.3g}" for rate in rates[:_ENOUGH])
    yield Verdict(
        kind="schedule-too-fast",
        part="schedule",
        step=2,
        severity=severity,
        what="the learning rate",
        evidence=f"On {trace.label} it is {rates_text} in the first steps: what one rank that "
        f"reads as many samples a step has every {times} steps.{end}",
        bound="Steps that read as many samples have the same learning rate.",
        cause="The scheduler advances once for each rank (Accelerate's does, so that a schedule "
        "counted in the steps of one rank fits), and its length is counted in the steps of all.",
        next="Count the schedule's steps from the loader before accelerator.prepare(), or step the "
        "scheduler once for each optimizer step.",
    )


def rate_notes(trace: Trace, reference: Trace | None) -> str | None:
    """How the learning rate follows the batch, in a sentence; None where nothing tells."""
    rates, single_rates = _rates(trace), _rates(reference)
    size = sum(step.consumed for step in trace.at(0)) if trace.steps else 0
    if (
        not rates
        or not single_rates
        or not single_rates[0]
        or not size
        or len(trace.ranks) == trace.split
    ):
        return None
    factor = rates[0] / single_rates[0]
    steps = f"a step on {trace.label} reads {size} samples, and the learning rate is {rates[0]:.3g}"
    if not _same(rates[0], single_rates[0]):
        return f"{steps}, {factor:.3g} times that of one rank: later losses are not compared"
    return (
        f"{steps}, as on one rank: it is not scaled with the number of ranks, which a larger batch "
        "may want"
    )


def _rates(trace: Trace | None) -> list[float]:
    """Of each step of rank 0, as far as known."""
    if trace is None or not trace.ranks:
        return []
    rates: Sequence[float | None] = [step.lr for step in trace.ranks[0].steps]
    return [value for value in rates if value is not None] if None not in rates else []


def _same(first: float, second: float) -> bool:
    return abs(first - second) <= _EQUAL * max(abs(first), abs(second))


RULES = (scheduler_steps, faster_schedule)
