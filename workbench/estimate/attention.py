"""What attention computes in blocks that see the whole sequence, a window of it, or keep a state.

Pairs of query and key of one sequence of s tokens: s² / 2 under a causal mask, s w - w² / 2 with a
window of w tokens, and those of each chunk where a sequence is cut into chunks. An encoder has
them on both sides. A linear block makes three products of a token with its state: it reads it for
the query, reads it for the key, and adds to it (gated delta rule, arXiv 2412.06464 eq. 10).

A model's kinds of blocks lie between each other, so every estimate takes their mean.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.describe import Model, Workload

STATE_PRODUCTS = 3


class AttentionKind(NamedTuple):
    """Blocks of a model whose attention is the same."""

    share: float
    """Of all blocks."""
    flops: float
    """That one block's forward needs for one micro-batch."""
    computed: float
    """That the kernel computes of them: with what it masks away and does not skip."""
    piece: float
    """Keys that a kernel goes through for one query at most; the whole sequence for a state."""
    linear: bool
    """Whether it has a state in place of keys and values."""


def causal_pairs(sequence: float, window: float, *, chunked: bool = False) -> float:
    """Pairs of query and key of one sequence under a causal mask.

    >>> causal_pairs(1024, 256), causal_pairs(1024, 4096), causal_pairs(1024, 256, chunked=True)
    (229376.0, 524288.0, 131072.0)
    """
    reach = min(sequence, window)
    if chunked:
        chunks, rest = divmod(sequence, reach)
        return chunks * reach * reach / 2 + rest * rest / 2
    return sequence * reach - reach * reach / 2


def cuts(model: Model, sequence: int) -> bool:
    """Whether a window keeps a token of a sequence of that length from another."""
    side = model.window / 2 if model.kind == "encoder" else model.window
    return model.windowed_layers > 0 and sequence > side


def attention_kinds(workload: Workload) -> tuple[AttentionKind, ...]:
    """The kinds of a model's blocks; one where every block sees everything, none of a module."""
    model, length, tokens = workload.model, workload.sequence, workload.tokens
    if model.traced is not None:
        return ()
    causal = model.kind == "decoder"
    width = model.query_width + model.attention_width
    whole = tokens * length * (0.5 if causal else 1.0)
    every = 2.0 if causal else 1.0  # eager attention computes what a causal mask hides, too
    eager = workload.attention == "eager"
    windowed = model.windowed_layers if cuts(model, length) else 0
    full = model.layers - windowed - model.linear_layers
    kinds: list[AttentionKind] = []
    if full:
        needed = 2.0 * whole * width
        computed = needed * every if eager else needed
        kinds.append(AttentionKind(full / model.layers, needed, computed, float(length), False))  # noqa: FBT003
    if windowed:
        reach = model.window if causal else model.window / 2
        pairs = causal_pairs(length, reach, chunked=model.chunked_window) * (1 if causal else 2)
        needed = 2.0 * tokens * pairs / length * width
        skips = workload.attention == "flash"
        computed = needed if skips else 2.0 * whole * width * every
        piece = float(min(length, model.window) if skips else length)
        kinds.append(AttentionKind(windowed / model.layers, needed, computed, piece, False))  # noqa: FBT003
    if model.linear_layers:
        needed = 2.0 * STATE_PRODUCTS * tokens * model.linear_state
        share = model.linear_layers / model.layers
        kinds.append(AttentionKind(share, needed, needed, float(length), True))  # noqa: FBT003
    return tuple(kinds)


def scoring_share(model: Model) -> float:
    """Share of the blocks that have keys and values, and scores of them."""
    return 1.0 - model.linear_layers / model.layers if model.linear_layers else 1.0


def attention_sentences(workload: Workload) -> tuple[str, ...]:
    """What a step's time assumes of windows and states; empty where there are none."""
    model = workload.model
    sentences: list[str] = []
    if model.traced is None and cuts(model, workload.sequence):
        unit = "chunks" if model.chunked_window else "a window"
        how = {
            "flash": "the kernel skips what is outside",
            "sdpa": "SDPA gets it as a mask and computes every pair; flash would skip them",
        }.get(workload.attention, "eager attention computes every pair")
        sentences.append(
            f"{model.windowed_layers} of {model.layers} blocks attend to {unit} of "
            f"{model.window:,} tokens: {how}"
        )
    if model.linear_layers:
        sentences.append(
            f"{model.linear_layers} of {model.layers} blocks have linear attention, computed at "
            "the rate of fused attention"
        )
    return tuple(sentences)
