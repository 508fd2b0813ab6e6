"""Two runs of the same samples beside each other: losses, gradients, weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.verifying.trace import EPSILON, RankTrace, Sketch, Step, Trace, root_mean_square
from workbench.verifying.verdict import Severity, Verdict

_SLACK = 8
_SMALL = (
    0.01  # of the largest gradient: below it a gradient is rounding itself (a bias before norm)
)
_GROWS = 4  # times as much may differ with each further step: errors feed themselves
_LONGEST = 1 << 24  # of a sum, in the bound
NO_NUMBERS = "the losses of both runs are NaN or infinite from the first step on"
"""Why two runs cannot be compared that both are broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far two runs could be compared."""

    steps: int
    """First steps that read the same samples in both; 0 = none."""
    why: str
    """What makes the comparison possible, or what it lacks."""
    bound: float | None = None
    """Largest relative difference that rounding explains; None where nothing was compared."""
    loss: float | None = None
    """Largest relative difference of the losses in those steps."""
    gradient: float | None = None
    """Of the gradients of the first step, relative to the largest one."""


def compare(parallel: Trace, single: Trace) -> tuple[Comparison, list[Verdict]]:
    """The ranks of `parallel` together beside those of `single`."""
    steps = _same_samples(parallel, single)
    if not steps:
        return Comparison(steps=0, why=_why_other(parallel, single)), []
    if not _same_beginning(parallel, single):
        why = "the same samples, but other initial weights: they are drawn by rank, or in shards"
        return Comparison(steps=0, why=why), []
    if any(step.noise for trace in (parallel, single) for step in trace.at(0)):
        why = "the same samples, but the forward pass draws random numbers, which are each rank's"
        return Comparison(steps=0, why=why), []
    bound = rounding_bound(parallel, single)
    steps = next(
        (number for number in range(steps) if _both_broken(parallel, single, number)), steps
    )
    if not steps:
        return Comparison(steps=0, why=NO_NUMBERS), []
    losses = [_loss_off(parallel, single, number) for number in range(steps)]
    gradient = _gradients_off(parallel, single)
    comparison = Comparison(
        steps=steps,
        why="both runs read the same samples in each step, and begin with the same weights",
        bound=bound,
        loss=max((off for off in losses if off is not None), default=None),
        gradient=None if gradient is None else gradient[1],
    )
    return comparison, list(_verdicts(parallel, single, bound, losses, gradient))


def rounding_bound(parallel: Trace, single: Trace) -> float:
    """8 epsilon; of float32 times the root of the longest sum: elements of a step's batch.

    Half precision rounds what goes into a sum and comes out, and adds up in float32.
    """
    shapes = [shape for step in single.at(0) for batch in step.batches for shape in batch.shapes]
    length = min(_LONGEST, max((math.prod(shape) for shape in shapes), default=1024))
    epsilon = max(parallel.epsilon, single.epsilon)
    of_sums = min(epsilon, EPSILON["float32"]) * math.sqrt(max(1024, length))
    return _SLACK * max(of_sums, epsilon)


def _same_samples(parallel: Trace, single: Trace) -> int:
    """How many first steps read the same samples in both runs."""
    number = 0
    while (
        number < min(parallel.steps, single.steps)
        and _read(parallel, number) == _read(single, number) != []
    ):
        number += 1
        if parallel.at(number - 1)[0].lr != single.at(number - 1)[0].lr:
            break  # a rate that is scaled by the number of ranks: other weights from here on
    return number


def _read(trace: Trace, number: int) -> list[int]:
    """Contents of all samples of a step; those that a copy's ranks share count once."""
    steps = trace.at(number)[:: max(1, trace.split)]
    return sorted(mark for step in steps for mark in step.samples)


def _why_other(parallel: Trace, single: Trace) -> str:
    if not parallel.steps or not single.steps:
        return "one of the runs made no step"
    if not _read(parallel, 0) or not _read(single, 0):
        return "the samples are not seen: the model is given none with a dimension for them"
    if len(_read(parallel, 0)) != len(_read(single, 0)) and parallel.split > 1:
        return "the later stages of a pipeline are given activations, not samples"
    if len(_read(parallel, 0)) != len(_read(single, 0)):
        return (
            f"a step reads {len(_read(parallel, 0))} samples on {parallel.label} "
            f"and {len(_read(single, 0))} on {single.label}: the batch cannot be made equal "
            "from outside"
        )
    return "the runs read other samples: the order depends on the number of ranks"


def _same_beginning(parallel: Trace, single: Trace) -> bool:
    joined, expected = (
        _projections([r.weights for r in parallel.ranks]),
        _projections([r.weights for r in single.ranks]),
    )
    shared = set(joined) & set(expected)
    return bool(shared) and all(
        root_mean_square([a - b for a, b in zip(joined[name], expected[name], strict=True)])
        <= 1e-6 * (root_mean_square(expected[name]) + 1e-12)
        for name in shared
    )


def _projections(tensors: Sequence[Mapping[str, Sketch | None]]) -> dict[str, tuple[float, ...]]:
    """Projections of whole tensors: pieces of the ranks added up, each once."""
    by_name: dict[str, dict[object, Sketch]] = {}
    for sketches in tensors:
        for name, sketch in sketches.items():
            if sketch is not None:
                by_name.setdefault(name, {}).setdefault(sketch.piece, sketch)
    return {
        name: tuple(map(sum, zip(*(sketch.projections for sketch in pieces.values()), strict=True)))
        for name, pieces in by_name.items()
    }


