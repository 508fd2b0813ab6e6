"""The first loss that was not a number: whose it was, what made it, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from workbench.diagnose.evidence import FORGIVEN_STEPS, Evidence, NonFinite
from workbench.store.files import read_json
from workbench.store.findings import Finding


def nan_loss(evidence: Evidence) -> Iterator[Finding]:
    """The first loss that was NaN or infinite, and whose it was."""
    first = evidence.first_nonfinite
    if first is None or evidence.finite_since >= FORGIVEN_STEPS:
        return
    name = "NaN" if math.isnan(first.value) else "infinite"
    rank = first.ranks[0] if 0 < len(first.ranks) < evidence.processes else None
    before = "" if first.before is None else f"; the step before it was {first.before:.4g}"
    yield Finding(
        kind="nan-loss" if name == "NaN" else "inf-loss",
        rank=rank,
        step=first.step,
        severity="error",
        confidence=0.95,
        evidence=f"The loss of {_whose(evidence, first)} is {name} at step {first.step}{before}"
        f"{_place(evidence, first)}.",
        cause=_why_nan(evidence, first, rank),
        next=_before_update(evidence, first) or _after_nan(evidence, first),
    )


def _whose(evidence: Evidence, first: NonFinite) -> str:
    if not first.ranks:
        return "the run"
    if len(first.ranks) == evidence.processes:
        return "every rank" if evidence.processes > 1 else "rank 0"
    ranks = ", ".join(str(rank) for rank in first.ranks)
    return f"rank{'s' if len(first.ranks) > 1 else ''} {ranks} alone"


def _place(evidence: Evidence, first: NonFinite) -> str:
    """The first parameter or gradient that was no number, where the hook found one."""
    rank, seen = _seen(evidence, first)
    if not isinstance(seen.get("where"), str):
        return ""
    return f"; first seen in {seen['where'][:200]} of rank {rank}"


def _seen(evidence: Evidence, first: NonFinite) -> tuple[int, dict[str, Any]]:
    """What a rank found when it noticed the first value that was no number.

    It looks once: what it found long before is of one that was forgiven.
    """
    for rank in first.ranks or range(evidence.processes):
        record = read_json(evidence.paths.metrics / f"rank-{rank}.first-nan.json")
        step = (record or {}).get("step", first.step)
        if record and isinstance(step, int) and first.step - step <= FORGIVEN_STEPS:
            return rank, record
    return 0, {}


def _no_update_yet(evidence: Evidence, first: NonFinite) -> bool:
    """Whether the attempt had changed no weight before: the learning rate has no part in it."""
    begun = [start.attempt_first_step for start in evidence.starts.values()]
    return first.step == 1 + next((step for step in begun if isinstance(step, int)), 0)


def _bad_weights(evidence: Evidence, first: NonFinite) -> str | None:
    """The weight that was no number before the first update; None without one.

    Looked at after the backward pass, as on a GPU, it may be the first update that spoiled it.
    """
    seen = _seen(evidence, first)[1]
    if seen.get("kind") != "parameter" or not seen.get("before_backward"):
        return None
    return str(seen.get("where"))[:200]


def _before_update(evidence: Evidence, first: NonFinite) -> str | None:
    """What to do about a loss that was no number before any weight had changed."""
    if not _no_update_yet(evidence, first):
        return None
    weight = _bad_weights(evidence, first)
    if weight is not None:
        again = "start again with good weights"
        if first.step > 1:
            again = "resume from an older checkpoint"
        return (
            f"Check where {weight} is loaded or initialised (`torch.isfinite(p).all()` for each "
            f"parameter), then {again}."
        )
    other = ""
    if (evidence.run.workload or {}).get("precision") == "fp16":
        other = " fp16 overflows above 65504: try bf16."
    return (
        "Look at the first batch (non-finite inputs, labels that are all ignored) and at "
        f"logarithms and divisions in the loss, then start again.{other}"
    )


def _why_nan(evidence: Evidence, first: NonFinite, rank: int | None) -> str:
    early = _no_update_yet(evidence, first)
    weight = _bad_weights(evidence, first) if early else None
    if weight is not None:
        return f"The weights were not finite before the first update: {weight}."
    if rank is not None:
        return (
            f"Rank {rank}'s batch or hardware caused it: the other ranks had finite losses at that "
            "step. Averaging the gradients then corrupts the weights of all ranks."
        )
    recent = [loss for loss in list(evidence.losses)[-5:] if loss > 0]
    if len(recent) == 5 and recent[-1] > 3 * recent[0]:
        return "The loss had grown before that: training diverged (learning rate too high)."
    if early:
        looked = _seen(evidence, first)[1]
        fine = looked.get("kind") == "loss" and looked.get("before_backward")
        weights = ", all weights are finite" if fine else ""
        return (
            f"No update had been applied yet{weights}: the first batch or the loss computation "
            "caused it, not the learning rate."
        )
    if first.step <= 10:
        return "The first steps overflow: bad input values, or a learning rate without warm-up."
    return "An overflow in the forward pass, a bad batch, or a division by zero in the loss."


def _after_nan(evidence: Evidence, first: NonFinite) -> str:
    """What to do about it, as far as it is known where the run stands and what it has kept."""
    ended = evidence.outcome is not None
    saved = (checkpoint.step for checkpoint in evidence.facts.checkpoints)
    if any(step is not None and step < first.step for step in saved):
        back = f"{'Go' if ended else 'Stop, go'} back to the last checkpoint before step"
        back = f"{back} {first.step}"
    else:
        back = f"No checkpoint before step {first.step} is known. "
        back += "Start again" if ended else "Stop, and start again"
    other = ["lower the learning rate", "clip the gradient norm"]
    if (evidence.run.workload or {}).get("precision") == "fp16":
        other.append("leave fp16 for bf16")
    ways = f"{', '.join(other[:-1])} or {other[-1]}"
    return f"{back}. Look at the batch of step {first.step}; {ways}."
