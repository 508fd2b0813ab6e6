"""The search against brute force, and what every answer must keep: limits, accounts, reasons."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from workbench.describe import Cluster, Model, Network, Workload, prices
from workbench.describe.job import Job
from workbench.describe.price import Offer, Terms
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.cost import RunPlan, checkpoint_bytes, run_cost
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.planning import Limits, Plans, Space, plan, plan_on
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.layouts import enumerate_layouts
from workbench.planning.planner import PLAIN
from workbench.planning.plans import Plan
from workbench.planning.ranking import pareto
from workbench.planning.search_context import NodeGroup, SearchContext, node_group
from workbench.planning.space import DATA

SMALL = Space(data=("ddp", "fsdp", "zero1"))
IB = Network.parse("8x400 infiniband")


def work(name: str = "llama-3.2-1b", seq_len: int = 2048, **more: object) -> Workload:
    given = {"precision": "bf16"} | more
    return Workload(model=Model.catalog(name), seq_len=seq_len, micro_batch=1, **given)


def offer(provider: str, gpu: str, gpus: int, usd: float | None, **more: object) -> Offer:
    return Offer(
        provider=provider, name=f"{gpu} {gpus}", gpu=gpu, gpus=gpus, usd_per_hour=usd, **more
    )


MARKET = (
    offer("one", "h100-sxm", 1, 2.0, spot_usd_per_hour=0.9),
    offer("one", "l4", 1, 0.4),
    offer("one", "rtx-4090", 2, 0.7),
    offer("two", "h100-sxm", 4, 9.0, max_nodes=2, network=IB),
    offer("two", "a100-pcie-40", 2, 2.2, spot_usd_per_hour=1.0, region="eu-1"),
    offer("three", "l40s", 4, None, spot_usd_per_hour=2.0),
)


def terms(provider: str) -> Terms:
    return Terms(provider=provider, billing_seconds=60.0)


def ask(workload: Workload | None = None, tokens: float | None = 1e9, **more: object) -> Plans:
    given = {"offers": MARKET, "terms": terms, "space": SMALL, "global_batch": 16} | more
    return plan(workload or work(), tokens=tokens, **given)


def layouts(workload: Workload, cluster: Cluster, batch: int, space: Space):
    """Every legal layout on a cluster: (workload, strategy, layout, choice)."""
    for one in enumerate_layouts(
        workload, nodes=cluster.nodes, per_node=len(cluster.gpus), batch=batch, space=space
    ):
        for choice, size in itertools.product(one.choices, one.micro_batches):
            made = replace(workload, micro_batch=size, accumulate=one.accumulate(size))
            yield made, choice.strategy, one, choice


def fastest(workload: Workload, cluster: Cluster, batch: int, space: Space) -> float:
    """Seconds of the fastest layout that fits, by looking at all of them."""
    context = SearchContext(workload=workload, batch=batch, space=space)
    host, best = node_group(cluster).host_bytes, math.inf
    for made, strategy, layout, choice in layouts(workload, cluster, batch, space):
        if context.host_bytes(layout, choice) > host:
            continue
        if training_memory(made, strategy, cluster).fits:
            best = min(best, step_time(made, strategy, cluster).step_seconds)
    return best


@pytest.mark.parametrize("seed", range(10))
def test_the_fastest_layout_is_brute_forces(seed: int) -> None:
    pick = random.Random(seed)
    name = pick.choice(["gpt2", "llama-3.2-1b", "llama-3-8b", "mixtral-8x7b", "qwen2.5-7b"])
    kernels = pick.choice([0, 8])
    workload = work(name, pick.choice([512, 1024]), lora_rank=kernels)
    if name.startswith("llama"):
        workload = replace(workload, seq_len=4096)
    cluster = Cluster.rented(
        pick.choice(["h100", "a100-pcie-40", "l4", "rtx-4090", "l40s"]),
        pick.choice([1, 2, 4]),
        pick.choice([1, 2]),
        network=pick.choice(["8x400 infiniband", "25 ethernet"]),
    )
    space = Space(data=tuple(pick.sample(DATA, 2)))
    batch = pick.choice([4, 8, 16])
    found = LayoutSearch(
        SearchContext(workload=workload, batch=batch, space=space), node_group(cluster)
    ).run()
    expected = fastest(workload, cluster, batch, space)
    got = found.best[0].step.step_seconds if found.best else math.inf
    assert got == pytest.approx(expected, rel=1e-9)
    assert found.layouts == sum(found.refused.values()) + len(found.best)
    assert sum(found.refused.values()) == sum(
        len(list(refusal.layouts())) for refusal in found.refusals
    )


def test_as_many_micro_batches_as_stages_may_fit_where_more_do_not() -> None:
    """1F1B with all micro-batches in flight holds no gradients yet: 2 x 2 fits, 1 x 4 does not."""
    workload, cluster = work("llama-3-8b", 512), Cluster.rented("a100-pcie-80", 2)
    space = Space(data=("zero1", "fsdp-grad-op"))
    found = LayoutSearch(
        SearchContext(workload=workload, batch=4, space=space), node_group(cluster)
    ).run()
    best = found.best[0]
    assert (best.choice.strategy.name, best.micro_batch, best.accumulate) == ("pp2", 2, 2)
    expected = fastest(workload, cluster, 4, space)
    assert best.step.step_seconds == pytest.approx(expected, rel=1e-9)


def test_no_layout_beats_the_loss_free_share_of_one_gpu() -> None:
    """The bound by which whole offers are left out."""
    for name, gpu in (("llama-3.2-1b", "a100-sxm-80"), ("mixtral-8x7b", "h100")):
        workload, cluster = work(name, 1024), Cluster.rented(gpu, 4)
        ideal = SearchContext(workload=workload, batch=8, space=Space()).ideal(cluster).step_seconds
        for made, strategy, _, _ in layouts(workload, cluster, 8, Space()):
            assert step_time(made, strategy, cluster).step_seconds >= ideal * (1 - 1e-9)


@pytest.mark.parametrize("spot", [False, True])
def test_the_front_is_brute_forces(*, spot: bool) -> None:
    workload = work()
    run = RunPlan(tokens=10**9, checkpoint_bytes=checkpoint_bytes(workload, PLAIN))
    points: list[tuple[float, float]] = []
    for one in MARKET:
        for nodes in range(1, (one.max_nodes or 1) + 1):
            cluster = one.cluster(nodes)
            best = math.inf
            host = node_group(cluster).host_bytes
            context = SearchContext(workload=workload, batch=16, space=SMALL)
            for made, strategy, layout, choice in layouts(workload, cluster, 16, SMALL):
                if context.host_bytes(layout, choice) > host:
                    continue
                if not training_memory(made, strategy, cluster).fits:
                    continue
                step = step_time(made, strategy, cluster)
                best = min(best, step.step_seconds)
                for kind in (False, True) if spot else (False,):
                    bill = run_cost(step, one, nodes, terms(one.provider), replace(run, spot=kind))
                    if bill.usd is not None:
                        points.append((round(bill.usd, 6), bill.wall_hours))
    expected = {points[index] for index in pareto(points)}
    found = ask(limits=Limits(spot=spot))
    got = {(round(one.usd, 6), one.hours) for one in map(found.plans.__getitem__, found.pareto)}
    assert got == expected


def test_every_combination_is_a_plan_or_has_a_reason() -> None:
    found = ask(limits=Limits(spot=True, max_gpus=16))
    assert found.combinations == len(found.plans) + found.rejected.total
    every = list(found.rejected)
    assert len(every) == found.rejected.total
    assert all(one.reason and one.offer and one.layout for one in every)
    kinds = {one.kind for one in every}
    assert kinds >= {"price unknown", "spot not offered", "no fabric", "node limit", "memory"}
    assert set(found.rejected.samples(1)) == kinds
    assert len(found.rejected.listed(7)) == 7
    memory = next(one for one in every if one.kind == "memory")
    assert "GiB too much" in memory.reason


@pytest.mark.parametrize(
    ("workload", "market", "limits", "kind"),
    [
        (work(), [offer("x", "v100-sxm2-16", 1, 1.0)], Limits(), "precision"),
        (work(), [offer("x", "tpu-v5e", 4, 4.0)], Limits(), "not startable"),
        (work(), [offer("x", "h100-sxm", 8, 20.0)], Limits(max_gpus=4), "too many GPUs"),
        (work(), [offer("x", "h100-sxm", 8, 20.0)], Limits(budget_usd=0.01), "over budget"),
        (
            work(),
            [offer("x", "h100-sxm", 8, 9.0)],
            Limits(deadline_hours=0.01),
            "past the deadline",
        ),
        (work(), [offer("x", "h100-sxm", 1, None)], Limits(), "price unknown"),
        (work("llama-3-70b"), [offer("x", "l4", 1, 0.5)], Limits(), "memory"),
    ],
)
def test_each_reason_is_given_and_the_nearest_miss_named(
    workload: Workload, market: list[Offer], limits: Limits, kind: str
) -> None:
    found = ask(workload, offers=market, limits=limits)
    assert not found.plans
    assert found.pareto == ()
    assert kind in found.rejected.by_kind
    assert found.misses
    assert found.explain() == found.misses
    assert found.sensitivity() == ()
    if kind in {"over budget", "past the deadline", "memory"}:
        assert "would" in found.misses[0]


def test_limits_are_kept() -> None:
    free = ask()
    assert free.plans[0].usd == min(one.usd for one in free.plans)
    budget = sorted(one.usd for one in free.plans)[2]
    hours = sorted(one.hours for one in free.plans)[2]
    for limits in (Limits(budget_usd=budget), Limits(deadline_hours=hours), Limits(max_gpus=2)):
        for one in ask(limits=limits).plans:
            assert one.usd <= (limits.budget_usd or math.inf)
            assert one.hours <= (limits.deadline_hours or math.inf)
            assert one.gpus <= (limits.max_gpus or math.inf)
    only = ask(limits=Limits(providers=("two",), gpus=("A100",), regions=("eu",)))
    assert {(one.provider, one.gpu) for one in only.plans} == {("two", "a100-pcie-40")}


def test_the_limit_that_is_the_reason_is_named() -> None:
    one = [offer("x", "h100-sxm", 1, 2.0)]
    alone = ask(offers=one).plans[0]
    late = ask(offers=one, limits=Limits(budget_usd=2 * alone.usd, deadline_hours=0.1)).misses
    assert len(late) == 1
    assert "A deadline of" in late[0]
    dear = ask(offers=one, limits=Limits(budget_usd=0.1, deadline_hours=2 * alone.hours)).misses
    assert len(dear) == 1
    assert "A budget of" in dear[0]
    both = ask(offers=one, limits=Limits(budget_usd=0.1, deadline_hours=0.1)).misses
    assert "both" in both[-1]


def test_a_large_batch_in_a_pipeline_is_planned() -> None:
    machine = offer("two", "h200-sxm", 3, 2.5, max_nodes=64, network=IB)
    small = work("mixtral-8x7b", precision="bf16-pure", optimizer="adamw-8bit")
    plans = ask(small, offers=(machine,), global_batch=100_000, tokens=1e12)
    assert any(plan.strategy.pp > 1 for plan in plans.plans)


def test_ties_go_to_fewer_gpus() -> None:
    rows = [(one.usd, one.gpus) for one in ask().plans]
    assert [usd for usd, _ in rows] == sorted(usd for usd, _ in rows)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3-8b"])
def test_more_bandwidth_is_never_slower(name: str) -> None:
    def best(network: str, gpu: str = "a100-sxm-80") -> float:
        cluster = Cluster.rented(gpu, 4, 2, network=network)
        return plan_on(cluster, work(name), tokens=1e9, global_batch=32, space=SMALL).plans[0].hours

    times = [best(f"{rate} infiniband") for rate in (10, 25, 100, 400, 1600)]
    assert times == sorted(times, reverse=True)

    def inside(link: str) -> float:
        cluster = Cluster.rented("a100-sxm-80", 4, link=link)
        return plan_on(cluster, work(name), tokens=1e9, global_batch=32, space=SMALL).plans[0].hours

    assert inside("nvlink") <= inside("pcie")


def test_a_plan_is_what_a_launcher_takes() -> None:
    for one in ask(limits=Limits(spot=True)).plans:
        assert one.cluster.world_size == one.strategy.world_size == one.gpus
        ranks = one.strategy.data_ranks
        assert one.workload.micro_batch * one.workload.accumulate * ranks == 16
        assert one.memory.fits
        again = step_time(one.workload, one.strategy, one.cluster)
        assert again.step_seconds == pytest.approx(one.step.step_seconds)
        price = one.offer.spot_usd_per_hour if one.spot else one.offer.usd_per_hour
        assert one.cluster.usd_per_hour == price
        assert one.why
        document = one.document()
        assert document["range"]["usd_low"] <= one.usd <= document["range"]["usd_high"]


def test_a_plan_says_where_memory_is_tight() -> None:
    """The range's upper end decides, in the sentence and in the document alike."""
    seen = {plan.memory.verdict for plan in ask()} | {
        plan.memory.verdict for plan in ask(work("llama-3-8b"))
    }
    assert seen == {"fits", "tight"}
    for found in (*ask(), *ask(work("llama-3-8b"))):
        assert found.document()["memory"]["verdict"] == found.memory.verdict
        assert ("; memory is tight: up to " in found.why) == (found.memory.verdict == "tight")
        assert not found.why.endswith(".")  # a clause: faces end the sentence


