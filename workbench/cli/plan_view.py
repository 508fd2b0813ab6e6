"""How ``workbench plan`` looks: at 80 columns and in logs, so colour never speaks alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from workbench import recipes
from workbench.cli.describing import as_options
from workbench.describe.supported import SPLITS, backend, launchable, why_not, why_not_in
from workbench.units import format_bytes, format_column, format_count, format_usd

if TYPE_CHECKING:
    from workbench.cli.plan_values import PlanAnswer
    from workbench.describe import Strategy
    from workbench.planning import Plan, Plans

_MAX_LISTED = 10


def plan_view(report: PlanAnswer) -> RenderableType:
    """The question, the best plans, why, what would change it, and why not the others."""
    plans = report.plans
    pieces: list[RenderableType | None] = [_question(report)]
    if plans.plans:
        pieces += [
            _table(plans),
            _sentences("Why", plans.explain()),
            _sentences(
                "What if", tuple(sensitivity.sentence for sensitivity in plans.sensitivity())
            ),
            _sentences("Launch", _launchable(plans)),
        ]
    else:
        pieces.append(_sentences("No plan", plans.misses))
    pieces += [_rejected(plans), _sentences("Assumed", (*_assumed(report), *report.notes))]
    spaced: list[RenderableType] = []
    for piece in pieces:
        if piece is not None:
            spaced += [piece, ""]
    return Group(*spaced[:-1])


def launch_line(plan: Plan) -> str | None:
    """What to type on such a machine; None where the launcher does not start the plan."""
    if not launchable(plan.strategy, precision=plan.workload.precision):
        return None
    given = _told_at_launch(plan.strategy)
    target = "gpt" if why_not(given) else "SCRIPT"  # what no script takes, the recipe does
    line = f"workbench launch {target} {as_options(given)} --nproc {plan.gpus // plan.nodes}"
    return line if plan.nodes == 1 else f"{line} --nodes {plan.nodes} --address ADDRESS"


def _told_at_launch(strategy: Strategy) -> Strategy:
    """`strategy` without the recomputation that only the script itself can do."""
    plain = strategy.with_options(recompute="none")
    return plain if why_not(strategy) and not why_not(plain) else strategy


def _launchable(plans: Plans) -> tuple[str, ...]:
    """How the winner is started, or that the launcher does not start it yet and who comes first."""
    first = plans.plans[0]
    lacks = why_not(first.strategy, splits=SPLITS)
    lacks = lacks or why_not_in(first.strategy, first.workload.precision)
    if launch_line(first) is not None:
        return (f"On such a machine: {launch_line(first)}", *_to_know(first))
    reason = f"The first plan cannot be launched from here: {lacks}"
    for number, plan in enumerate(plans.plans, start=1):
        line = launch_line(plan)
        if line is not None:
            return (reason, f"Plan {number} is: {line}", *_to_know(plan))
    return (f"{reason} The other plans cannot either; see --any-script.",)


def _to_know(plan: Plan) -> tuple[str, ...]:
    work = plan.workload
    return (*to_know(plan.strategy, work.micro_batch, work.accumulate), *plan.notes)


def to_know(strategy: Strategy, micro_batch: int, accumulate: int) -> tuple[str, ...]:
    """What the script must say, and what must be installed there."""
    script = f"with micro-batch {micro_batch} and accumulation {accumulate} in the script."
    if _told_at_launch(strategy) is not strategy:
        how = " (transformers: model.gradient_checkpointing_enable())"
        parts = f" of {'+'.join(strategy.recompute_parts)}"
        what = how if strategy.recompute == "full" else parts
        script += f" The script also recomputes: {strategy.recompute}{what}."
    if backend(strategy) != "deepspeed":
        return (script,)
    needs = f"{strategy.name} needs DeepSpeed: run pip install deepspeed there first."
    if not why_not(strategy.with_options(engine="torch"), splits=recipes.find("gpt").splits):
        needs += " The recipe gpt also runs it without DeepSpeed, with --engine torch."
    return (script, needs)


def _sentences(title: str, sentences: tuple[str, ...]) -> Table | None:
    if not sentences:
        return None
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for index, text in enumerate(sentences):
        table.add_row("" if index else title, text)
    return table


def _question(report: PlanAnswer) -> Table | None:
    work, model = report.workload, report.workload.model
    unit = "tokens" if work.counts_tokens else "samples"
    each = f" x {work.sequence:,} tokens" if work.counts_tokens else ""
    length = report.options.tokens or f"{report.options.epochs} x {report.options.dataset_tokens}"
    text = (
        f"{model.name}, {format_count(model.parameters)} parameters, {length} {unit} in steps of "
        f"{report.plans.global_batch:,}{each}; {work.method}"
    )
    return _sentences("What", (text,))


def _table(plans: Plans) -> Table:
    """The first plans, and those of the front that come later."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "cost", "time", "where", "layout", "card", "MFU"):
        right = name in {"cost", "time", "card", "MFU"}
        free = name in {"where", "layout"}
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=not free,
            overflow="fold",
        )
    front, seen = set(plans.pareto), set[tuple[float | None, float]]()
    listed: list[tuple[int, Plan]] = []
    for position, plan in enumerate(plans.plans):
        new = (plan.usd, plan.hours) not in seen  # the same machines in another region
        seen.add((plan.usd, plan.hours))
        if position < _MAX_LISTED or (position in front and new):
            listed.append((position, plan))
    times = format_column(3600 * plan.hours for _, plan in listed)
    for (position, plan), takes in zip(listed, times, strict=True):
        table.add_row(f"{position + 1}{'*' if position in front else ''}", *_row(plan, takes))
    if plans.best and plans.best.usd is not None:
        table.caption = "* Pareto front: no other plan is both cheaper and faster"
    table.caption_justify = "left"
    return table


def _row(plan: Plan, takes: str) -> tuple[str, ...]:
    marks = f" ({', '.join(plan.offer.marks)})" if plan.offer.marks else ""
    region = f", {plan.offer.region}" if plan.offer.region else ""
    mfu = "n/a" if plan.step.mfu is None else f"{plan.step.mfu:.0%}"
    return (
        format_usd(plan.usd),
        takes,
        f"{plan.where}{region}{marks}",
        plan.layout,
        format_bytes(plan.memory.on_card_bytes) + " tight" * (plan.memory.verdict == "tight"),
        mfu,
    )


def _rejected(plans: Plans) -> Table | None:
    """Reasons with their counts, the most frequent first, and one case of each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    title, examples = "Why not", plans.rejected.samples(1)
    for kind, count in plans.rejected.by_kind.items():
        (example,) = examples[kind]
        reason = f"{kind}; {example.offer}, {example.layout}: {example.reason}"
        table.add_row(title, f"{count:,}", reason)
        title = ""
    return table if plans.rejected.total else None


def _assumed(report: PlanAnswer) -> tuple[str, ...]:
    plans = report.plans
    looked = f"{plans.combinations:,} combinations of layout and offer in {report.seconds:.2f} s"
    best = plans.best
    if best is None:
        return (looked,)
    offer = best.offer
    source = f"price of the first: {offer.source}" + (f", {offer.date}" if offer.date else "")
    if best.usd is None:
        source = "no price is known of these machines: give --usd-per-hour"
    return (looked, source, *best.cost.assumptions, *best.step.assumptions)
