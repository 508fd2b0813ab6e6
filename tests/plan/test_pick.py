"""One strategy by goal: what is taken, what it was compared with, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from tests.cpu_budget import least_seconds, over_budget
from workbench.describe import Cluster, Strategy, Workload, catalog
from workbench.describe.model import Model
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.planning.pick import GOALS, pick

HOST = Cluster(name="laptop", cpu_cores=4, memory_bytes=16 * 2**30)
CARDS = Cluster.rented("rtx-4090", gpus=8)


def work(name: str = "llama-3.2-1b", micro_batch: int = 1, accumulate: int = 8) -> Workload:
    return Workload(
        model=catalog.published(name).model,
        seq_len=2048,
        micro_batch=micro_batch,
        accumulate=accumulate,
        precision="bf16",
    )


def small() -> Workload:
    model = Model(
        name="small", layers=2, hidden=64, heads=4, mlp_hidden=256, vocab=256, gated_mlp=False
    )
    return Workload(model=model, seq_len=64, micro_batch=2)


def test_fit_takes_the_least_memory_and_no_recompute_where_it_is_not_needed() -> None:
    found = pick("fit", work(), CARDS, 8).strategy
    needs = training_memory(work(), found, CARDS)
    assert needs.fits
    assert (found.recompute, found.offload) == ("none", ())
    for name in ("ddp", "fsdp", "fsdp-grad-op", "hsdp"):
        other = training_memory(work(), Strategy.parse(name, 8), CARDS)
        assert needs.on_card_bytes <= 1.05 * other.on_card_bytes


def test_fast_is_faster_than_every_plain_layout_that_fits() -> None:
    picked = pick("fast", work(), CARDS, 8)
    speed = step_time(work(), picked.strategy, CARDS).tokens_per_second
    others = [Strategy.parse(name, 8) for name in ("ddp", "fsdp", "fsdp-grad-op", "zero1", "hsdp")]
    fitting = [one for one in others if training_memory(work(), one, CARDS).fits]
    assert fitting
    for one in fitting:  # speeds within 2 % count as equal
        assert speed >= 0.98 * step_time(work(), one, CARDS).tokens_per_second
    assert "tokens/s" in picked.why[0]


def test_what_does_not_fit_is_named_and_not_taken() -> None:
    big = work("llama-3-8b")
    picked = pick("fast", big, CARDS, 8)
    assert training_memory(big, picked.strategy, CARDS).fits
    out = [line for line in picked.why if line.startswith("ddp on 8:")]
    assert out
    assert out[0].endswith("a rank, about " + out[0].split("about ")[1])
    assert ": out." in out[0]


def test_offload_comes_last() -> None:
    one = dataclasses.replace(CARDS, gpus=CARDS.gpus[:1])
    # The planner's layouts have ZeRO-2 on one GPU: it needs no more and moves the weights not at all.
    assert pick("fit", work("llama-3.2-1b"), one, 1).strategy.offload == ("optimizer",)
    roomy = Cluster.rented("h100-sxm", gpus=1)
    assert pick("fit", work("llama-3.2-1b"), roomy, 1).strategy.offload == ()


def test_cheap_takes_fewer_cards_and_less_time_of_them() -> None:
    roomy = Cluster.rented("h100-sxm", gpus=8)
    picked = pick("cheap", work(), roomy, 8).strategy

    def card_seconds(strategy: Strategy) -> float:
        return strategy.world_size / step_time(work(), strategy, roomy).tokens_per_second

    assert picked.world_size < 8
    for name, ranks in (("single", 1), ("ddp", 4), ("fsdp", 8)):  # 2 % count as equal
        assert card_seconds(picked) <= 1.02 * card_seconds(Strategy.parse(name, ranks))


def test_on_a_host_without_cards_the_simple_is_fast_and_the_split_is_small() -> None:
    assert pick("fast", small(), HOST, 2).strategy.name == "ddp"
    assert pick("cheap", small(), HOST, 4).strategy.name == "single"
    assert pick("fit", small(), HOST, 2).strategy.name == "ddp"  # nothing to gain
    least = pick("fit", work(accumulate=1), dataclasses.replace(HOST, memory_bytes=2**40), 2)
    assert least.strategy.dp_replicate == 1
    assert "tokens/s" not in " ".join(pick("fast", small(), HOST, 2).why)


def test_memory_of_the_host_counts() -> None:
    tight = dataclasses.replace(HOST, memory_bytes=26 * 2**30)
    heavy = dataclasses.replace(work("llama-3.2-1b"), precision="fp32", accumulate=1)
    taken = pick("fast", heavy, tight, 2).strategy
    assert taken.name != "ddp"
    assert training_memory(heavy, taken, "cpu").total_bytes <= 13 * 2**30


@pytest.mark.parametrize("goal", GOALS)
def test_only_what_is_allowed_is_taken_and_the_refusal_is_quoted(goal: str) -> None:
    asked: list[str] = []

    def allowed(strategy: Strategy) -> str:
        asked.append(strategy.name)
        return "" if strategy.name in {"zero1", "zero3"} else f"no {strategy.name} here"

    picked = pick(goal, small(), HOST, 2, allowed=allowed)
    assert picked.strategy.name == "zero1"
    assert asked[-1] == "zero1"
    assert f"no {asked[0]} here" in " ".join(picked.why)
    with pytest.raises(UsageError, match=r"Nothing that fits can be launched.*never"):
        pick(goal, small(), HOST, 2, allowed=lambda _: "never")


def test_where_nothing_fits_the_sentence_says_what_would() -> None:
    with pytest.raises(UsageError, match=r"No layout fits: the least, .* GiB.* Use more GPUs"):
        pick("fit", work("llama-3.1-405b"), CARDS, 8)


def test_a_stage_gets_a_micro_batch_of_its_own() -> None:
    names: list[Strategy] = []
    pick("fit", work(accumulate=2), CARDS, 8, allowed=lambda one: names.append(one) or "")
    for strategy in names:
        assert strategy.pp <= 2


def test_unknown_goals_are_refused() -> None:
    with pytest.raises(UsageError, match="fsat"):
        pick("fsat", small(), HOST, 2)


def test_it_is_quick_enough_to_follow_a_control() -> None:
    pick("fast", work(), CARDS, 8)
    assert not over_budget(least_seconds(lambda: pick("fast", work(), CARDS, 8)), 0.3)
