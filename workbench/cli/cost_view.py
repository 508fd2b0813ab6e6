"""How ``workbench cost`` looks: at 80 columns and in logs, so colour never speaks alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.describe.strategy_text import strategy_words
from workbench.estimate.cost.terms import NOTHING
from workbench.units import UNKNOWN, format_count, format_seconds, format_usd

if TYPE_CHECKING:
    from workbench.cli.cost_values import CostAnswer
    from workbench.estimate.cost import RunCost
    from workbench.estimate.cost.terms import CostTerm


def cost_view(report: CostAnswer) -> RenderableType:
    """The bill, its totals, spot or not, and what was assumed; most important first."""
    cost = report.cost
    assumed = (*report.notes, *cost.assumptions, *cost.step.assumptions)
    warning = [Text(f"! {report.problem}", style="bold red")] if report.problem else []
    pieces: list[RenderableType] = [
        *warning,
        _inputs(report),
        _totals(cost),
        _bill(cost),
        _facts([("spot", cost.spot_answer().verdict)]),
        _facts(
            [("Assumed" if index == 0 else "", sentence) for index, sentence in enumerate(assumed)]
        ),
    ]
    spaced: list[RenderableType] = []
    for piece in pieces:
        spaced += [piece, ""]
    return Group(*spaced[:-1])


def _facts(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    return table


def _inputs(report: CostAnswer) -> Table:
    workload, strategy, cost = report.job.workload, report.job.strategy, report.cost
    job, model = cost.job, workload.model
    offer = job.offer
    price = offer.spot_usd_per_hour if cost.spot else offer.usd_per_hour
    workload_text = (
        f"{model.name}, {format_count(model.parameters)} parameters; "
        f"{format_count(cost.tokens)} {cost.step.unit} in {job.steps:,} steps of "
        f"{format_count(cost.step.tokens)}, {workload.method}"
    )
    marks = f" ({', '.join(offer.marks)})" if offer.marks else ""
    kind = "spot" if cost.spot else "on demand"
    nodes = f"{job.nodes} node{'s' * (job.nodes > 1)}: {offer.name or offer.gpu}"
    offer_text = f"{nodes} at {offer.provider}, {kind}, {format_usd(price)} per hour each{marks}"
    if offer.provider == UNKNOWN:
        offer_text = f"{nodes}, {offer.gpus} GPUs each: not in the price table"
    strategy_text = ", ".join(
        (f"{strategy.name} on {strategy.world_size} x {offer.gpu}", *strategy_words(strategy))
    )
    return _facts([("What", workload_text), ("How", strategy_text), ("Where", offer_text)])


def _totals(cost: RunCost) -> Table:
    """Dollars and hours with their range, and what follows from them."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    step, plan = cost.step, cost.job.plan
    dollars = Text(cost.total_text, style="bold")
    dollars.append(_between(format_usd(cost.low.usd), format_usd(cost.high.usd)), style="not bold")
    table.add_row("finished run", dollars)
    days = f" = {cost.wall_hours / 24:,.3g} days" if cost.wall_hours >= 48 else ""
    wall = f"{_hours(cost.wall_hours)}{days} from renting to the last step"
    wall += _between(_hours(cost.low.wall_hours), _hours(cost.high.wall_hours))
    table.add_row("time", wall)
    work = f"{_hours(cost.hours.work)} of work = {format_count(cost.gpu_hours)} GPU-hours"
    table.add_row("", work)
    mfu = "n/a" if step.mfu is None else f"{step.mfu:.0%}"
    rate = f"{format_count(step.tokens_per_second)} {step.unit}/s, MFU {mfu}"
    table.add_row("step", f"{format_seconds(step.step_seconds)}, {rate}")
    per = f"{format_usd(cost.usd_per_million_tokens)} per 1M {step.unit}, "
    table.add_row("that is", f"{per}{format_usd(cost.usd_per_step)} per step")
    month = f"{format_usd(cost.usd_per_month)} for a month of {plan.hours_per_month} h, "
    idle = f"{format_usd(cost.idle_usd_per_hour)} per idle hour"
    table.add_row("machines", month + idle)
    return table


def _bill(cost: RunCost) -> Table:
    """Each term with the number of its source; what was not used stands in one line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("term", no_wrap=True, style="bold")
    table.add_column("$", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    terms = [term for term in cost.terms if term.how != NOTHING]
    sources = _sources(terms)
    for term in terms:
        how = Text(term.how)
        if term.source:
            how.append(f" [{sources[_dated(term)]}]", style="dim")
        table.add_row(term.name, format_usd(term.usd), how)
    table.add_row("total", Text(format_usd(cost.usd), style="bold"), "")
    nothing = [term.name for term in cost.terms if term.how == NOTHING]
    if nothing:
        table.add_row("", "", Text(f"not included: {', '.join(nothing)}", style="dim"))
    for source, number in sources.items():
        table.add_row("", "", Text(f"[{number}] {source}", style="dim"))
    return table


def _sources(terms: list[CostTerm]) -> dict[str, int]:
    """Every source once, numbered as it first appears."""
    sources = dict.fromkeys(_dated(term) for term in terms if term.source)
    return {source: number for number, source in enumerate(sources, start=1)}


def _dated(term: CostTerm) -> str:
    return f"{term.source}, {term.date or 'undated'}"


def _between(low: str, high: str) -> str:
    return "" if low == high else f"  ({low} to {high})"


def _hours(hours: float | None) -> str:
    if hours is None:
        return "never"
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.3g} h"