def mean_loss(steps: Sequence[Step]) -> float | None:
    """The ranks' mean; each rank's loss counts the same, as its gradient does."""
    losses = [step.loss for step in steps if step.loss is not None]
    return sum(losses) / len(losses) if losses else None


def _both_broken(parallel: Trace, single: Trace, number: int) -> bool:
    """Whether neither run has a loss in that step that is a number."""
    losses = [mean_loss(trace.at(number)) for trace in (parallel, single)]
    return all(loss is not None and not math.isfinite(loss) for loss in losses)


def _loss_off(parallel: Trace, single: Trace, number: int) -> float | None:
    first, second = mean_loss(parallel.at(number)), mean_loss(single.at(number))
    if first is None or second is None:
        return None
    if first == second:
        return 0.0
    off = abs(first - second) / max(abs(second), 1e-12)
    return math.inf if math.isnan(off) else off


def _gradients_off(parallel: Trace, single: Trace) -> tuple[str, float, float] | None:
    """The first step's gradient that differs most: its name, by how much, the common factor."""
    joined = _projections([step.gradients for step in parallel.at(0)])
    expected = _projections([step.gradients for step in single.at(0)])
    shared = [
        name for name in expected if name in joined and _are_finite(joined[name], expected[name])
    ]
    largest = max((root_mean_square(expected[name]) for name in shared), default=0.0)
    if not largest:
        return None
    dot = sum(a * b for name in shared for a, b in zip(joined[name], expected[name], strict=True))
    square = sum(b * b for name in shared for b in expected[name])
    off = {
        name: root_mean_square([a - b for a, b in zip(joined[name], expected[name], strict=True)])
        / max(root_mean_square(expected[name]), _SMALL * largest)
        for name in shared
    }
    worst = max(off, key=lambda name: off[name])
    return worst, off[worst], dot / square


def _are_finite(*tensors: Sequence[float]) -> bool:
    """Whether all projections are numbers; what a scaler skips has infinite gradients."""
    return all(map(math.isfinite, itertools.chain(*tensors)))


def _verdicts(
    parallel: Trace,
    trace: Trace,
    bound: float,
    losses: Sequence[float | None],
    gradient: tuple[str, float, float] | None,
) -> Iterator[Verdict]:
    size = len(parallel.ranks) // max(1, parallel.split)
    for number, off in enumerate(losses):
        if off is not None and off > bound * _GROWS**number and off > 1e-6:
            yield _loss_verdict(parallel, trace, number, off, bound * _GROWS**number)
            break
    if gradient is not None and gradient[1] > _GROWS * bound:
        yield _gradient_verdict(parallel, trace, gradient, _GROWS * bound, size)


def _loss_verdict(parallel: Trace, single: Trace, number: int, off: float, bound: float) -> Verdict:
    first, second = mean_loss(parallel.at(number)), mean_loss(single.at(number))
    cause, move, severity = _why_values(parallel.ranks[0], parallel.at(number))
    return Verdict(
        kind="loss-differs",
        part="loss",
        step=number + 1,
        severity=severity,
        what="the mean loss of the ranks",
        evidence=f"On the same samples it is {first:.6g} on {parallel.label} and {second:.6g} on "
        f"{single.label}: {off:.2g} relative.",
        bound=f"Rounding explains {bound:.1g} ({_SLACK} epsilon, of float32 times the root of "
        f"the longest sum{f', times {_GROWS} with each step' if number else ''}).",
        cause=cause,
        next=move,
    )


def _gradient_verdict(
    parallel: Trace, single: Trace, farthest: tuple[str, float, float], bound: float, size: int
) -> Verdict:
    name, off, factor = farthest
    cause, move, severity = _why_values(parallel.ranks[0], parallel.at(0))
    if size > 1 and abs(factor * size - 1) < 0.1:
        cause = (
            "The loss is a sum over the batch, and the exchange averages: the gradient shrinks "
            "with the number of ranks."
        )
        move, severity = "Use a mean, or multiply the loss by the number of ranks.", "warning"
    elif size > 1 and abs(factor / size - 1) < 0.1:
        cause = "The gradients are added over the ranks and not averaged."
        move, severity = f"Divide them by {size}, or lower the learning rate.", "error"
    return Verdict(
        kind="gradients-differ",
        part="gradients",
        severity=severity,
        what=name,
        evidence=f"On the same samples the gradients on {parallel.label} are {factor:.3g} times "
        f"those on {single.label}; {name} differs by {off:.2g} relative.",
        bound=f"Rounding explains {bound:.1g} ({_GROWS * _SLACK} epsilon, of float32 times the "
        "root of the longest sum).",
        cause=cause,
        next=move,
    )


def _why_values(rank: RankTrace, steps: Sequence[Step]) -> tuple[str, str, Severity]:
    """Cause, next move and severity of a value that differs."""
    if rank.batch_norm > rank.sync_batch_norm:
        return (
            f"{rank.batch_norm} BatchNorm layers use the statistics of each rank's own samples.",
            "With few samples per rank use SyncBatchNorm; else nothing: it is usual.",
            "note",
        )
    counts = {sum(target["valid"] for target in step.targets) for step in steps}
    if len(counts) > 1:
        return (
            f"The ranks' losses are means over {', '.join(map(str, sorted(counts)))} targets.",
            "Sum the loss and divide by the targets of all ranks, times the number of ranks.",
            "warning",
        )
    return (
        (
            "The script computes something else on several ranks: a loss that depends on the size "
            "of the batch, random numbers drawn by rank, or a layer that sees only its rank's "
            "samples."
        ),
        "Look at what the loss and the model do across the samples of one batch.",
        "warning",
    )
