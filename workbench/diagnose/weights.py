"""What the ranks' weights say: copies that drift apart, and weights that never change.

`launching/capture/weight_looks.py` writes a few numbers of up to four parameters at some steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.diagnose.evidence import Evidence
from workbench.store.files import parse_line, read_tail
from workbench.store.findings import Finding

_RANKS = 64  # compared: a drift of one of more ranks is most often one of all
_TAIL = 8192  # bytes of a rank's file: its latest looks
_TOLERANCE = 1e-3  # of a norm: what other kernels on other cards may round is below it
_NUMBERS = 3  # of a parameter; the fourth is of its gradient
_LOOKS = 3  # in which nothing changed
_HALF_STEPS = 192  # half precision rounds the small updates of a warm-up away


_APPLIED = (
    "DistributedDataParallel holds copies, which stay equal: here gradients are not exchanged "
    "(no_sync() left on, model.module called, parameters replaced after wrapping), or one rank "
    "clips or steps alone."
)
_VERIFY = "Run workbench verify on the script: it names the first step and tensor."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One rank's numbers at one step."""

    step: int
    lr: float
    copies: bool
    half: bool
    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    """Sum, sum with signs, norm, norm of the gradient; of each parameter."""


def weights_drift(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that DDP should keep alike hold other weights, in two looks in a row."""
    by_rank = _looks(evidence)
    first = by_rank.get(0, {})
    for rank in sorted(by_rank.keys() - {0}):
        steps = [key for key in sorted(first.keys() & by_rank[rank].keys()) if first[key].copies]
        off = [_differences(first[step], by_rank[rank][step]) for step in steps[-2:]]
        worst = [
            max(differences, default=(0.0, ""), key=lambda pair: pair[0]) for differences in off
        ]
        if len(worst) < 2 or min(worst)[0] <= _TOLERANCE:
            continue
        by, name = worst[-1]
        rates = first[steps[-1]].lr, by_rank[rank][steps[-1]].lr
        cause, move = _APPLIED, _VERIFY
        if not math.isclose(*rates, rel_tol=1e-6):
            cause = (
                f"The learning rate is {rates[0]:.4g} on rank 0 and {rates[1]:.4g} on rank {rank}, "
                "so the same gradient is another update."
            )
            move = (
                "Compute the learning rate on one rank and broadcast it, or from what is equal on "
                "all: a loss is each rank's own until it is averaged over them."
            )
        yield Finding(
            kind="weights-drift",
            rank=rank,
            step=steps[-2],
            severity="error",
            confidence=0.95,
            evidence=f"{name} of rank {rank} differs from rank 0's by {by:.1%} of its norm at "
            f"step {steps[-1]}; at step {steps[-2]} it was {worst[0][0]:.1%}.",
            cause=cause,
            next=move,
        )
        return


def no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A rank has no gradient, or one of zeros, where another rank has one."""
    by_rank = _looks(evidence)
    common = set[int].intersection(*map(set, by_rank.values())) if len(by_rank) > 1 else set[int]()
    steps = sorted(step for step in common if all(looks[step].copies for looks in by_rank.values()))
    latest = steps[-_LOOKS:]
    if len(latest) < _LOOKS:
        return
    active = {
        rank: [any((row[_NUMBERS] or 0.0) > 0.0 for row in value[step].values) for step in latest]
        for rank, value in by_rank.items()
    }
    idle = [rank for rank, seen in active.items() if not any(seen)]
    if idle and any(all(seen) for seen in active.values()):
        yield Finding(
            kind="no-gradient",
            rank=idle[0],
            step=latest[0],
            severity="error",
            confidence=0.9,
            evidence=f"At steps {', '.join(map(str, latest))} none of "
            f"{len(by_rank[idle[0]][latest[0]].names)} parameters looked at has a gradient on rank "
            f"{idle[0]}; other ranks have one.",
            cause="That rank's backward pass does not reach the parameters: its loss is detached, "
            "or masked to zero, or it calls another copy of the model.",
            next="Print loss.requires_grad and the gradients' norms on that rank.",
        )


def weights_unchanged(evidence: Evidence) -> Iterator[Finding]:
    """No weight that is looked at has changed, although the learning rate is above zero."""
    looks = [look for _, look in sorted(_looks(evidence).get(0, {}).items())][-_LOOKS:]
    if len(looks) < _LOOKS or len({look.names for look in looks}) > 1:
        return
    if any(None in row[:_NUMBERS] for look in looks for row in look.values):
        return  # NaN stays NaN however it is updated; another rule reports it
    span = looks[-1].step - looks[0].step
    same = len({tuple(row[:_NUMBERS] for row in look.values) for look in looks}) == 1
    if not same or min(look.lr for look in looks) <= 0 or (looks[0].half and span < _HALF_STEPS):
        return
    stale = all(row[_NUMBERS] is None for look in looks for row in look.values)
    yield Finding(
        kind="weights-unchanged",
        step=looks[0].step,
        severity="error",
        confidence=0.9,
        evidence=f"From step {looks[0].step} to {looks[-1].step} {', '.join(looks[0].names)} "
        f"did not change, at a learning rate of {looks[-1].lr:.3g}"
        f"{'; they have no gradient' if stale else ''}.",
        cause="The optimizer holds other parameters than the model that is trained: it was made "
        "before the model was wrapped, moved or loaded."
        if stale
        else "The updates are lost: below the rounding of half precision, or gradients of zero.",
        next="Make the optimizer from model.parameters() after the last change of the model."
        if stale
        else "Keep the weights in float32 (autocast), and look at the gradients' norms.",
    )


def _differences(look: _Look, other: _Look) -> Iterator[tuple[float, str]]:
    """Of each parameter: about how far its copies are apart, relative to the norm."""
    if look.names != other.names:
        return
    for name, mine, theirs in zip(look.names, look.values, other.values, strict=True):
        figures = [
            figure for figure in (*mine[:_NUMBERS], *theirs[:_NUMBERS]) if figure is not None
        ]
        if len(figures) == 2 * _NUMBERS:  # else one is no number, which another rule tells
            sums = math.hypot(figures[0] - figures[3], figures[1] - figures[4]) / math.sqrt(2)
            yield sums / max(figures[2], figures[5], 1e-12), name


def _looks(evidence: Evidence) -> dict[int, dict[int, _Look]]:
    """The latest looks, by rank and step."""
    return {
        rank: looks
        for rank in range(min(_RANKS, evidence.processes))
        if (looks := _read(read_tail(evidence.paths.rank_weights(rank), _TAIL), evidence.steps))
    }


def _read(text: str, until: int) -> dict[int, _Look]:
    """The looks up to step `until`: a run that is replayed has all of them."""
    looks: dict[int, _Look] = {}
    for line in text.splitlines():
        document, _ = parse_line(line.encode())
        if document is None:
            continue
        try:
            look = _look(document)
        except (KeyError, TypeError, ValueError):
            continue
        if look.step > until:
            break
        # A step that is done again begins another training.
        looks = {step: earlier for step, earlier in looks.items() if step < look.step} | {
            look.step: look
        }
    return looks


def _look(document: Mapping[str, Any]) -> _Look:
    rows: Sequence[Sequence[float | None]] = document["values"]
    return _Look(
        step=int(document["step"]),
        lr=float(document["lr"]),
        copies=document["copies"] is True,
        half=document["half"] is True,
        names=tuple(map(str, document["names"])),
        values=tuple(
            tuple(None if number is None else float(number) for number in row[:4]) for row in rows
        ),
    )


SLOW_RULES = (weights_drift, no_gradient, weights_unchanged)
