"""What the cost calculator shows for one setting: plain values for the page, and text."""

from __future__ import annotations

from typing import Any

from workbench.describe import Cluster, prices
from workbench.describe.job import Job
from workbench.describe.price import Offer
from workbench.estimate.cost import RunCost
from workbench.units import UNKNOWN, format_count, format_hours, format_seconds, format_usd
from workbench_widgets.cost.choice import CostChoice
from workbench_widgets.cost.parts import bill, hours_between, priced_at, step_parts

_OFFERS_MAX = 12  # rows of the table of offers
_BAR = 30  # characters of the longest bar


def figure(choice: CostChoice) -> dict[str, Any]:
    """Everything that is drawn, as plain values. Raises UsageError: what cannot be, and why."""
    costed = choice.costed()
    cost, job = costed.cost, costed.job
    offer = cost.job.offer
    return {
        "headline": _headline(cost),
        "setting": _setting(cost, job),
        "lacks": costed.problem,
        "numbers": _numbers(cost),
        "offer": {
            "says": priced_at(offer, cost.job.nodes, spot=cost.spot),
            "why": costed.why,
            "source": offer.source,
            "date": offer.date or "undated",
            "marks": list(offer.marks),
        },
        "bill": bill(cost),
        "step": step_parts(cost.step),
        "spot": _spot(cost),
        "offers": _offers(job.cluster, offer, spot=cost.spot),
        "assumptions": [*costed.notes, *cost.assumptions, *cost.step.assumptions],
        "sources": list(cost.step.sources),
    }


def _headline(cost: RunCost) -> str:
    many = "1 GPU" if cost.step.gpus == 1 else f"{cost.step.gpus:,} GPUs"
    total = "Price unknown" if cost.usd is None else cost.total_text
    return f"{total} and {format_hours(cost.wall_hours)} on {many} for the finished run."


def _setting(cost: RunCost, job: Job) -> str:
    model = job.workload.model
    return (
        f"{model.name}, {format_count(model.parameters)} parameters; {format_count(cost.tokens)} "
        f"tokens in {cost.job.steps:,} steps of {format_count(cost.step.tokens)}; "
        f"{job.strategy.name}."
    )


def _numbers(cost: RunCost) -> list[dict[str, str]]:
    step, low, high = cost.step, cost.low, cost.high
    mfu = UNKNOWN if step.mfu is None else f"{step.mfu:.0%}"
    hourly = format_usd(cost.idle_usd_per_hour)
    rows = (
        ("Finished run", format_usd(cost.usd), _range(format_usd(low.usd), format_usd(high.usd))),
        (
            "Time",
            format_hours(cost.wall_hours),
            hours_between(low.wall_hours, high.wall_hours),
        ),
        ("Per 1M tokens", format_usd(cost.usd_per_million_tokens), "trained on"),
        ("Per step", format_usd(cost.usd_per_step), f"of {format_seconds(step.step_seconds)}"),
        (
            "Per month",
            format_usd(cost.usd_per_month),
            f"of {cost.job.plan.hours_per_month} h; {hourly} an hour",
        ),
        ("Tokens/s", format_count(step.tokens_per_second), f"MFU {mfu}"),
    )
    return [{"name": name, "value": value, "says": text} for name, value, text in rows]


def _range(low: str, high: str) -> str:
    return "" if low == high else f"{low} to {high}"


def _spot(cost: RunCost) -> dict[str, Any]:
    """One run rented both ways; `share` of the dearer one."""
    answer = cost.spot_answer()
    kinds = (
        ("on demand", answer.usd_on_demand, answer.wall_hours_on_demand, not cost.spot),
        ("spot", answer.usd if answer.offered else None, answer.wall_hours, cost.spot),
    )
    most = max((usd for _, usd, _, _ in kinds if usd), default=0.0)
    interruption_hours = answer.interruption_hours
    return {
        "rows": [
            {
                "name": name,
                "share": usd / most if usd and most else None,
                "says": f"{format_usd(usd)}, {format_hours(hours)}" if usd else UNKNOWN,
                "chosen": chosen,
            }
            for name, usd, hours, chosen in kinds
        ],
        "verdict": answer.verdict,
        "break_even": format_hours(answer.break_even_hours),
        "lives": UNKNOWN if interruption_hours is None else format_hours(interruption_hours),
    }


def _offers(needed: Cluster | str, chosen: Offer, *, spot: bool) -> list[dict[str, Any]]:
    """Machines with enough of these GPUs, by price; one row for each name of a provider.

    Some names stand for several sizes: the cheapest is the one that is taken by that name.
    """
    if not isinstance(needed, Cluster) or needed.accelerator is None:
        return []
    gpu, count = needed.accelerator, len(needed.gpus)

    def price(offer: Offer) -> float | None:
        return offer.spot_usd_per_hour if spot else offer.usd_per_hour

    offers = [offer for offer in prices.offers(gpu=gpu.id) if offer.gpus >= count]
    offers.sort(key=lambda offer: (price(offer) is None, price(offer) or 0.0))
    seen: dict[tuple[str, str], Offer] = {}
    for offer in offers:
        seen.setdefault((offer.provider, offer.name), offer)
    return [
        {
            "provider": offer.provider,
            "name": offer.name,
            "gpus": offer.gpus,
            "region": offer.region,
            "price": format_usd(price(offer)),
            "date": offer.date or "undated",
            "marks": list(offer.marks),
            "chosen": (offer.provider, offer.name) == (chosen.provider, chosen.name),
        }
        for offer in list(seen.values())[:_OFFERS_MAX]
    ]


def as_text(figure: dict[str, Any]) -> str:
    """The figure for terminals, screen readers and pages without JavaScript."""
    offer = figure["offer"]
    marks = f" ({', '.join(offer['marks'])})" if offer["marks"] else ""
    lines = [figure["headline"], figure["setting"], offer["says"] + marks]
    lines += [text for text in (offer["why"], figure["lacks"]) if text]
    lines += [f"Price: {offer['source'] or 'n/a'}, {offer['date']}", ""]
    lines += [
        f"  {number['name']:<16}{number['value']:>14}  {number['says']}".rstrip()
        for number in figure["numbers"]
    ]
    lines += ["", *bill_lines(figure["bill"]), "", f"Step: {figure['step']['says']}"]
    lines += part_lines(figure["step"]["parts"])
    lines += ["", figure["spot"]["verdict"]]
    return "\n".join(lines)


def bill_lines(bill: dict[str, Any]) -> list[str]:
    """Term by term, the sources below."""
    lines = [f"  {term['name']:<24}{term['says']:>12}  {term['how']}" for term in bill["terms"]]
    lines.append(f"  {'= finished run':<24}{bill['total']:>12}")
    sources = dict.fromkeys(
        f"{term['source']}, {term['date'] or 'undated'}" for term in bill["terms"] if term["source"]
    )
    return [*lines, *(f"  Source: {source}" for source in sources)]


def part_lines(parts: list[dict[str, Any]]) -> list[str]:
    """Parts with bars."""
    most = max((part["share"] for part in parts), default=1.0)
    lines: list[str] = []
    for part in parts:
        bar = "#" * round(_BAR * part["share"] / most)
        lines.append(f"  {part['name']:<38}{part['says']:>18}  {bar}".rstrip())
    return lines