def test_sensitivity_names_the_value_at_which_the_winner_changes() -> None:
    found = ask(limits=Limits(spot=True))
    first, second = found.plans[:2]
    asked = {one.name: one for one in found.sensitivity()}
    price = asked["price of the winner"]
    assert price.at == pytest.approx(second.usd / first.usd, rel=0.01)
    assert price.changes is (second.usd < 1.25 * first.usd)
    assert "interruptions of spot machines" in asked
    assert all(one.sentence.endswith(".") for one in asked.values())


def test_the_explanation_holds_the_numbers() -> None:
    found = ask()
    text = " ".join(found.explain())
    assert "The runner-up" in text
    assert "fits without offload" in text
    assert "One GPU" in text
    assert f"${found.plans[0].usd:,.2f}" in text


def test_columns_are_as_wide_as_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask()
    for name in ("layout", "where"):
        monkeypatch.setattr(Plan, name, property(lambda one: f"{one.usd} of many words" * 4))
    head, *rows = str(found).splitlines()[:4]
    for row in rows:
        assert len(row) == len(head)
        assert row[head.index("layout") - 2 :].startswith("  ")


def test_time_is_offered_for_up_to_twice_the_price() -> None:
    """The cheapest is often one GPU for weeks."""
    one = offer("slow", "a100-sxm-80", 1, 1.0)
    eight = offer("fast", "a100-sxm-80", 8, 9.0)
    dear = offer("dear", "h100-sxm", 8, 30.0)
    found = ask(offers=[one, eight, dear])
    assert [plan.provider for plan in found] == ["slow", "fast", "dear"]
    plan = found.plans[1]
    (said,) = [text for text in found.explain() if "up to twice that price" in text]
    assert f"plan 2, fast 8 x a100-sxm-80 (a100-sxm-80 8): ${plan.usd:,.2f}" in said
    faster = found.plans[0].hours / plan.hours
    assert f"{faster:.2g} times as fast" in said
    alone = ask(offers=[eight, replace(dear, usd_per_hour=60.0)]).explain()
    assert not [text for text in alone if "up to twice that price" in text]


