"""Why this plan and why not the others: sentences, sensitivity, rejections grouped by reason."""

from __future__ import annotations

from typing import Any

from workbench.planning import Plans, explain, ranking
from workbench.units import format_hours, format_usd
from workbench_widgets.planner.choice import PlannerChoice
from workbench_widgets.planner.view import PlansWithinLimits, searched

EXAMPLES = 6  # of every reason
_MEANS = {
    "memory": "does not fit on the card",
    "host memory": "does not fit into the host's memory",
    "small host": "less host memory than the ranks need",
    "not launchable": "the launcher cannot start it",
    "impossible layout": "the degrees do not divide the model, the batch or the GPUs of a node",
    "slower layout": "another layout on the same machines is faster",
    "dominated": "ten other plans are cheaper and faster",
    "price unknown": "the price is unknown",
    "no fabric": "no interconnect, or the provider does not publish it",
    "node limit": "the provider does not connect more of them",
    "too many GPUs": "more GPUs than allowed",
    "not startable": "the launcher cannot start ranks on them",
    "precision": "the accelerator lacks the precision",
    "spot not offered": "no spot price at that provider",
    "over budget": "over the budget",
    "past the deadline": "slower than the deadline",
    "never ends": "interrupted too often to make progress",
}


def story(plans: Plans, choice: PlannerChoice, matches: PlansWithinLimits) -> dict[str, Any]:
    """What follows the figure a moment later. Raises UsageError: a limit that cannot be."""
    limits = choice.limits()
    search = searched(plans, matches.positions)
    sentences = plans.explain() if choice.is_own else ()
    worse: list[dict[str, Any]] = []
    if search is not None and search.priced:
        sentences = explain.sentences(search)
        worse = [
            sensitivity.document() for sensitivity in ranking.sensitivities(search.priced, limits)
        ]
    return {
        "explain": list(sentences),
        "sensitivity": [
            {"says": change["sentence"], "changes": change["changes"]} for change in worse
        ],
        "lost": lost(plans, choice, matches),
    }


def lost(plans: Plans, choice: PlannerChoice, matches: PlansWithinLimits) -> list[dict[str, Any]]:
    """Limit -> how many plans it takes away, and some of them."""
    return [
        {
            "kind": reason,
            "means": _MEANS.get(reason, ""),
            "count": count,
            "examples": _lost(plans, choice, reason),
        }
        for reason, count in matches.lost.most_common()
    ]


def rejected(plans: Plans) -> dict[str, Any]:
    """Reason -> how many combinations and some of them: once per search, whatever the limits."""
    samples = plans.rejected.samples(EXAMPLES)
    groups = [
        {
            "kind": kind,
            "means": _MEANS.get(kind, ""),
            "count": count,
            "examples": [
                {"offer": sample.offer, "layout": sample.layout, "reason": sample.reason}
                for sample in samples[kind]
            ],
        }
        for kind, count in plans.rejected.by_kind.items()
    ]
    return {
        "groups": groups,
        "total": plans.rejected.total,
        "combinations": plans.combinations,
    }


def _lost(plans: Plans, choice: PlannerChoice, reason: str) -> list[dict[str, str]]:
    """Plans that a limit takes away, the cheapest first."""
    of_it = (plan for plan in plans if choice.reason_against(plan) == reason)
    return [
        {
            "offer": plan.where,
            "layout": plan.layout,
            "reason": f"{format_usd(plan.usd)}, {format_hours(plan.hours)}",
        }
        for plan, _ in zip(of_it, range(EXAMPLES), strict=False)
    ]
