"""Plain sentences: why a plan, why not another, and what is missing where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal

from workbench.describe import Workload
from workbench.describe.amd import NOT_RUN
from workbench.describe.amd import VENDOR as AMD
from workbench.planning.layout_result import FittingLayout, LayoutResult
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.market import ROUNDING, Limits
from workbench.planning.offer_search import OfferSearch, PricedCandidate
from workbench.planning.refusals import HOST, MEMORY, SLOWER, Refusal
from workbench.planning.search_context import node_group
from workbench.units import format_bytes, format_count, format_hours, format_seconds, format_usd

PATIENCE_HOURS = 720.0
"""A run that takes longer than 30 days deserves a word where no deadline was given."""


_SOONER_PRICE = 2.0  # up to so many times the cheapest price, time is offered for money
_SOONER_LEAST = 1.5


def why(
    ranked: Sequence[PricedCandidate], position: int, front: Sequence[int], limits: Limits
) -> str:
    """One sentence about the plan at `position`."""
    plan, first = ranked[position], ranked[0]
    limited = limits.budget_usd is not None or limits.deadline_hours is not None
    if position == 0:
        is_only = len(front) == 1
        text = "cheapest" + (" that keeps every limit" if limited else "")
        text += " and fastest" if is_only else ""
    elif position in front:
        text = (
            f"{_times(first.hours / plan.hours)} as fast as the cheapest for "
            f"{plan.usd / first.usd:.2f} times its price"
        )
    else:
        better = next(
            index
            for index in front
            if ranked[index].price <= plan.price and ranked[index].hours <= plan.hours
        )
        text = f"plan {better + 1} is {_better_in(ranked[better], plan)}"
    return f"{text}; {why_layout(plan.result, plan.fit)}"


def _better_in(better: PricedCandidate, plan: PricedCandidate) -> str:
    """In what a plan beats another that it loses to in nothing."""
    if plan.hours <= better.hours * (1 + ROUNDING):
        return "cheaper and as fast"
    return "faster for the same price" if plan.price == better.price else "cheaper and faster"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _change(share: float) -> str:
    """A share more or less; a factor where a percentage would say that nothing is left.

    >>> _change(0.03), _change(-0.4), _change(-0.9983)
    ('+3%', '-40%', '588 times less')
    """
    return f"{_times(1 / (1 + share))} less" if -1 < share <= -0.95 else f"{share:+.0%}"


def why_layout(result: LayoutResult, fit: FittingLayout) -> str:
    """Why the layout is not a simpler one."""
    simplest = result.first_legal
    if simplest is None or simplest is fit.layout:
        return "the simplest layout is the fastest here"
    name = simplest.strategy.name
    simplest_fit = next((other for other in result.best if other.layout is simplest), None)
    if simplest_fit is not None:
        steps = [format_seconds(each.step.step_seconds) for each in (simplest_fit, fit)]
        return f"{name} takes {steps[0]} a step, this {steps[1]}"
    for refusal in result.refusals:
        if refusal.layout is not simplest:
            continue
        if refusal.kind in {MEMORY, HOST} and len(refusal.choices) == len(simplest.choices):
            return f"{name} {refusal.reason}"
        if refusal.kind == SLOWER and refusal.needed:
            step = format_seconds(refusal.needed)
            return f"{name} takes {step} a step, this {format_seconds(fit.step.step_seconds)}"
    return f"faster than {name}"


def sentences(search: OfferSearch) -> tuple[str, ...]:
    """The winner against the runner-up, the fastest, one GPU, the naive and the dearest choice."""
    ranked = search.priced
    first = ranked[0]
    low, high = first.cost.low, first.cost.high
    parts = [
        (
            f"{first.candidate.where} with {first.fit.text}: {format_usd(first.usd)} "
            f"({format_usd(low.usd)} to {format_usd(high.usd)}) and {format_hours(first.hours)}; "
            f"{_speed(first)}."
        )
    ]
    parts.append(sooner(ranked))
    if len(ranked) > 1:
        parts.append(f"The runner-up, {_against(first, ranked[1])}.")
    fastest = min(ranked, key=lambda plan: plan.hours)
    if fastest is not first and fastest is not ranked[min(1, len(ranked) - 1)]:
        parts.append(f"The fastest, {_against(first, fastest)}.")
    single = any(candidate.gpus == 1 for candidate in search.market.candidates)
    parts += [_patience(ranked, search.limits), _one_gpu(ranked) if single else ""]
    parts.append(_naive(search, first))
    dearest = _dearest(search, first)
    cards = [plan.candidate.cluster.accelerator for plan in ranked]
    untried = NOT_RUN if any(card is not None and card.vendor == AMD for card in cards) else ""
    return tuple(text for text in (*parts, dearest, untried) if text)


def sooner(ranked: Sequence[PricedCandidate]) -> str:
    """The fastest plan for at most twice the cheapest price; "" where little is won.

    The cheapest is often one GPU for weeks, where eight cost little more and take a day.
    """
    first = ranked[0]
    most = _SOONER_PRICE * first.price
    plan = min((plan for plan in ranked if plan.price <= most), key=lambda plan: plan.hours)
    faster = first.hours / plan.hours
    if faster < _SOONER_LEAST or not first.usd:
        return ""
    return (
        f"For up to twice that price the fastest is plan {ranked.index(plan) + 1}, "
        f"{plan.candidate.where}: {format_usd(plan.usd)} and {format_hours(plan.hours)}, "
        f"{_times(faster)} as fast for {plan.usd / first.usd:.2g} times the price."
    )


def _speed(plan: PricedCandidate) -> str:
    step = plan.fit.step
    mfu = f", MFU {step.mfu:.0%}" if step.mfu is not None else ""
    return f"{format_count(step.tokens_per_second)} tokens/s{mfu}"


def _against(first: PricedCandidate, other: PricedCandidate) -> str:
    """Another plan beside the winner, with the numbers that make the difference."""
    more = other.usd / first.usd - 1
    longer = other.hours / first.hours - 1
    rate, own = other.cost.idle_usd_per_hour, first.cost.idle_usd_per_hour
    return (
        f"{other.candidate.where} with {other.fit.text}, costs {format_usd(other.usd)} "
        f"({more:+.0%}) and takes {format_hours(other.hours)} ({_change(longer)}): "
        f"{format_usd(rate)} an hour against {format_usd(own)}, {_speed(other)} against "
        f"{_speed(first)}"
    )


def _patience(ranked: Sequence[PricedCandidate], limits: Limits) -> str:
    """The cheapest plan that ends within a month, where no deadline is given."""
    first = ranked[0]
    if limits.deadline_hours is not None or first.hours <= PATIENCE_HOURS:
        return ""
    text = f"Without a deadline the cheapest wins, though it takes {format_hours(first.hours)}"
    soon = next((plan for plan in ranked if plan.hours <= PATIENCE_HOURS), None)
    if soon is None:
        return f"{text}; no plan takes less than {format_hours(PATIENCE_HOURS)}."
    return f"{text}. Within {format_hours(PATIENCE_HOURS)}, {_against(first, soon)}."


def _one_gpu(ranked: Sequence[PricedCandidate]) -> str:
    """Whether one GPU would do: vertical scaling comes first."""
    single = [plan for plan in ranked if plan.candidate.gpus == 1]
    if not single:
        return "No plan on one GPU is left: see the rejections for what it lacks."
    if single[0] is ranked[0]:
        return "One GPU is enough: more of them only buy time."
    plan, first = single[0], ranked[0]
    longer, dearer = plan.hours / first.hours, plan.usd / first.usd
    return (
        f"One GPU would do too: {plan.candidate.where} with {plan.fit.text} takes "
        f"{format_hours(plan.hours)} and {format_usd(plan.usd)}, {longer:.1f} times "
        f"as long for {dearer:.2f} times the price."
    )


def _naive(search: OfferSearch, first: PricedCandidate) -> str:
    """The lowest price per hour, not spot, at which a layout without offload fits."""
    offered = [
        candidate
        for candidate in search.market.candidates
        if not candidate.spot and candidate.offer.usd_per_hour is not None
    ]
    for candidate in sorted(
        offered, key=lambda candidate: (candidate.offer.usd_per_hour or 0.0) * candidate.nodes
    ):
        fit = LayoutSearch(search.context, node_group(candidate.cluster)).simplest()
        if fit is None:
            continue
        cost = candidate.cost(fit.step)
        if cost.usd is None:
            continue
        hourly = format_usd(cost.idle_usd_per_hour)
        return (
            "The naive choice, the lowest on-demand price per hour at which it fits without "
            f"offload ({candidate.where}, {hourly} an hour; {fit.text}), would take "
            f"{format_hours(cost.wall_hours)} and {format_usd(cost.usd)}: "
            f"{cost.wall_hours / first.hours:.1f} times as long for "
            f"{cost.usd / first.usd:.2f} times the price."
        )
    return ""


def _dearest(search: OfferSearch, first: PricedCandidate) -> str:
    """The same machines at the most expensive provider."""
    own = first.candidate
    same = [
        candidate
        for candidate in search.market.candidates
        if (candidate.offer.gpu, candidate.offer.gpus, candidate.nodes)
        == (own.offer.gpu, own.offer.gpus, own.nodes)
        and not candidate.spot
        and candidate.offer.provider != own.offer.provider
    ]
    if not same:
        return ""
    dearest = max(same, key=lambda candidate: candidate.offer.usd_per_hour or 0.0)
    cost = dearest.cost(first.fit.step)
    if cost.usd is None or cost.usd <= first.usd:
        return ""
    return (
        f"The same machines cost most at {dearest.where}: {format_usd(cost.usd)} for this run, "
        f"{cost.usd / first.usd:.1f} times as much."
    )


def misses(relaxed: OfferSearch, limits: Limits) -> tuple[str, ...]:
    """Where nothing keeps the limits: the nearest, and what would make it a plan."""
    if relaxed.priced:
        return _limit_misses(relaxed, limits)
    nearest = [(result.nearest, where) for where, result in relaxed.searched]
    short = [(refusal, where) for refusal, where in nearest if refusal is not None]
    if not short:
        kinds = sorted({ruled.kind for ruled in relaxed.ruled})
        return (f"Every offer is out: {', '.join(kinds)}. See the rejections for each.",)
    refusal, where = min(short, key=lambda entry: entry[0].needed - entry[0].limit)
    return (
        nearest_text(refusal, where, relaxed.context.workload),
        f"More GPUs would be looked at with a larger max_gpus ({limits.most} now).",
    )


def nearest_text(refusal: Refusal, where: str, workload: Workload) -> str:
    """The layout that lacks least, and what would make it fit."""
    over = format_bytes(refusal.needed - refusal.limit)
    more = f"{over} more memory on the card: a larger card"
    if refusal.kind == HOST:
        more = f"{over} more host memory per GPU"
    *ways, last = (more, *_lighter(workload))
    remedies = f"{', '.join(ways)} or {last}" if ways else last
    return (
        f"Nearest: {where} with {next(refusal.layouts())} {refusal.reason}. It would fit with "
        f"{remedies}."
    )


def _lighter(workload: Workload) -> Iterator[str]:
    """What makes any layout's need smaller, of what the job does not do yet."""
    if not workload.lora_rank:
        if workload.optimizer in {"adamw", "adamw-fused", "paged-adamw"}:
            yield "an optimizer with smaller states (adamw-8bit)"
        yield "LoRA"
    elif workload.quantization == "none":
        yield "frozen weights in 4 bits (nf4)"
    if workload.counts_tokens:
        yield "shorter sequences"


