"""Dollars and hours of a finished run: the bill's arithmetic, and laws that must always hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.describe import Model, Strategy, Workload
from workbench.describe.price import Offer, Terms
from workbench.errors import UsageError
from workbench.estimate.cost import RunPlan, checkpoint_bytes, gpu_hours, hours_of, run_cost
from workbench.estimate.cost.plan import FAILURE_GPU_HOURS
from workbench.estimate.interruptions import daly_interval, expected_wall_seconds
from workbench.estimate.timing import StepTime

OFFER = Offer(
    provider="p",
    name="8x",
    gpu="h100-sxm",
    gpus=8,
    usd_per_hour=20.0,
    spot_usd_per_hour=8.0,
    source="a page",
    date="2026-01-02",
)
TERMS = Terms(
    provider="p",
    billing_seconds=1.0,
    storage_usd_per_gb_month=0.10,
    stopped_storage_usd_per_gb_month=0.20,
    egress_usd_per_gb=0.05,
    source="its terms",
    date="2026-02-03",
)
PLAN = RunPlan(tokens=10**10, checkpoint_seconds=60.0, failure_gpu_hours=None)


def step(seconds: float = 1.0, gpus: int = 8, tokens: int = 65_536) -> StepTime:
    return StepTime(
        parts={"matmul": seconds},
        low=0.8,
        high=1.3,
        gpus=gpus,
        tokens=tokens,
        model_flops=1e15,
        hardware_flops=1e15,
        peak_flops=gpus * 989e12,
        assumptions=(),
    )


def bill(plan: RunPlan = PLAN, terms: Terms = TERMS, offer: Offer = OFFER, **of: float):
    return run_cost(step(**of), offer, 1, terms, plan)


def test_every_term_by_hand() -> None:
    """100 h of steps on one machine of $20, one checkpoint an hour, nothing interrupts."""
    plan = replace(
        PLAN,
        tokens=None,
        steps=360_000,
        checkpoint_interval_seconds=3600.0,
        evaluation_share=0.05,
        failed_share=0.10,
        idle_hours=10.0,
        storage_gb=1000.0,
        stopped_days=15.0,
        egress_gb=200.0,
    )
    terms = {term.name: term for term in bill(plan).terms}
    checkpoints = 115 * 60 / 3600
    wall = 5 / 60 + 100 + 5 + 10 + checkpoints
    expected = {
        "useful work": 2000.0,
        "start-up": 20 * 5 / 60,
        "evaluation": 100.0,
        "failed attempts": 200.0,
        "checkpoints written": 20 * checkpoints,
        "lost work and restarts": 0.0,
        "idle": 200.0,
        "billing round-up": 0.0,
        "storage while running": 1000 * 0.10 * (wall + 10) / 720,
        "storage while stopped": 1000 * 0.20 * 15 * 24 / 720,
        "egress": 10.0,
    }
    assert {name: term.usd for name, term in terms.items()} == pytest.approx(expected, abs=1e-3)
    cost = bill(plan)
    assert cost.wall_hours == pytest.approx(wall)
    assert cost.usd == pytest.approx(sum(expected.values()), abs=1e-3)
    assert cost.usd_per_step == pytest.approx(cost.usd / 360_000)
    assert cost.usd_per_million_tokens == pytest.approx(cost.usd / (360_000 * 65_536) * 1e6)
    assert cost.gpu_hours == pytest.approx(800)
    assert cost.usd_per_month == 20 * 720
    assert bill(replace(plan, hours_per_month=730)).usd_per_month == 20 * 730
    assert (terms["useful work"].source, terms["useful work"].date) == ("a page", "2026-01-02")
    assert (terms["egress"].source, terms["egress"].date) == ("its terms", "2026-02-03")


def test_tokens_steps_and_epochs_say_the_same() -> None:
    tokens = 65_536 * 1000
    by_tokens = bill(replace(PLAN, tokens=tokens))
    by_steps = bill(replace(PLAN, tokens=None, steps=1000))
    by_epochs = bill(replace(PLAN, tokens=None, epochs=4, dataset_tokens=tokens // 4))
    assert by_tokens.amounts == by_steps.amounts == by_epochs.amounts
    assert bill(replace(PLAN, tokens=tokens + 1)).job.steps == 1001


def test_spot_follows_daly() -> None:
    """Mean 8 h, 60 s checkpoints, 10 min restarts: expected wall time of interruptions.py."""
    cost = bill(replace(PLAN, spot=True, interruption_hours=8.0))
    work = cost.hours.work * 3600
    interval = daly_interval(60.0, 8.0)
    wall = expected_wall_seconds(work, 60.0, interval, 8 * 3600.0, 600.0)
    assert cost.hours.interval_seconds == pytest.approx(interval)
    assert cost.wall_hours * 3600 == pytest.approx(wall + 300)
    assert cost.amounts["lost work and restarts"] == pytest.approx(8 * cost.hours.lost)
    assert cost.amounts["useful work"] == pytest.approx(8 * cost.hours.work)


def test_more_machines_are_taken_more_often() -> None:
    plan = replace(PLAN, spot=True, interruption_hours=24.0)
    one = run_cost(step(gpus=8), OFFER, 1, TERMS, plan)
    four = run_cost(step(gpus=32), OFFER, 4, TERMS, plan)
    assert one.hours.mean_hours == pytest.approx(24)
    assert four.hours.mean_hours == pytest.approx(6)
    failing = replace(plan, spot=False, failure_gpu_hours=FAILURE_GPU_HOURS)
    assert bill(failing).hours.mean_hours == pytest.approx(50_677 / 8, rel=1e-4)


def test_break_even_is_where_both_bills_meet() -> None:
    plan = replace(PLAN, spot=True, interruption_hours=8.0)
    answer = bill(plan).spot_answer()
    assert answer.usd is not None
    assert answer.usd_on_demand is not None
    assert answer.usd == pytest.approx(bill(plan).usd)
    assert answer.usd_on_demand == pytest.approx(bill(replace(plan, spot=False)).usd)
    limit = answer.break_even_hours
    assert limit is not None
    for factor, cheaper in ((1.01, True), (0.99, False)):
        other = bill(replace(plan, interruption_hours=limit * factor))
        assert other.usd is not None
        assert (other.usd < answer.usd_on_demand) is cheaper
    assert "pays while" in answer.verdict


def test_spot_that_never_pays() -> None:
    dearer = bill(offer=replace(OFFER, spot_usd_per_hour=20.5)).spot_answer()
    assert dearer.break_even_hours is None
    assert dearer.verdict == "Spot is never cheaper here."
    assert dearer.saving_share is not None
    assert dearer.saving_share < 0
    none = bill(offer=replace(OFFER, spot_usd_per_hour=None)).spot_answer()
    assert (none.usd, none.break_even_hours) == (None, None)
    assert none.verdict == "No spot price known here."


def test_unknown_interruptions_widen_the_range() -> None:
    known = bill(replace(PLAN, spot=True, interruption_hours=24.0))
    unknown = bill(replace(PLAN, spot=True))
    assert unknown.usd == pytest.approx(known.usd)
    assert unknown.low.usd < known.low.usd < unknown.usd < known.high.usd < unknown.high.usd
    assert any("Nobody publishes" in said for said in unknown.assumptions)
    provider = replace(TERMS, interruption_hours=24.0)
    assert bill(replace(PLAN, spot=True), provider).high == known.high


@pytest.mark.parametrize(
    ("unit", "least", "hours", "low_hours"),
    [
        (1.0, None, 2.5, 2.1),
        (3600.0, None, 3.0, 3.0),
        (None, None, 3.0, 2.1),  # unknown: full hours, the coarsest in use; per second at best
        (1.0, 36_000.0, 10.0, 10.0),
    ],
)
def test_billing_units(
    unit: float | None, least: float | None, hours: float, low_hours: float
) -> None:
    terms = Terms(provider="p", billing_seconds=unit, minimum_seconds=least)
    plan = RunPlan(steps=7200, checkpoint_seconds=0.0, start_seconds=1800, failure_gpu_hours=None)
    cost = bill(plan, terms)
    assert cost.wall_hours == pytest.approx(2.5)
    assert cost.usd == pytest.approx(20 * hours)
    assert cost.low.usd == pytest.approx(20 * low_hours)


def test_disk_in_the_price_is_free_while_it_runs_on_demand() -> None:
    plan = replace(PLAN, storage_gb=1000.0, interruption_hours=1000.0)
    offer = replace(OFFER, disk_gb=600.0)
    whole, part = bill(plan), bill(plan, offer=offer)
    running = "storage while running"
    assert part.amounts[running] == pytest.approx(0.4 * whole.amounts[running])
    spot = bill(replace(plan, spot=True), offer=offer)
    assert spot.amounts[running] >= whole.amounts[running]


def test_unknown_price_is_never_nought() -> None:
    nobody = replace(OFFER, usd_per_hour=None, spot_usd_per_hour=None)
    cost = bill(replace(PLAN, storage_gb=100.0), offer=nobody)
    assert cost.usd is cost.usd_known is cost.usd_per_step is cost.usd_per_million_tokens is None
    assert cost.low.usd is cost.high.usd is cost.usd_per_month is cost.idle_usd_per_hour is None
    assert cost.hours.work > 0
    assert cost.total_text == "n/a (terms priced 8 of 11)"
    document = cost.document()
    assert document["usd"] is None
    assert document["hours"] == cost.hours.work
    named = {term["name"]: term["usd"] for term in document["terms"]}
    assert named["useful work"] is named["start-up"] is None
    assert named["idle"] == 0.0


def test_a_part_without_price_leaves_the_known_part() -> None:
    cost = bill(replace(PLAN, egress_gb=10.0), replace(TERMS, egress_usd_per_gb=None))
    whole = bill(PLAN)
    assert cost.usd is None
    assert cost.usd_known == pytest.approx(whole.usd)
    assert cost.total_text.startswith("n/a (terms priced 10 of 11; known: $")
    assert "(price unknown)" in next(term.how for term in cost.terms if term.name == "egress")


def test_unused_gpus_are_paid_for_and_said() -> None:
    cost = bill(gpus=4)
    assert cost.amounts["useful work"] == pytest.approx(20 * cost.hours.work)
    assert cost.gpu_hours == pytest.approx(4 * cost.hours.work)
    assert "4 of 8 GPUs are paid for and not used." in cost.assumptions


@pytest.mark.parametrize(
    ("model", "options", "strategy", "per_parameter"),
    [
        ("llama-2-7b", {"precision": "bf16"}, "fsdp", 12),
        ("llama-2-7b", {"precision": "bf16"}, "zero1", 14),
        ("llama-2-7b", {"precision": "bf16-pure"}, "ddp", 6),
        ("llama-2-7b", {"precision": "fp32", "optimizer": "sgd"}, "ddp", 4),
        ("llama-2-7b", {"precision": "bf16", "optimizer": "paged-adamw"}, "ddp", 12),
        ("mixtral-8x7b", {"precision": "bf16"}, "fsdp", 12),
    ],
)
def test_bytes_of_a_checkpoint(
    model: str, options: dict[str, str], strategy: str, per_parameter: int
) -> None:
    shape = Model.catalog(model)
    work = Workload(model=shape, seq_len=2048, micro_batch=1, **options)
    size = checkpoint_bytes(work, Strategy.parse(strategy, 8))
    assert size / shape.parameters == pytest.approx(per_parameter, rel=1e-3)


def test_a_lora_checkpoint_holds_the_adapters_alone() -> None:
    work = Workload(
        model=Model.catalog("llama-2-7b"),
        seq_len=2048,
        micro_batch=1,
        precision="bf16",
        lora_rank=8,
    )
    adapters = 32 * 2 * 8 * (4096 + 4096)
    assert checkpoint_bytes(work, Strategy.parse("ddp", 8)) == 12 * adapters


def test_hours_from_rate_and_from_mfu_agree() -> None:
    from workbench.describe.catalog import gpu

    a100 = gpu("a100-sxm-80")
    flops_per_token = 6 * 6.738e9
    rate = 312e12 * 0.45 / flops_per_token
    hours = hours_of(flops_per_token * 1e12, a100, 0.45)
    assert gpu_hours(1e12, rate) == pytest.approx(hours)
    assert hours_of(flops_per_token * 1e12, a100, 0.45, gpus=8) == pytest.approx(hours / 8)
    for share in (0.0, 1.1, math.nan):
        with pytest.raises(UsageError, match="share of the peak"):
            hours_of(1e20, a100, share)
    with pytest.raises(UsageError, match="no bf16 matmuls"):
        hours_of(1e20, gpu("v100-sxm2-16"), 0.4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "given once, not 0 times"),
        ({"tokens": 1, "steps": 1}, "given once, not 2 times"),
        ({"epochs": 1.0}, "belong together"),
        ({"tokens": 10, "dataset_tokens": 10}, "belong together"),
        ({"tokens": 0}, "tokens must be above 0"),
        ({"tokens": "10B"}, "tokens must be a number, not '10B'"),
        ({"epochs": math.nan, "dataset_tokens": 10}, "epochs must be above 0"),
        ({"tokens": 10, "checkpoint_seconds": None}, "size or the time of a checkpoint"),
        ({"tokens": 10, "checkpoint_seconds": -1}, "checkpoint_seconds must be at least 0"),
        ({"tokens": 10, "interruption_hours": 0}, "interruption_hours must be above 0"),
        ({"tokens": 10, "storage_gb": math.inf}, "storage_gb must be below 1e30, not inf"),
        ({"tokens": 10, "hours_per_month": 700}, "720 or 730"),
    ],
)
def test_refusals(values: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RunPlan(**{"checkpoint_seconds": 60.0, **values})


def test_too_few_machines_and_runs_that_never_end() -> None:
    with pytest.raises(UsageError, match="Rent 2 of them"):
        bill(gpus=16)
    with pytest.raises(UsageError, match="never gets through"):
        bill(replace(PLAN, spot=True, interruption_hours=0.001))
    endless = run_cost(
        step(gpus=1024), OFFER, 128, TERMS, replace(PLAN, spot=True, restart_seconds=3000)
    )
    assert endless.usd is not None
    assert endless.high.usd is endless.high.wall_hours is None


PLANS = st.builds(
    RunPlan,
    tokens=st.integers(1, 10**13),
    checkpoint_seconds=st.floats(0, 600),
    spot=st.booleans(),
    interruption_hours=st.floats(2, 1000),
    failure_gpu_hours=st.sampled_from([None, FAILURE_GPU_HOURS]),
    start_seconds=st.floats(0, 3600),
    restart_seconds=st.floats(0, 3600),
    evaluation_share=st.floats(0, 1),
    failed_share=st.floats(0, 1),
    idle_hours=st.floats(0, 100),
    storage_gb=st.floats(0, 1e5),
    stopped_days=st.floats(0, 100),
    egress_gb=st.floats(0, 1e5),
)
BILLS = st.builds(
    lambda unit, least: replace(TERMS, billing_seconds=unit, minimum_seconds=least),
    st.sampled_from([1.0, 60.0, 3600.0, None]),
    st.sampled_from([None, 60.0, 600.0, 3600.0]),
)
STEPS = st.builds(step, seconds=st.floats(0.01, 100), tokens=st.integers(1, 10**7))
law = settings(max_examples=150)


@law
@given(of=STEPS, plan=PLANS, terms=BILLS)
def test_no_term_is_negative_and_the_range_holds_the_total(of, plan, terms) -> None:
    cost = run_cost(of, OFFER, 1, terms, plan)
    assert all(usd is not None and usd >= 0 for usd in cost.amounts.values())
    assert cost.usd == pytest.approx(sum(term.usd for term in cost.terms))
    assert cost.low.usd <= cost.usd * (1 + 1e-9)
    assert cost.high.usd >= cost.usd * (1 - 1e-9)
    assert cost.low.wall_hours <= cost.wall_hours <= cost.high.wall_hours


@law
@given(of=STEPS, plan=PLANS, terms=BILLS, more=st.floats(1, 100))
def test_more_tokens_are_never_cheaper(of, plan, terms, more) -> None:
    longer = replace(plan, tokens=math.ceil(plan.tokens * more))
    first, second = (run_cost(of, OFFER, 1, terms, one) for one in (plan, longer))
    assert second.usd >= first.usd * (1 - 1e-9)
    assert second.wall_hours >= first.wall_hours * (1 - 1e-9)


@law
@given(of=STEPS, plan=PLANS, least=st.sampled_from([None, 60.0, 3600.0]))
def test_finer_billing_is_never_dearer(of, plan, least) -> None:
    totals = [
        run_cost(
            of, OFFER, 1, replace(TERMS, billing_seconds=unit, minimum_seconds=least), plan
        ).usd
        for unit in (1.0, 60.0, 3600.0, None)
    ]
    assert totals == sorted(totals)
    assert totals[2] == totals[3]


@law
@given(of=STEPS, plan=PLANS, terms=BILLS, often=st.floats(1.05, 20))
def test_more_frequent_interruptions_are_never_cheaper(of, plan, terms, often) -> None:
    plan = replace(plan, spot=True)
    oftener = replace(plan, interruption_hours=plan.interruption_hours / often)
    first, second = (run_cost(of, OFFER, 1, terms, one) for one in (plan, oftener))
    assert second.usd >= first.usd * (1 - 1e-3)  # Daly's interval is not quite the best one


@law
@given(plan=PLANS, seconds=st.floats(0.01, 100), nodes=st.integers(1, 128))
def test_more_gpus_at_equal_efficiency_never_need_more_hours(plan, seconds, nodes) -> None:
    """Where nothing interrupts: with failures a job may be too wide for its own mean time."""
    plan = replace(plan, spot=False, failure_gpu_hours=None)
    one = run_cost(step(seconds * nodes, 8), OFFER, 1, TERMS, plan)
    many = run_cost(step(seconds, 8 * nodes), OFFER, nodes, TERMS, plan)
    assert many.wall_hours <= one.wall_hours * (1 + 1e-9)
    assert many.gpu_hours == pytest.approx(one.gpu_hours)


@law
@given(
    of=STEPS,
    plan=PLANS,
    terms=BILLS,
    lacking=st.sampled_from(["machine", "disk", "stopped", "egress"]),
)
@example(of=step(), plan=replace(PLAN, storage_gb=5e-324), terms=TERMS, lacking="disk")
@example(
    of=step(),
    plan=replace(PLAN, storage_gb=5e-324, stopped_days=0.5),
    terms=TERMS,
    lacking="stopped",
)
@example(
    of=step(),
    plan=replace(PLAN, storage_gb=1.0, stopped_days=5e-324),
    terms=TERMS,
    lacking="stopped",
)
@example(of=step(), plan=replace(PLAN, egress_gb=5e-324), terms=TERMS, lacking="egress")
def test_an_unknown_price_makes_the_total_unknown_where_it_is_used(
    of, plan, terms, lacking
) -> None:
    field, used = {
        "machine": (None, True),
        "disk": ("storage_usd_per_gb_month", plan.storage_gb > 0),
        "stopped": (
            "stopped_storage_usd_per_gb_month",
            plan.storage_gb > 0 and plan.stopped_days > 0,
        ),
        "egress": ("egress_usd_per_gb", plan.egress_gb > 0),
    }[lacking]
    offer = OFFER if field else replace(OFFER, usd_per_hour=None, spot_usd_per_hour=None)
    cost = run_cost(of, offer, 1, replace(terms, **{field: None}) if field else terms, plan)
    assert (cost.usd is None) is used
    assert all(term.usd is not None or term.source == "" for term in cost.terms)
