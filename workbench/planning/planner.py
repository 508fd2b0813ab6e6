"""`plan` over offers and `plan_on` machines one has: the two questions a user asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.describe.checks import plain, require_instance, require_number, require_positive
from workbench.describe.job import Job
from workbench.describe.price import Offer, Terms
from workbench.errors import UsageError
from workbench.estimate.cost import RunPlan, checkpoint_bytes
from workbench.estimate.memory import training_memory
from workbench.planning.explain import misses, nearest_text, sentences, why, why_layout
from workbench.planning.layout_result import FittingLayout, LayoutResult
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.market import Candidate, Limits, Market
from workbench.planning.offer_search import KEEP, OfferSearch, Progress
from workbench.planning.plans import OWN, Plan, Plans, Sensitivity, tight_note
from workbench.planning.ranking import pareto, sensitivities
from workbench.planning.rejected import Rejected
from workbench.planning.search_context import SearchContext, node_group
from workbench.planning.space import Space, default_batch

_Kind = TypeVar("_Kind")
PLAIN = Strategy.parse("single", 1)
"""Checkpoints are as large as this strategy's for every plan: 12 bytes per parameter with AdamW."""


@dataclass(frozen=True, slots=True)
class OfferAnswers:
    """Answers from a search over offers."""

    search: OfferSearch
    limits: Limits

    def explain(self) -> tuple[str, ...]:
        """The winner against the others."""
        return sentences(self.search)

    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What would change the winner."""
        return sensitivities(self.search.priced, self.limits)


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """Answers where there is nothing to choose but the layout."""

    sentences: tuple[str, ...]

    def explain(self) -> tuple[str, ...]:
        """The best layout, and why not a simpler one."""
        return self.sentences

    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Nothing: the machines are given."""
        return ()


def plan(  # noqa: PLR0913  (what, how long, within what, where; all but the first by keyword)
    workload: Workload | Job,
    *,
    tokens: float | None = None,
    limits: Limits | None = None,
    global_batch: int | None = None,
    offers: Iterable[Offer] | None = None,
    terms: Callable[[str], Terms] | None = None,
    space: Space | None = None,
    conditions: Conditions | None = None,
    run: RunPlan | None = None,
    progress: Progress | None = None,
) -> Plans:
    """Ranked ways to finish a run on rented machines, and the reason against every other.

    Args:
        workload: What is trained, or a job of it, whose named trainer then runs every layout; the
            plan decides layout, micro-batch and accumulation.
        tokens: Length of the run.
        limits: Budget, deadline, providers, accelerators, GPUs, spot.
        global_batch: Sequences per optimizer step, all ranks; None = `default_batch`: about
            0.5 M tokens.
        offers: Machines and prices; None = ``describe.prices.offers()``.
        terms: Terms of a provider; None = ``describe.prices.terms``.
        space: Layouts to look at.
        conditions: What was measured on such machines.
        run: Checkpoints, storage, idle hours and so on, in place of `tokens`.
        progress: Called while the search continues.

    Raises:
        UsageError: no tokens, a name that no offer has, an impossible limit or batch.
    """
    job = workload if isinstance(workload, Job) else None
    workload = _workload_of(workload)
    batch = _batch(workload, global_batch, 1)  # the training must not depend on the limits
    limits = _or_default("limits", limits, Limits, "Limits(budget_usd=500)")
    run = _run(workload, tokens, run)
    conditions = _or_default("conditions", conditions, Conditions, "Conditions()")
    space = _or_default("space", space, Space, "Space(most_tp=8)")
    context = SearchContext(
        workload=workload, batch=batch, space=space, conditions=conditions, job=job
    )
    offers, terms = _price_tables(offers, terms)
    candidates = limits.matching(offers)

    def search(active_limits: Limits) -> OfferSearch:
        market = Market(workload, active_limits, run, terms, conditions)
        for offer in candidates:
            market.add(offer)
        offer_search = OfferSearch(context, market, active_limits, progress)
        offer_search.run()
        return offer_search

    limited = search(limits)
    if limited.priced:
        return _plans(limited, None)
    return _plans(limited, search(replace(limits, budget_usd=None, deadline_hours=None)))


