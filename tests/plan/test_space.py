"""The space of layouts: nothing illegal in it, one global batch, a reason for all that is out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import workbench as wb
from workbench import recipes
from workbench.describe import Model, Strategy, Workload
from workbench.describe.strategy import RECOMPUTE
from workbench.describe.supported import SPLITS, check_supported, why_not
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.memory import check_layout
from workbench.estimate.stages import stages
from workbench.planning import plan_on
from workbench.planning.layouts import enumerate_layouts
from workbench.planning.space import (
    ANY_SCRIPT,
    DATA,
    ParallelLayout,
    Space,
    default_batch,
)

FEW = Model(name="few", layers=2, hidden=768, heads=12, kv_heads=2, mlp_hidden=3072, vocab=1000)


def work(name: str = "llama-3-8b", seq_len: int | None = None, **more: object) -> Workload:
    model = Model.catalog(name)
    length = seq_len or min(4096, model.longest_sequence or 4096)
    return Workload(model=model, seq_len=length, micro_batch=1, precision="bf16", **more)


def every(
    workload: Workload, nodes: int = 1, per_node: int = 8, **more: object
) -> list[ParallelLayout]:
    batch = int(more.pop("batch", 64))
    space = Space(**more)
    return list(
        enumerate_layouts(workload, nodes=nodes, per_node=per_node, batch=batch, space=space)
    )


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 2), (1, 6), (1, 8), (2, 8), (3, 4)])
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt2"])
def test_every_layout_uses_all_ranks_and_one_global_batch(
    name: str, nodes: int, per_node: int
) -> None:
    workload = work(name, 1024)
    batch = 96
    found = every(workload, nodes, per_node, batch=batch, data=DATA)
    legal = [one for one in found if not one.reason]
    assert legal
    for one in found:
        assert one.strategy.world_size == nodes * per_node
    for one in legal:
        for size in one.micro_batches:
            assert size * one.accumulate(size) * one.strategy.data_ranks == batch
            assert one.accumulate(size) >= one.strategy.pp
        for choice in one.choices:
            check_layout(workload, choice.strategy)
            stages(workload.model, choice.strategy, 8)
            parsed = Strategy.parse(choice.strategy.name, nodes * per_node)
            degrees = ("tp", "pp", "cp", "ep", "dp_shard", "dp_replicate")
            if one.strategy.dp_replicate == 1 or one.strategy.dp_shard == 1:
                assert [getattr(parsed, name) for name in degrees] == [
                    getattr(choice.strategy, name) for name in degrees
                ]


def test_no_layout_is_listed_twice() -> None:
    found = every(work("mixtral-8x7b"), 2, 4, data=DATA)
    seen = [choice.strategy for one in found for choice in one.choices]
    assert len(set(seen)) == len(seen)


def test_the_space_has_the_layouts_people_use() -> None:
    names = {one.strategy.name for one in every(work(), 2, 8) if not one.reason}
    assert names >= {
        "ddp",
        "fsdp",
        "fsdp-grad-op",
        "zero1",
        "dp2-fsdp8",
        "dp2-tp8",
        "fsdp4-tp2-pp2",
    }
    assert [one.strategy.name for one in every(work(), 1, 1)] == ["single", "zero2", "zero3"]
    second, third = every(work(), 1, 1)[1:]
    assert second.choices[0].strategy.offload == ("optimizer",)
    assert third.choices[0].strategy.offload == ("optimizer", "parameters")
    zero = {one.strategy.name for one in every(work(), data=DATA)}
    assert zero >= {"zero2", "zero3"}


def test_lighter_choices_do_less_of_both() -> None:
    order = ("none", "selective", "full")
    for one in every(work()):
        for choice in one.choices:
            for position in choice.lighter:
                other = one.choices[position].strategy
                assert order.index(other.recompute) <= order.index(choice.strategy.recompute)
                assert set(other.offload) <= set(choice.strategy.offload)


@pytest.mark.parametrize(
    ("workload", "nodes", "per_node", "strategy", "reason"),
    [
        (work("gpt2", 1024), 1, 8, {"tp": 8}, "12 attention heads"),
        (work("llama-3-8b"), 2, 8, {"tp": 16}, "leave the node of 8"),
        (Workload(model=FEW, seq_len=1024, micro_batch=1), 1, 3, {"tp": 3}, "2 key/value heads"),
        (work("llama-3-8b", 4096), 1, 4, {"cp": 4}, "1,024 tokens of a sequence"),
        (work("llama-3.2-1b"), 4, 8, {"pp": 32}, "more than is looked at"),
        (work("gpt2", 1024), 2, 8, {"pp": 16}, "16 stages"),
        (work("llama-3-8b", lora_rank=8, quantization="nf4"), 1, 2, {"tp": 2}, "nf4 weights"),
    ],
)
def test_impossible_degrees_have_their_reason(
    workload: Workload, nodes: int, per_node: int, strategy: dict[str, int], reason: str
) -> None:
    out = [
        one
        for one in every(workload, nodes, per_node)
        if all(getattr(one.strategy, key) == value for key, value in strategy.items())
        and math.prod(strategy.values()) == one.strategy.world_size
    ]
    assert out
    assert all(reason in one.reason for one in out), out[0].reason


def test_a_batch_that_does_not_divide_is_a_reason() -> None:
    out = [one for one in every(work(), 1, 8, batch=12) if "cannot be split" in one.reason]
    assert {one.strategy.data_ranks for one in out} == {8}
    few = [one for one in every(work(), 2, 8, batch=8) if "fewer micro-batches" in one.reason]
    assert few
    assert all(one.strategy.pp > 8 // one.strategy.data_ranks for one in few)


def test_experts_are_split_only_where_they_divide() -> None:
    found = every(work("mixtral-8x7b"), 2, 8, launchable=False)  # the launcher starts none of them
    assert {one.strategy.ep for one in found if not one.reason} == {1, 2, 4, 8}
    assert {one.strategy.ep for one in every(work(), 1, 8)} == {1}


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12, 24, 100, 1000])
def test_a_default_batch_is_split_over_any_number_of_ranks(ranks: int) -> None:
    for seq_len in (1024, 3000, 131072):
        least = max(ranks, -(-(2**19) // seq_len))
        batch = default_batch(work(seq_len=seq_len), ranks)
        assert batch % ranks == 0
        assert least <= batch < least * 9 / 8 + ranks


@pytest.mark.parametrize("gpus", [3, 6, 7])
def test_data_parallelism_is_among_the_plans_of_an_odd_machine(gpus: int) -> None:
    cluster = wb.Cluster.rented("h100", gpus=gpus)
    plans = plan_on(cluster, work("gpt2", seq_len=1024), tokens=1e9)
    assert "ddp" in {plan.strategy.name for plan in plans}


def test_default_batch_is_half_a_million_tokens_and_one_sequence_per_rank() -> None:
    assert default_batch(work(seq_len=4096)) == 128
    assert default_batch(work(seq_len=3000)) == 256
    assert default_batch(work(seq_len=8192), ranks=1024) == 1024


def test_space_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownNameError, match="fsdp"):
        Space(data=("fsdpp",))
    with pytest.raises(UsageError, match="at least one way"):
        Space(recompute=())
    with pytest.raises(UsageError, match="most_tp"):
        Space(most_tp=0)


@pytest.mark.parametrize("machine", [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8)])
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt2"])
def test_no_layout_is_proposed_that_the_launcher_refuses(
    name: str, machine: tuple[int, int]
) -> None:
    """ "single" with an offloaded optimizer once won, and nothing could start it."""
    found = every(work(name), *machine, data=DATA)
    proposed = [choice.strategy for layout in found for choice in layout.choices]
    assert proposed
    for strategy in proposed:
        if why_not(strategy):  # no script takes it unchanged
            check_supported(strategy, recipes.find("gpt").splits, "cuda")
    any_script = replace(ANY_SCRIPT, data=DATA, recompute=RECOMPUTE, offload=True)
    found = list(
        enumerate_layouts(
            work(name), nodes=machine[0], per_node=machine[1], batch=64, space=any_script
        )
    )
    for strategy in (choice.strategy for layout in found for choice in layout.choices):
        check_supported(strategy, None, "cuda")


def test_what_the_launcher_refuses_is_named_as_the_reason() -> None:
    beside = [one for one in every(work(), 1, 8, data=("zero1",)) if one.strategy.tp > 1]
    refused = [one for one in beside if one.strategy.zero_stage == 1]
    assert refused
    assert all("ZeRO" in one.reason for one in refused)
    assert any(one.choices for one in every(work(), 1, 8, data=("zero1",), launchable=False))


def test_one_gpu_offloads_by_deepspeed_with_recompute_where_a_recipe_does_it() -> None:
    found = [choice.strategy for layout in every(work(), 1, 1) for choice in layout.choices]
    offloading = [one for one in found if one.offload]
    assert {(one.name, one.recompute) for one in offloading} == {
        (name, recompute) for name in ("zero2", "zero3") for recompute in ("none", "full")
    }


def test_the_recipe_splits_what_the_planner_counts_on() -> None:
    assert recipes.find("gpt").splits == SPLITS
