"""What the ranks must agree on: initial weights, gradients after exchange, weights after a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.verifying.trace import (
    EPSILON,
    Sketch,
    Step,
    Trace,
    copies,
    distance,
    root_mean_square,
)
from workbench.verifying.verdict import Verdict

_SLACK = 64  # times the rounding of one operation: sums of ranks in any order stay well below
_LOST = 0.05  # of a gradient's norm: what compression and rounding never reach


def rounding(sketch: Sketch) -> float:
    """Largest difference of two tensors, as a norm, that their data type explains."""
    return _SLACK * EPSILON.get(sketch.dtype, EPSILON["float32"]) * sketch.size


def initial_weights(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Copies of one parameter begin with other values."""
    weights = [rank.weights for rank in trace.ranks]
    for name in weights[0]:
        for ranks in copies(name, weights):
            odd = _odd(weights, name, ranks)
            if odd is None:
                continue
            by, size = (
                distance(weights[ranks[0]][name], weights[odd][name]),
                weights[odd][name].size,
            )
            wrapped = bool(trace.ranks[0].wrappers)
            yield Verdict(
                kind="initial-weights",
                part="weights",
                step=0,
                rank=odd,
                what=name,
                evidence=f"Before the first step {name} on rank {odd} differs from rank "
                f"{ranks[0]} by {by:.3g}, of a norm of {size:.3g}.",
                bound="Copies are equal, bit by bit.",
                cause="The parameters were changed after wrapping, on each rank by itself."
                if wrapped
                else "Each rank drew its own weights: another seed, and nothing that broadcasts "
                "them. The model is not wrapped in DistributedDataParallel.",
                next="Wrap the model (DDP broadcasts rank 0's weights), or broadcast them.",
            )
            return


def _odd(
    sketches: Sequence[Mapping[str, Sketch | None]], name: str, ranks: list[int]
) -> int | None:
    """The first rank whose copy differs from the first one's."""
    sketch = sketches[ranks[0]].get(name)
    for rank in ranks[1:]:
        other = sketches[rank].get(name)
        if sketch is not None and other is not None and sketch.hash != other.hash:
            return rank
    return None


