"""What is meant to be one: weights that two layers share, buffers that all ranks share."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.verifying.trace import RankTrace, Trace
from workbench.verifying.verdict import Verdict


def tied_weights_split(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """An embedding and an output layer begin equal, and each is trained by itself."""
    rank = trace.ranks[0]
    for first, second in _tied_elsewhere(rank, reference) or _equal_at_first(rank):
        for step in rank.steps:
            sketch, twin = step.weights.get(first), step.weights.get(second)
            if sketch is None or twin is None or sketch.hash == twin.hash:
                continue
            elsewhere = bool(_tied_elsewhere(rank, reference))
            assert reference is not None or not elsewhere
            begun = "On one rank they are one parameter" if elsewhere else "They begin equal"
            yield Verdict(
                kind="tied-weights-split",
                part="update",
                step=step.step,
                what=f"{first} and {second}",
                evidence=f"{begun}; after step {step.step} their norms are {sketch.size:.6g} and "
                f"{twin.size:.6g}, and they have a gradient each.",
                bound="Tied weights are one parameter, and stay equal.",
                cause="The tie was copied and not shared (clone, copy_, load_state_dict), or it "
                "was lost by moving, loading or wrapping the layers one by one.",
                next="Assign the parameter itself after the last of these: head.weight = "
                "embedding.weight (transformers: model.tie_weights()).",
            )
            return


def _equal_at_first(rank: RankTrace) -> list[tuple[str, str]]:
    """Embeddings and other trained parameters that hold the same random numbers."""
    trained = set(rank.trainable)
    return [
        (name, other)
        for name in rank.embeddings
        for other, sketch in rank.weights.items()
        if {name, other} <= trained
        and other not in rank.embeddings
        and (own := rank.weights.get(name)) is not None
        and (own.hash, own.shape, own.piece) == (sketch.hash, sketch.shape, sketch.piece)
        and own.spread > 0
    ]


def _tied_elsewhere(rank: RankTrace, reference: Trace | None) -> list[tuple[str, str]]:
    """Names that stand for one parameter on one rank and for two here."""
    if reference is None:
        return []
    return [
        (names[0], other)
        for names in reference.ranks[0].tied
        for other in names[1:]
        if names[0] in rank.weights and other in rank.weights
    ]


def buffers_by_rank(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Running statistics that no rank ever gives to the others."""
    first = trace.ranks[0]
    broadcast = "DistributedDataParallel" in first.wrappers and not first.own_buffers
    if broadcast or first.batch_norm <= first.sync_batch_norm:
        return
    for number in range(trace.steps):
        buffers = [step.buffers for step in trace.at(number)]
        odd = [
            name
            for name in buffers[0]
            if any(counts.get(name) != buffers[0][name] for counts in buffers)
        ]
        if odd:
            off = "DDP is made with broadcast_buffers=False" if first.own_buffers else ""
            yield Verdict(
                kind="buffers-by-rank",
                part="update",
                step=number + 1,
                severity="warning",
                what=odd[0],
                evidence=f"After step {number + 1} {odd[0]} differs between the ranks, as do "
                f"{len(odd)} of {len(buffers[0])} buffers; {off or 'nothing broadcasts buffers'}.",
                bound="Copies of one model evaluate alike; DDP gives rank 0's buffers to all in "
                "each forward pass.",
                cause="Each rank's BatchNorm keeps running statistics of its own samples alone: "
                "the ranks evaluate different models, and a checkpoint keeps rank 0's.",
                next="Use SyncBatchNorm.convert_sync_batchnorm(model), or leave broadcast_buffers "
                "on.",
            )
            return


COPY_RULES = (buffers_by_rank,)
"""Of ranks that each hold the whole model."""
RULES = (tied_weights_split,)
