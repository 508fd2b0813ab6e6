"""Everything about one plan: memory against the card, its step, its bill, and how to launch it."""

from __future__ import annotations

from typing import Any

from workbench.planning import Plan
from workbench.planning.plans import OWN
from workbench.units import format_bytes, format_hours, format_usd
from workbench_widgets.cost.parts import bill, priced_at, step_parts
from workbench_widgets.planner.handover import launch_terms


def detail(plan: Plan) -> dict[str, Any]:
    """Plain values for the panel of the selected plan."""
    offer, cost = plan.offer, plan.cost
    low, high = cost.low, cost.high
    return {
        "title": plan.where,
        "layout": plan.layout,
        "numbers": [
            {
                "name": "Finished run",
                "value": format_usd(plan.usd),
                "says": f"{format_usd(low.usd)} to {format_usd(high.usd)}",
            },
            {
                "name": "Time",
                "value": format_hours(plan.hours),
                "says": f"{format_hours(low.wall_hours)} to {format_hours(high.wall_hours)}",
            },
            {
                "name": "Per 1M tokens",
                "value": format_usd(cost.usd_per_million_tokens),
                "says": f"{format_usd(cost.idle_usd_per_hour)} per hour",
            },
        ],
        "offer": {
            "says": priced_at(offer, plan.nodes, spot=plan.spot),
            "source": offer.source if plan.usd is not None else "",
            "date": offer.date or ("" if plan.provider == OWN else "undated"),
            "marks": list(offer.marks),
        },
        "memory": _memory(plan),
        "step": step_parts(plan.step),
        "bill": bill(cost),
        "launch": launch_terms(plan),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    memory = plan.memory
    card = memory.card_bytes
    free = None if card is None else card - memory.on_card_bytes
    needs = f"{format_bytes(memory.on_card_bytes)} of {format_bytes(card)}"
    return {
        "says": f"{needs}, {format_bytes(free)} free",
        "card": card,
        "parts": [{"name": name, "bytes": size} for name, size in memory.parts.items() if size],
        "peak": memory.peak,
    }