def test_a_host_without_memory_for_the_ranks_is_no_machine_for_them() -> None:
    """A catalogue has GPUs of 80 GB beside 4 GB of memory; advice says too little of them, too."""
    small = offer("x", "a100-sxm-80", 2, 1.0, memory_bytes=15 * 2**30)
    enough = replace(small, memory_bytes=16 * 2**30)
    assert ask(offers=[enough]).plans
    out = ask(offers=[small])
    assert not out.plans
    assert set(out.rejected.by_kind) == {"small host"}
    (refusal,) = out.rejected.listed(1)
    assert refusal.reason.startswith("7.5 GiB of host memory per GPU; ")


def test_host_memory_bounds_offloading() -> None:
    big = work("llama-3-8b")
    rich = offer("x", "a100-sxm-40", 1, 1.0, memory_bytes=10**12)
    poor = replace(rich, memory_bytes=12 * 10**9)
    assert ask(big, offers=[rich]).plans[0].strategy.offload
    out = ask(big, offers=[poor])
    assert not out.plans
    assert "host memory" in out.rejected.by_kind
    where = NodeGroup(rich.cluster(), 1e9)
    context = SearchContext(workload=big, batch=4, space=Space())
    assert not LayoutSearch(context, where).run().best


def test_the_embedded_table_is_planned_within_seconds() -> None:
    table = prices.offers(live=False, own=False)
    found = plan(
        work("llama-3-8b", 4096),
        tokens=3e11,
        offers=table,
        terms=prices.terms,
        limits=Limits(deadline_hours=1000),
        space=Space(launchable=False),  # the widest search
    )
    assert found.combinations == len(found.plans) + found.rejected.total > 20_000
    first = found.plans[0]
    assert first.hours <= 1000
    front = [found.plans[index] for index in found.pareto]
    for one in found.plans:
        assert any(other.usd <= one.usd and other.hours <= one.hours for other in front)


