"""All ranks come together, and the exchange itself takes much of the step: a slow link.

Only where nothing but the exchange lies between what is recorded: from the last rank's entry of the
last sum to the optimizer (DDP), and from the last rank's entry of the optimizer's gather to the
step's end (ZeRO 1 and 2). What FSDP and ZeRO 3 gather is computed with at once: an entry alone does
not tell when a gather ended and the work began, so nothing is said there.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.diagnose.arrival_order import ENTER, LEAST_STEPS, recent
from workbench.diagnose.evidence import Evidence
from workbench.observe.arrival_window import ArrivalWindow
from workbench.store.findings import Finding
from workbench.units import format_seconds

_LEAST_STEP_SECONDS = 0.02
_LEAST_GATHER_SECONDS = 0.05  # a small model's gather is mostly its fixed cost


def slow_sum(evidence: Evidence) -> Iterator[Finding]:
    """The sum of gradients at the end of the backward pass.

    0.13 of the step at most on healthy hosts without a free core, 0.38 where a link takes as long
    as the work.
    """
    window = _clear_window(evidence)
    if window is None or window.exchange_seconds is None:
        return
    share = window.exchange_seconds / window.step_seconds
    together = window.late_seconds / window.step_seconds
    bound = evidence.bound("communication-bound", None, 0.35, 0.28)
    if share < bound or together > ENTER:
        return
    yield _finding(
        window,
        f"All ranks enter the exchange of gradients within "
        f"{format_seconds(window.late_seconds)} of one another; its end then takes "
        f"{format_seconds(window.exchange_seconds)} of {format_seconds(window.step_seconds)} a "
        f"step ({share:.0%}, {window.steps} steps).",
        "The exchange of gradients takes much of the step, and no rank is late for it: "
        "a slow link, or little work for so many parameters.",
    )


def slow_gather(evidence: Evidence) -> Iterator[Finding]:
    """The gather of updated weights at the end of the optimizer's step, with ZeRO 1 and 2.

    0.06 of the step at most on hosts without a free core, 0.15 (10 ms) in the smallest models, 0.22
    where a link takes three times as long as the work; gradients take the rest there.
    """
    window = _clear_window(evidence)
    if window is None or evidence.strategy("zero_stage") not in {1, 2}:
        return
    gather = window.gather_seconds
    if gather is None or gather < _LEAST_GATHER_SECONDS or evidence.strategy("offload"):
        return
    share = gather / window.step_seconds
    # A rank for which the exchange before has ended later enters later: that is no work of its own.
    together = max(0.0, window.late_seconds - window.uneven_seconds) / window.step_seconds
    bound = evidence.bound("communication-bound", None, 0.18, 0.14)
    if share < bound or together > ENTER:
        return
    yield _finding(
        window,
        f"From the last rank's entry of the optimizer's exchange to the first rank's end of the "
        f"step pass {format_seconds(gather)} of {format_seconds(window.step_seconds)} a step "
        f"({share:.0%}, {window.steps} steps).",
        "The gather of the updated weights takes much of the step while all ranks are in it: "
        "a slow link, or little work for so many parameters. Gradients take the same way before.",
    )


def _clear_window(evidence: Evidence) -> ArrivalWindow | None:
    window = recent(evidence)
    if window is None or window.steps < LEAST_STEPS:
        return None
    return window if window.step_seconds >= _LEAST_STEP_SECONDS else None


def _finding(window: ArrivalWindow, evidence: str, cause: str) -> Finding:
    return Finding(
        kind="communication-bound",
        step=window.first,
        severity="note",
        confidence=0.8,
        evidence=evidence,
        cause=cause,
        next="Accumulate more micro-batches per step, shard less, use a faster link, or a "
        "communication hook (bf16 gradients).",
    )


RULES = (slow_sum, slow_gather)
