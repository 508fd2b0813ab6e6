"""What a plan says must hold: a limit that would do does, a change is never 0%."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import workbench as wb
from tests.plan.test_search import ask, offer
from workbench.describe.job import Job
from workbench.planning import Limits, plan_on
from workbench.units import format_seconds


def advised(sentence: str) -> Limits:
    """The limits that a sentence says would do, as a reader types them."""
    usd = re.search(r"A budget of \$([\d.,]*\d)", sentence)
    hours = re.search(r"deadline of ([\d.,]*\d) h", sentence)
    return Limits(
        budget_usd=float(usd[1].replace(",", "")) if usd else None,
        deadline_hours=float(hours[1].replace(",", "")) if hours else None,
    )


@pytest.mark.parametrize("tokens", [3e5, 7e7, 1e9, 1.3e11])
def test_the_limit_that_would_do_does(tokens: float) -> None:
    short, cheap = Limits(deadline_hours=1e-6), Limits(budget_usd=1e-6)
    both = Limits(budget_usd=1e-6, deadline_hours=1e-6)
    for limits in (short, cheap, both):
        misses = ask(tokens=tokens, limits=limits).misses
        said = [one for one in misses if "would do" in one]
        assert said
        for sentence in said:
            assert ask(tokens=tokens, limits=advised(sentence)).plans, sentence
            assert "1e-06" in sentence


def test_the_other_limit_is_kept_where_one_gives_way() -> None:
    hours = sorted(one.hours for one in ask().plans)
    for given in (hours[0] * 1.0001, hours[2] * 1.0001):
        limits = Limits(budget_usd=0.1, deadline_hours=given)
        (sentence,) = ask(limits=limits).misses
        wider = replace(limits, budget_usd=advised(sentence).budget_usd)
        assert ask(limits=wider).plans, sentence


def test_a_change_too_small_for_a_percentage_is_said_in_words() -> None:
    twins = [offer("one", "h100-sxm", 1, 2.0), offer("two", "h100-sxm", 1, 2.0001)]
    near = [twins[0], replace(twins[1], usd_per_hour=2.03)]
    for offers, said in ((twins, "it is a little higher"), (near, r"it is 1\.[4-7]% higher")):
        asked = {one.name: one.sentence for one in ask(offers=offers).sensitivity()}
        assert re.search(said, asked["price of the winner"])
        assert not any(" 0% " in sentence for sentence in asked.values())


def test_the_simplest_layout_is_named_with_its_time_where_it_is_a_plan_too() -> None:
    job = Job.of("llama-3-8b", cpu=True, seq_len=4096, lora_rank=32, quantization="nf4")
    plans = plan_on(wb.Cluster.rented("rtx-4090", gpus=2), job, tokens=5e7).plans
    (ddp,) = (plan for plan in plans if plan.strategy.name == "ddp")
    first = plans[0]
    assert first is not ddp
    steps = [format_seconds(plan.step.step_seconds) for plan in (ddp, first)]
    assert f"ddp takes {steps[0]} a step, this {steps[1]}" in first.why


def test_host_memory_that_no_one_stated_is_said_to_be_assumed() -> None:
    cluster, job = wb.Cluster.rented("h100", gpus=8), Job.of("llama-3-70b", cpu=True)
    larger = Job.of("llama-3-405b", cpu=True)
    (unknown,) = plan_on(cluster, larger, tokens=1e9).misses
    assert "the host's is not known, 151 GiB per GPU are assumed" in unknown
    assert "more host memory per GPU" in unknown
    assert "a larger card" not in unknown
    small = replace(cluster, memory_bytes=8 * 80 << 30)
    (known,) = plan_on(small, job, tokens=1e9).misses
    assert "the host has 80 GiB per GPU" in known


def test_what_would_make_it_fit_is_nothing_that_the_job_does_already() -> None:
    cluster = wb.Cluster.rented("rtx-3060", gpus=1)

    def remedies(**options: object) -> str:
        (miss,) = plan_on(cluster, Job.of("llama-3-70b", cpu=True, **options), tokens=1e6).misses
        return miss.rpartition("It would fit with ")[2]

    usual, eight = remedies(), remedies(optimizer="adamw-8bit")
    assert all(way in usual for way in ("adamw-8bit", ", LoRA or shorter sequences."))
    assert "adamw-8bit" not in eight
    assert "LoRA" in eight
    adapters = remedies(lora_rank=8)
    assert "nf4" in adapters
    assert "LoRA" not in adapters
    quantized = remedies(lora_rank=8, quantization="nf4", optimizer="adamw-8bit")
    assert not any(way in quantized for way in ("adamw-8bit", "LoRA", "nf4"))
    assert quantized.endswith(" or shorter sequences.")


def test_a_plan_that_is_beaten_in_one_thing_alone_is_not_called_slower_too() -> None:
    offers = [offer("one", "h100-sxm", 1, 2.0), offer("two", "h100-sxm", 1, 3.0)]
    first, second = ask(offers=offers).plans
    assert first.hours == second.hours
    assert "plan 1 is cheaper and as fast" in second.why