def _or_default(field: str, value: _Kind | None, kind: type[_Kind], example: str) -> _Kind:
    if value is None:
        return kind()
    require_instance(field, kind, value, f"a {kind.__name__}, as {example}")
    return value


def _workload_of(workload: Workload | Job) -> Workload:
    workload = workload.workload if isinstance(workload, Job) else workload
    if not isinstance(workload, Workload):  # pyright: ignore[reportUnnecessaryIsInstance]
        example = f"such as wb.Job.of('llama-3-8b'), not {workload!r}"
        raise UsageError(f"A plan is made for a Workload or a Job, {example}.")
    return workload


def _price_tables(
    offers: Iterable[Offer] | None, terms: Callable[[str], Terms] | None
) -> tuple[Iterable[Offer], Callable[[str], Terms]]:
    from workbench.describe import prices  # noqa: PLC0415  (reads the price tables)

    return prices.offers() if offers is None else offers, terms or prices.terms


def _plans(search: OfferSearch, relaxed: OfferSearch | None) -> Plans:
    """The answer of a search; `relaxed` is the same without budget and deadline."""
    context, limits, ranked = search.context, search.limits, search.priced
    front = pareto([(priced.price, priced.hours) for priced in ranked])
    return Plans(
        plans=tuple(
            _plan(context, priced.candidate, priced.fit, why(ranked, index, front, limits))
            for index, priced in enumerate(ranked)
        ),
        pareto=front,
        rejected=Rejected(tuple(search.ruled), tuple(search.searched)),
        combinations=search.combinations,
        global_batch=context.batch,
        misses=misses(relaxed, limits) if relaxed else (),
        answers=OfferAnswers(search, limits),
    )


def plan_on(
    cluster: Cluster | str,
    workload: Workload | Job,
    *,
    tokens: float | None = None,
    global_batch: int | None = None,
    space: Space | None = None,
    conditions: Conditions | None = None,
    run: RunPlan | None = None,
) -> Plans:
    """The best layouts on machines one already has, one GPU of them among the candidates.

    Ranked by hours; dollars follow from the cluster's price, None without one. Of a job its
    workload counts, and its trainer where one is named.

    Raises:
        UsageError: no tokens, or a cluster without an accelerator of the catalog.
    """
    job = workload if isinstance(workload, Job) else None
    workload = _workload_of(workload)
    parts = _own_parts(cluster)
    batch = _batch(workload, global_batch, parts[0].world_size)
    candidate = _own(parts[0], _run(workload, tokens, run))
    conditions = _or_default("conditions", conditions, Conditions, "Conditions()")
    space = _or_default("space", space, Space, "Space(most_tp=8)")
    context = SearchContext(
        workload=workload, batch=batch, space=space, conditions=conditions, job=job
    )
    results = [(part, LayoutSearch(context, node_group(part), KEEP).run()) for part in parts]
    fits = sorted(
        ((fit, part, result) for part, result in results for fit in result.best),
        key=lambda entry: (entry[0].step.step_seconds, entry[1].world_size),
    )
    plans = tuple(
        _plan(context, candidate, fit, _why_own(index, fit, fits[0][0], result), part)
        for index, (fit, part, result) in enumerate(fits)
    )
    why_first = tuple(f"{plan.layout} on {plan.where}: {plan.why}." for plan in plans[:1])
    return Plans(
        plans=plans,
        pareto=(0,) if plans else (),
        rejected=Rejected((), tuple((part.name, result) for part, result in results)),
        combinations=sum(result.layouts for _, result in results),
        global_batch=batch,
        misses=() if plans else _own_misses(results, workload),
        answers=OwnAnswers(why_first),
    )


def _own_parts(cluster: Cluster | str) -> list[Cluster]:
    """All of the machines, and one GPU of them."""
    kinds, example = (Cluster, str), "a Cluster, as Cluster.rented('h100', 8)"
    require_instance("cluster", kinds, cluster, example)
    if not isinstance(cluster, Cluster) or cluster.accelerator is None:
        name = cluster if isinstance(cluster, str) else cluster.name
        raise UsageError(
            f"{name} has no accelerator of the catalog, so nothing is known of its speed. "
            "Describe the machine: --gpu h100 --gpus 8; in Python Cluster.rented('h100', 8)."
        )
    if cluster.world_size == 1:
        return [cluster]
    return [cluster, replace(cluster, name="one GPU of them", gpus=cluster.gpus[:1], nodes=1)]


