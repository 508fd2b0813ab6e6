"""All rules that hold whatever the batch, each where it applies."""

from __future__ import annotations

from workbench.verifying import (
    clip_rules,
    data_rules,
    loss_rules,
    model_rules,
    rank_rules,
    schedule_rules,
    shared_rules,
)
from workbench.verifying.trace import Trace
from workbench.verifying.verdict import Verdict


def judge(trace: Trace, other: Trace | None) -> list[Verdict]:
    """What must hold whatever the batch; `other` has the model in one piece, where it is known."""
    single = other if other is not None and len(other.ranks) == 1 else None
    rules = [*data_rules.RULES, *rank_rules.RULES, *clip_rules.RULES, *shared_rules.RULES]
    rules += [*schedule_rules.RULES, *loss_rules.RULES]
    if trace.split == 1 and not _split_by_hand(trace, single):
        rules += [*data_rules.SPLIT_RULES, *rank_rules.COPY_RULES]
        rules += [*clip_rules.COPY_RULES, *shared_rules.COPY_RULES]
    verdicts = [verdict for rule in rules for verdict in rule(trace, single)]
    verdicts += [verdict for rule in model_rules.RULES for verdict in rule(trace)]
    kinds = {verdict.kind for verdict in verdicts}
    return [
        verdict for verdict in verdicts if not (kinds & _EXPLAINED.get(verdict.kind, set[str]()))
    ]


_EXPLAINED = {
    "weights-drift": {"gradients-not-exchanged", "exchange-damaged", "initial-weights"},
    "gradients-not-exchanged": {"initial-weights"},
    "exchange-damaged": {
        *("gradients-not-exchanged", "initial-weights", "clipped-before-exchange"),
    },
    "clipped-before-exchange": {"gradients-not-exchanged", "initial-weights"},
}
"""Kinds that follow from another one, which is reported instead."""


def _split_by_hand(trace: Trace, single: Trace | None) -> bool:
    """Whether the ranks hold parts of a model that the script itself splits."""
    if any(rank.wrappers for rank in trace.ranks):
        return False
    weights = [weight for rank in trace.ranks for weight in rank.weights.values()]
    if any(
        weight.offset is not None for weight in weights
    ):  # shards of DTensor: parallelize_module
        return True
    if single is None:  # told by what a data-parallel script has no reason to do
        firsts = [rank.weights for rank in trace.ranks]
        equal = [all(sketches.get(n) == firsts[0][n] for sketches in firsts) for n in firsts[0]]
        same = len({step.samples for step in trace.at(0)}) == 1
        return same and any(equal) and not all(equal)
    full_weights = single.ranks[0].weights
    return any(
        name in full_weights and full_weights[name].shape != sketch.shape
        for rank in trace.ranks
        for name, sketch in rank.weights.items()
    ) or not all(rank.weights.keys() == trace.ranks[0].weights.keys() for rank in trace.ranks)