def _limit_misses(relaxed: OfferSearch, limits: Limits) -> tuple[str, ...]:
    """What would do if one limit gave way; both where neither alone is enough."""
    priced = relaxed.priced
    budget, deadline = limits.budget_usd, limits.deadline_hours
    in_time = [plan for plan in priced if not limits.too_late(plan.hours)]
    affordable = [plan for plan in priced if not limits.over_budget(plan.usd)]
    if budget is not None and deadline is not None and not in_time and not affordable:
        return _both_miss(priced, budget, deadline)
    lines: list[str] = []
    if budget is not None and in_time:
        nearest = min(in_time, key=lambda plan: plan.usd)
        lines.append(
            f"Cheapest{' in time' if deadline else ''}: {_bill(nearest)}. A budget of "
            f"{_more_usd(nearest, budget)} would do."
        )
    if deadline is not None and affordable:
        nearest = min(affordable, key=lambda plan: plan.hours)
        lines.append(
            f"Fastest{' within the budget' if budget else ''}: {_bill(nearest)}. A deadline of "
            f"{_more_hours(nearest, deadline)} would do; more than {limits.most} GPUs (max_gpus) "
            "were not looked at."
        )
    return tuple(lines)


def _both_miss(
    priced: Sequence[PricedCandidate], budget: float, deadline: float
) -> tuple[str, ...]:
    """The cheapest and the fastest plan, each with the two limits that it needs."""
    cheapest = min(priced, key=lambda plan: (plan.usd, plan.hours))
    fastest = min(priced, key=lambda plan: (plan.hours, plan.usd))
    ends = [("Cheapest", cheapest), ("Fastest", fastest)]
    if fastest is cheapest:
        ends = [("Cheapest and fastest", cheapest)]
    lines = [
        f"{name}: {_bill(plan)}. A budget of {_more_usd(plan, budget)} together with a deadline of "
        f"{_more_hours(plan, deadline)} would do."
        for name, plan in ends
    ]
    return (*lines, "Raising one limit is not enough; raise both.")


def _more_usd(plan: PricedCandidate, budget: float) -> str:
    least = plan.usd
    return f"${round_up(least, 2 if least < 100 else 0)} instead of ${budget:,.15g}"


def _more_hours(plan: PricedCandidate, deadline: float) -> str:
    return f"{round_up(plan.hours, 1)} h instead of {deadline:,.15g} h"


def round_up(value: float, places: int) -> str:
    """`value` with so many decimals, more where three digits need them, and never less than it.

    >>> round_up(0.2214, 1), round_up(61.301, 2), round_up(1088.2, 0), round_up(2.5, 1)
    ('0.222', '61.31', '1,089', '2.50')
    """
    places = max(places, 2 - math.floor(math.log10(value)))
    step = Decimal(1).scaleb(-places)
    return f"{Decimal(value).quantize(step, rounding=ROUND_CEILING):,}"


def _bill(plan: PricedCandidate) -> str:
    where, how = plan.candidate.where, plan.fit.text
    return f"{where} with {how}, {format_usd(plan.usd)} and {format_hours(plan.hours)}"