def _run(workload: Workload, tokens: float | None, run: RunPlan | None) -> RunPlan:
    if run is not None:
        require_instance("run", RunPlan, run, "a RunPlan, as RunPlan(tokens=10**9)")
        if tokens is not None:
            raise UsageError("The run says how long it is. Give tokens or run, not both.")
        if run.spot:
            raise UsageError("A plan decides about spot itself: give Limits(spot=True).")
        return run
    require_number("tokens", tokens, least=1)
    assert tokens is not None
    # The same bytes for every layout, so that the fastest on given machines is the cheapest too.
    size = checkpoint_bytes(workload, PLAIN)
    return RunPlan(tokens=round(tokens), checkpoint_bytes=size)


def _batch(workload: Workload, global_batch: int | None, ranks: int) -> int:
    if global_batch is None:
        return default_batch(workload, ranks)
    batch: int = plain(global_batch)
    require_positive("global_batch", batch)
    return batch


def _plan(
    context: SearchContext,
    candidate: Candidate,
    fit: FittingLayout,
    reason: str,
    cluster: Cluster | None = None,
) -> Plan:
    """The complete value; memory is asked again for this card."""
    offer, nodes = candidate.offer, candidate.nodes
    if cluster is None:
        price = offer.spot_usd_per_hour if candidate.spot else offer.usd_per_hour
        cluster = replace(
            candidate.cluster,
            usd_per_hour=price,
            cpu_cores=offer.cpu_cores,
            memory_bytes=offer.memory_bytes,
        )
    cost = candidate.cost(fit.step)
    strategy = fit.choice.strategy
    workload, trained = context.trained(strategy, fit.micro_batch, fit.accumulate, cluster)
    trainer = context.trainer(strategy, trained)
    memory = training_memory(workload, trained, cluster, is_named=trainer is not None)
    return Plan(
        provider=offer.provider,
        offer=offer,
        gpu=offer.gpu,
        gpus=cluster.world_size,
        nodes=min(nodes, cluster.nodes),
        strategy=strategy,
        workload=workload,
        trained=trained,
        cluster=cluster,
        memory=memory,
        step=fit.step,
        cost=cost,
        hours=cost.wall_hours,
        usd=cost.usd,
        why="; ".join(filter(None, (reason, tight_note(memory)))),
        trainer=trainer,
    )


def _own(cluster: Cluster, run: RunPlan) -> Candidate:
    """Machines one has, as an offer: all of them are paid for, whatever part works."""
    assert cluster.accelerator is not None
    offer = Offer(
        provider=OWN,
        name=cluster.name,
        gpu=cluster.accelerator.id,
        gpus=len(cluster.gpus),
        usd_per_hour=cluster.usd_per_hour or None,
        network=cluster.network,
        memory_bytes=cluster.memory_bytes,
        source="the cluster's own price",
        confidence="own",
    )
    terms = Terms(provider=OWN, billing_seconds=1.0, source="own machines")
    return Candidate(offer, cluster.nodes, run, terms, cluster)


def _why_own(index: int, fit: FittingLayout, first: FittingLayout, result: LayoutResult) -> str:
    reason = why_layout(result, fit)
    if index == 0:
        return f"fastest; {reason}"
    longer = fit.step.step_seconds / first.step.step_seconds
    return f"{longer:.2f} times the time of the first"


def _own_misses(results: list[tuple[Cluster, LayoutResult]], workload: Workload) -> tuple[str, ...]:
    nearest = [(result.nearest, part.name) for part, result in results]
    short = [(refusal, where) for refusal, where in nearest if refusal is not None]
    if not short:
        return ("No layout is possible here: see the rejections.",)
    refusal, where = min(short, key=lambda entry: entry[0].needed - entry[0].limit)
    return (nearest_text(refusal, where, workload),)