def exchanged(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Gradients as they are applied are the same on all ranks, unless those average weights."""
    if averages_weights(trace):
        return
    for number in range(trace.steps):
        steps = trace.at(number)
        gradients = [step.gradients for step in steps]
        names = [
            name
            for name in gradients[0]
            for ranks in copies(name, gradients)
            if (odd := _odd(gradients, name, ranks)) is not None
            and _far(gradients, name, ranks[0], odd)
        ]
        if names:
            yield _gradients_differ(trace, steps, list(dict.fromkeys(names)))
            return


def averages_weights(trace: Trace) -> bool:
    """Whether the ranks train apart and make their weights equal now and then (local SGD)."""
    for number in range(1, trace.steps):
        before, moved = trace.at(number - 1), [step.moved for step in trace.at(number)]
        for name, value in moved[0].items():
            hashes = {
                sketch.hash for step in before if (sketch := step.weights.get(name)) is not None
            }
            if len(hashes) > 1 and all(weights.get(name) == value for weights in moved):
                return True
    return False


def own_rates(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Ranks that average their weights learn at rates of their own."""
    for number in range(trace.steps if averages_weights(trace) else 0):
        rates = [step.lr for step in trace.at(number)]
        if len(set(rates)) > 1 and None not in rates:
            yield Verdict(
                kind="rates-differ",
                part="update",
                step=number + 1,
                rank=next(rank for rank, rate in enumerate(rates) if rate != rates[0]),
                what="learning rate",
                evidence=f"In step {number + 1} the ranks' learning rates are "
                f"{', '.join(f'{rate:.4g}' for rate in rates if rate is not None)}.",
                bound="Equal on all ranks.",
                cause="The rate is computed from something of each rank's own, and the average of "
                "the weights hides it.",
                next="Compute the learning rate from what is equal on all ranks, or broadcast it.",
            )
            return


def _far(
    sketches: Sequence[Mapping[str, Sketch | None]], name: str, rank: int, other_rank: int
) -> bool:
    first, second = sketches[rank][name], sketches[other_rank][name]
    assert first is not None
    assert second is not None
    return distance(first, second) > rounding(first)


def _gradients_differ(trace: Trace, steps: Sequence[Step], names: Sequence[str]) -> Verdict:
    """Gradients differ: never exchanged, or damaged on the way."""
    name = names[0]
    gradients = [step.gradients[name] for step in steps]
    first = gradients[0]
    odd = next(
        n for n, sketch in enumerate(gradients) if sketch and first and distance(first, sketch) > 0
    )
    other = gradients[odd]
    assert first is not None
    assert other is not None
    own = [step.local.get(name) for step in steps]
    unexchanged = all(
        mine is not None and sketch is not None and distance(mine, sketch) <= rounding(sketch)
        for mine, sketch in zip(own, gradients, strict=True)
    )
    kind = "gradients-not-exchanged" if unexchanged else "exchange-damaged"
    cause, move = _why_unequal(trace, steps, names) if unexchanged else _DAMAGED
    return Verdict(
        kind=kind,
        part="gradients",
        step=steps[0].step,
        rank=odd,
        what=name,
        evidence=f"The gradient of {name} that is applied has a norm of {first.size:.3g} on rank 0 "
        f"and {other.size:.3g} on rank {odd}; they differ by {distance(first, other):.3g}"
        + (", and each is what its rank computed alone" if unexchanged else "")
        + f". So do {len(names)} of {len(steps[0].gradients)} parameters.",
        bound=f"Equal on all ranks; rounding of {first.dtype} explains {rounding(first):.1g}.",
        cause=cause,
        next=move,
    )


_DAMAGED = (
    (
        "The exchange lost or damaged data between the ranks (peer-to-peer transfers, a "
        "communication hook), or one rank changed its gradients after it."
    ),
    (
        "Run the links' own test (nccl-tests), try NCCL_P2P_DISABLE=1, and look at what the script "
        "does between backward and step on one rank alone."
    ),
)


def _why_unequal(trace: Trace, steps: Sequence[Step], names: Sequence[str]) -> tuple[str, str]:
    wrappers = trace.ranks[0].wrappers
    called = steps[0].called
    if steps[0].unsynced >= max(1, len(steps[0].losses)):
        return (
            "The last backward pass of the step runs under no_sync(), so nothing is exchanged.",
            "Leave no_sync() for the last micro-batch of each step.",
        )
    if not wrappers:
        return (
            "The model is not wrapped: each rank trains a model of its own.",
            (
                "Wrap it: DistributedDataParallel(model), or accelerator.prepare(model). A script "
                "that averages weights every N steps is told apart with --steps N+1 and more."
            ),
        )
    if called and "DistributedDataParallel" not in called:
        return (
            f"The script calls {called[0]}, the model inside its wrapper, which DDP does not see.",
            "Call the wrapped model in every step; keep model.module for saving.",
        )
    if len(names) < len(steps[0].gradients):
        return (
            "DDP does not know these parameters: replaced, unfrozen or added after wrapping.",
            "Change the model first and wrap it last; use all of it in the wrapper's forward.",
        )
    return (
        "DDP's hooks are on other parameters: the model was moved or replaced after wrapping.",
        "Move, convert and load the model first, and wrap it last.",
    )


def averaged(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """What is applied is the mean of what the ranks computed, but for one common factor."""
    if any(rank.comm_hook for rank in trace.ranks) or averages_weights(trace):
        return
    for number in range(trace.steps):
        steps = trace.at(number)
        older = {name for step in steps for name in step.older}
        means = {
            name: _mean([step.local[name].projections for step in steps])
            for name, sketch in steps[0].gradients.items()
            if sketch is not None
            and name not in older
            and all(name in step.local for step in steps)
        }
        by_value = any(clip["kind"] == "value" for step in steps for clip in step.clips)
        if len(means) < 2 or by_value:
            continue
        lost = _lost(means, steps[0])
        if lost is not None:
            yield lost
            return


def _mean(values: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(values) for column in zip(*values, strict=True)]


def _lost(means: Mapping[str, Sequence[float]], step: Step) -> Verdict | None:
    """The first parameter whose gradient is not the mean, where the others' are."""
    off = dict[str, float]()
    for name, mean in means.items():
        gradient = step.gradients[name]
        assert gradient is not None
        size = root_mean_square(mean)
        if size:
            dot = sum(a * b for a, b in zip(gradient.projections, mean, strict=True))
            off[name] = dot / sum(a * a for a in mean)
    factor = sorted(off.values())[len(off) // 2] if off else 0.0
    total = max((root_mean_square(means[name]) for name in off), default=0.0)
    for name in off:
        gradient, mean = step.gradients[name], means[name]
        assert gradient is not None
        pairs = zip(gradient.projections, mean, strict=True)
        residual = root_mean_square([a - factor * b for a, b in pairs])
        size = abs(factor) * root_mean_square(mean)
        if factor and residual > _LOST * size and residual > 1e-4 * abs(factor) * total:
            return _not_the_mean(name, step.step, residual, size)
    return None


def _not_the_mean(name: str, step: int, residual: float, size: float) -> Verdict:
    return Verdict(
        kind="exchange-damaged",
        part="gradients",
        step=step,
        what=name,
        evidence=f"The gradient of {name} that all ranks apply differs from the mean of what they "
        f"computed by {residual:.3g}, of {size:.3g}; those of most parameters do not.",
        bound=f"Within {_LOST:.0%} of the mean, which no rounding reaches.",
        cause=_DAMAGED[0],
        next=_DAMAGED[1],
    )


def weights_drift(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """Copies of a parameter are not the same after a step."""
    if averages_weights(trace):
        return
    begin = [rank.weights for rank in trace.ranks]
    single_weights = _single_rank_weights(reference)
    for number in range(trace.steps):
        steps = trace.at(number)
        weights = [step.weights for step in steps]
        for name in (key for key in weights[0] if key in begin[0]):
            full = single_weights.get(name)
            for ranks in copies(name, weights):
                if _odd(begin, name, ranks) is not None or _is_shard(begin[0][name], full):
                    continue
                odd = _odd(weights, name, ranks)
                if odd is not None and _far(weights, name, ranks[0], odd):
                    yield _drifted(steps, name, (ranks[0], odd))
                    return


def _single_rank_weights(reference: Trace | None) -> Mapping[str, Sketch]:
    """The model in one piece, before the first step."""
    if reference is None or not reference.ranks:
        return dict[str, Sketch]()
    return reference.ranks[0].weights


def _is_shard(own: Sketch, full: Sketch | None) -> bool:
    """Whether one rank alone has the parameter in another shape."""
    return full is not None and full.shape != own.shape


def _drifted(steps: Sequence[Step], name: str, ranks: tuple[int, int]) -> Verdict:
    first, second = (steps[rank].weights[name] for rank in ranks)
    rates = {step.lr for step in steps}
    return Verdict(
        kind="weights-drift",
        part="update",
        step=steps[0].step,
        rank=ranks[1],
        what=name,
        evidence=f"After step {steps[0].step} {name} differs between ranks {ranks[0]} and "
        f"{ranks[1]} by {distance(first, second):.3g}; before the first step they were equal.",
        bound=f"Copies are equal; rounding of {first.dtype} explains {rounding(first):.1g}.",
        cause=f"The ranks' learning rates differ: {sorted(map(str, rates))}."
        if len(rates) > 1
        else "The ranks apply different updates to a parameter that all of them hold: clipping by "
        "a norm of each rank's own, clipping or stepping on one rank only, or optimizer states "
        "that differ.",
        next="Compute the learning rate on one rank and broadcast it, or from what is equal on "
        "all: a loss is each rank's own until it is averaged over them."
        if len(rates) > 1
        else "Compute the norm over all ranks (with tensor or pipeline parallelism: all_reduce its "
        "square), and clip and step on every rank.",
    )


def same_shards(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """Different parts of one parameter were drawn with the same random numbers."""
    single_weights = _single_rank_weights(reference)
    for name, sketch in trace.ranks[0].weights.items():
        other_weights = [rank.weights.get(name) for rank in trace.ranks[1:]]
        parts = _is_shard(sketch, single_weights.get(name)) or any(
            other is not None and other.piece != sketch.piece for other in other_weights
        )
        for rank, other in enumerate(other_weights, 1):
            if not parts or other is None or other.hash != sketch.hash or not sketch.spread:
                continue
            if sketch.offset is not None and other.piece == sketch.piece:
                continue  # a copy, in a mesh of several dimensions
            full = single_weights.get(name)
            yield Verdict(
                kind="same-shards",
                part="weights",
                step=0,
                rank=rank,
                what=name,
                evidence=f"Rank {rank}'s part of {name} {_shape(sketch)} is rank 0's, element by "
                f"element{f'; one rank alone holds {_shape(full)}' if full else ''}.",
                bound="Parts of one parameter are drawn independently.",
                cause="The same seed on every tensor-parallel rank: the layer has "
                f"1/{len(trace.ranks)} of the features that it should have, each several times.",
                next="Seed by tensor-parallel rank where shards are drawn, or draw the whole on "
                "each rank and take a part; keep one seed for what is replicated.",
            )
            return


def _shape(sketch: Sketch | None) -> str:
    return "" if sketch is None else f"[{', '.join(map(str, sketch.local or sketch.shape))}]"


COPY_RULES = (initial_weights, exchanged, averaged, own_rates)
"""Of ranks that each hold the whole model, or a shard of one model that all of them train."""
RULES = (weights_drift, same_shards)
