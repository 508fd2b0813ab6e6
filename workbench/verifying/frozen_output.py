"""A new output layer that was frozen by mistake, told from a frozen network that is meant to be.

A head that a pattern of names froze stays as it was drawn. A frozen network that follows trained
ones on purpose (a perceptual loss, a reward model, a decoder behind an adapter) was loaded; one
that was drawn, as in a test, is a network of its own behind others that are trained as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from workbench.verifying.trace import RankTrace, Trace
from workbench.verifying.verdict import Verdict

_ADAPTERS = ("lora", "adapter", "prompt", "ia3", "prefix")


def frozen_output(trace: Trace) -> Iterator[Verdict]:
    """The layer that runs last is frozen as it was drawn, while layers before it are trained."""
    rank = trace.ranks[0]
    last = rank.order[-1] if rank.order else None
    if not rank.trainable or last is None or last in rank.trainable:
        return
    if any(word in name.lower() for name in rank.weights for word in _ADAPTERS):
        return
    if not _stays_as_drawn(rank, _parent(last)) or _is_network_behind_others(rank, last):
        return
    frozen = [name for name in rank.weights if name not in rank.trainable]
    trained = sorted(rank.trainable)
    yield Verdict(
        kind="frozen-output-layer",
        part="model",
        what=last,
        evidence=f"The last layer ({last}) is frozen as it was drawn, and {len(frozen)} of "
        f"{len(rank.weights)} parameters are frozen; trained are {', '.join(trained[:3])}"
        f"{' …' if len(trained) > 3 else ''}.",
        bound="An output layer into which no weights were loaded is trained, unless adapters are.",
        cause="requires_grad was set to False by a pattern of names that matches more than it "
        "should: the new head stays as it was drawn, and the rest cannot make up for it.",
        next="Print the names with requires_grad=True, and set it for the head after freezing.",
        severity="warning",
    )


def _stays_as_drawn(rank: RankTrace, layer: str) -> bool:
    """Whether nothing of a layer that multiplies is trained, or was loaded."""
    own = [name for name in rank.weights if _parent(name) == layer]
    multiplies = any(len(rank.weights[name].shape) > 1 for name in own)
    is_lookup = any(name in rank.embeddings for name in own)  # a codebook
    return multiplies and not is_lookup and all(not _loaded(rank, name) for name in own)


def _loaded(rank: RankTrace, name: str) -> bool:
    """Whether it is not as it was drawn; a constant tells nothing."""
    return rank.weights[name].spread > 0 and name not in rank.drawn


def _is_network_behind_others(rank: RankTrace, last: str) -> bool:
    """Whether the last layer is of a frozen network, behind others that are trained as a whole.

    Where other frozen weights were loaded, it is the new head of a model that is adapted.
    """
    trained = set(rank.trainable)
    if any(_loaded(rank, name) for name in rank.weights if name not in trained):
        return False
    path = last.split(".")[:-1]
    for depth in range(1, len(path) + 1):
        part = _under(rank.weights, ".".join(path[:depth]))
        if trained.isdisjoint(part):
            layers = {_parent(name) for name in part}
            beside = _under(rank.weights, ".".join(path[: depth - 1]))
            return len(layers) > 1 and _trained_as_a_whole(beside, trained, depth)
    return False


def _trained_as_a_whole(names: Iterable[str], trained: set[str], depth: int) -> bool:
    """Whether each part of a module (a name's first `depth` words) is trained or frozen as one."""
    parts: dict[str, set[bool]] = {}
    for name in names:
        parts.setdefault(".".join(name.split(".")[:depth]), set()).add(name in trained)
    return all(len(states) == 1 for states in parts.values())


def _under(names: Iterable[str], module: str) -> list[str]:
    return [name for name in names if not module or name.startswith(module + ".")]


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