def test_own_machines_rank_layouts_by_time_and_know_one_gpu() -> None:
    cluster = Cluster.rented("h100", 4, usd_per_hour=8.0)
    found = plan_on(cluster, Job.of("gpt2", gpu="h100", seq_len=512), tokens=1e9, global_batch=64)
    assert {each.workload.model.name for each in found.plans} == {"GPT-2 small"}
    found = plan_on(cluster, work(), tokens=1e9, global_batch=64)
    hours = [one.hours for one in found.plans]
    assert hours == sorted(hours)
    assert found.combinations == len(found.plans) + found.rejected.total
    assert {one.gpus for one in found.plans} == {1, 4}
    assert found.plans[0].gpus == 4
    single = next(one for one in found.plans if one.gpus == 1)
    assert single.strategy.world_size == 1
    assert single.usd > found.plans[0].usd  # all four are paid for
    free = plan_on(replace(cluster, usd_per_hour=None), work(), tokens=1e9, global_batch=64)
    assert free.plans[0].usd is None
    assert "n/a" in str(free)
    none = plan_on(Cluster.rented("l4", 1), work("llama-3-70b"), tokens=1e9)
    assert not none.plans
    assert "would fit" in none.misses[0]
    with pytest.raises(UsageError, match=r"accelerator.*--gpu.*Cluster\.rented"):
        plan_on(Cluster(name="laptop"), work(), tokens=1e9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 0}, "tokens must be"),
        ({"tokens": math.nan}, "tokens must be"),
        ({"tokens": None}, "tokens must be"),
        ({"tokens": "10B"}, "tokens must be a number, not '10B'.*300e9"),
        ({"tokens": 1e30}, "below 1e30"),
        ({"global_batch": 0}, "global_batch must be at least 1"),
        ({"offers": []}, "no offers"),
        ({"run": RunPlan(steps=1, checkpoint_bytes=1)}, "not both"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(**change)


def test_bad_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="max_gpus must be at least 1"):
        Limits(max_gpus=0)
    with pytest.raises(UsageError, match="budget_usd must be above 0"):
        Limits(budget_usd=0)
    with pytest.raises(UsageError, match="deadline_hours"):
        Limits(deadline_hours=math.inf)
    with pytest.raises(UnknownNameError, match="three"):
        ask(limits=Limits(providers=("thre",)))
    with pytest.raises(UnknownNameError, match="Unknown provider 'google'"):
        ask(limits=Limits(providers=("google",)))
    with pytest.raises(UnknownNameError, match="h100"):
        ask(limits=Limits(gpus=("h1000",)))
    with pytest.raises(UsageError, match="No offer at one of b200-sxm"):
        ask(limits=Limits(providers=("one",), gpus=("b200",)))
