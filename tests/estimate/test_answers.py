"""Answers built on the closed form: boundaries are boundaries, switches are what they say."""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.describe import KERNELS, catalog
from workbench.describe.job import Job, options
from workbench.estimate import sizing
from workbench.estimate.sizing.strategy_switches import layout_name
from workbench.estimate.sizing.switch import RESULT
from workbench.units import GIB

LLAMA = catalog.model("llama-3-8b")
H100 = wb.Cluster.rented("h100", gpus=8)


def workload(name: str = "llama-3-8b", **extra: object) -> wb.Workload:
    values = {"seq_len": 2048, "micro_batch": 1, "precision": "bf16", **extra}
    return wb.Workload(model=catalog.model(name), **values)


def layout(name: str, ranks: int, **options: object) -> wb.Strategy:
    return wb.Strategy.parse(name, ranks).with_options(**options)


layouts = st.sampled_from(
    [
        layout("single", 1),
        layout("ddp", 8),
        layout("ddp", 8, bucket_views=True),
        layout("fsdp", 8),
        layout("fsdp-grad-op", 8),
        layout("hsdp", 8),
        layout("zero1", 8),
        layout("zero2", 8),
        layout("zero3", 8, offload=("optimizer",)),
        layout("tp", 4),
        layout("fsdp2-tp4", 8, sequence_parallel=True),
        layout("pp2-dp4", 8),
        layout("cp", 4),
        layout("fsdp", 8, recompute="full"),
        layout("fsdp", 8, recompute="selective", recompute_parts=("op",)),
        layout("fsdp", 8, offload=("activations",)),
    ]
)
works = st.builds(
    workload,
    st.sampled_from(["gpt2-medium", "llama-3-8b", "qwen-2.5-7b", "bert-large-uncased"]),
    seq_len=st.sampled_from([128, 512]),
    accumulate=st.sampled_from([1, 4]),
    precision=st.sampled_from(["fp32", "bf16", "bf16-pure"]),
    optimizer=st.sampled_from(["adamw", "adamw-fused", "adamw-8bit", "sgd"]),
    lora_rank=st.sampled_from([0, 16]),
    loss=st.sampled_from(["full", "chunked", "fused"]),
    attention=st.sampled_from(["sdpa", "eager"]),
    kernels=st.sampled_from(list(KERNELS.values())),
)
cards = st.sampled_from(["l4", "a100-sxm-40", "h100-sxm", "b200-sxm"])
headrooms = st.sampled_from([0.0, 0.05, 0.2])


@given(works, layouts, cards, headrooms)
@settings(max_examples=150)
def test_the_largest_micro_batch_fits_and_the_next_does_not(
    work: wb.Workload, how: wb.Strategy, card: str, headroom: float
) -> None:
    cluster = wb.Cluster.rented(card, gpus=how.world_size)
    found = wb.largest_micro_batch(work, how, cluster, headroom)
    assert found.value is not None

    def fits(batch: int) -> bool | None:
        estimate = wb.training_memory(replace(work, micro_batch=batch), how, cluster)
        return sizing.leaves_headroom(estimate, headroom)

    assert not fits(found.value + 1)
    assert found.value == 0 or fits(found.value)
    assert not any(fits(found.value + more) for more in (2, 3, 7, 64, 1000))


@given(works, layouts, cards)
@settings(max_examples=80)
def test_the_longest_sequence_fits_and_the_next_does_not(
    work: wb.Workload, how: wb.Strategy, card: str
) -> None:
    cluster = wb.Cluster.rented(card, gpus=how.world_size)
    found = wb.longest_sequence(work, how, cluster)
    table = work.model.max_positions
    assert found.value is not None

    def fits(tokens: int) -> bool | None:
        estimate = wb.training_memory(replace(work, seq_len=tokens), how, cluster)
        return sizing.leaves_headroom(estimate)

    assert found.value % 128 == 0
    assert found.value == 0 or fits(found.value)
    if table:
        assert found.value <= table
    if not table or found.value < table:
        assert not fits(found.value + 128)


@given(works, layouts, cards)
@settings(max_examples=60)
def test_every_switch_is_what_it_says(work: wb.Workload, how: wb.Strategy, card: str) -> None:
    cluster = wb.Cluster.rented(card, gpus=how.world_size)
    before = wb.training_memory(work, how, cluster)
    found = sizing.switches(work, how, cluster, costly=True)
    ranked = sorted(found, key=lambda one: (not one.usual, -one.saves_bytes, one.tier))
    assert list(found) == ranked
    assert len({one.name for one in found}) == len(found)
    for one in found:
        after = wb.training_memory(one.workload, one.strategy, cluster)
        assert one.saves_bytes == before.on_card_bytes - after.on_card_bytes
        assert one.on_card_bytes == after.on_card_bytes
        assert (one.workload, one.strategy) != (work, how)
        assert one.strategy.world_size == how.world_size
        assert one.changes_result == (one.tier == RESULT)
        assert one.cost
        assert one.how
    shown = sizing.switches(work, how, cluster)
    assert all(one.saves_bytes > 0 for one in shown)
    assert {one.name for one in shown} <= {one.name for one in found}


@given(works, layouts, cards)
@settings(max_examples=60)
def test_a_combination_fits_and_keeps_the_result(
    work: wb.Workload, how: wb.Strategy, card: str
) -> None:
    cluster = wb.Cluster.rented(card, gpus=how.world_size)
    chain = sizing.switches_that_fit(work, how, cluster)
    if not chain:
        return
    assert not sizing.leaves_headroom(wb.training_memory(work, how, cluster))
    last = chain[-1]
    after = wb.training_memory(last.workload, last.strategy, cluster)
    assert sizing.leaves_headroom(after)
    assert not any(one.changes_result for one in chain)
    assert last.workload.tokens * last.workload.accumulate == work.tokens * work.accumulate
    assert last.workload.optimizer.removeprefix("paged-").removesuffix("-fused") in {
        work.optimizer,
        work.optimizer.removesuffix("-fused"),
    }


@pytest.mark.parametrize(
    ("model", "card", "ranks"),
    [("mixtral-8x7b", "h100", 8), ("llama-3-70b", "h100", 8), ("llama-3-8b", "rtx-4090", 8)],
)
def test_many_switches_that_help_little_do_not_hide_the_few_that_fit(
    model: str, card: str, ranks: int
) -> None:
    job = Job.of(model, gpu=card, gpus=ranks)
    chain = sizing.switches_that_fit(job.workload, job.strategy, job.cluster)
    assert [one.name for one in chain][-2:] == ["fsdp", "offload optimizer + parameters"]
    assert len(chain) <= 3  # needless ones are taken back
    said = wb.explain(wb.training_memory(job), job)
    assert "No combination" not in said[-1]


@given(works, layouts, cards)
@settings(max_examples=60)
def test_the_explanation_names_the_peak(work: wb.Workload, how: wb.Strategy, card: str) -> None:
    cluster = wb.Cluster.rented(card, gpus=how.world_size)
    estimate = wb.training_memory(work, how, cluster)
    said = wb.explain(estimate, work, how, cluster)
    assert said[0].startswith("The peak is ")
    assert all(sentence.endswith(".") for sentence in said)
    beyond = estimate.headroom_bytes < 0
    assert any("misses the card" in one for one in said) == beyond
    little = any("too little to count as fitting" in one for one in said)
    assert little == (estimate.fits is False and not beyond)


@pytest.mark.parametrize("headroom", [-0.1, 1.0, 2.0])
def test_headroom_is_a_share(headroom: float) -> None:
    with pytest.raises(wb.UsageError, match=r"headroom must be (at least 0|below 1), not"):
        wb.largest_micro_batch(workload(), layout("fsdp", 8), H100, headroom)


def test_more_headroom_never_reaches_further() -> None:
    reach = [
        wb.largest_micro_batch(workload(), layout("fsdp", 8), H100, share).value
        for share in (0.0, 0.05, 0.3, 0.6, 0.9)
    ]
    assert reach == sorted(reach, reverse=True)
    assert reach[0] > 0 == reach[-1]


def test_reasons_when_there_is_no_answer() -> None:
    fsdp = layout("fsdp", 8)
    nowhere = wb.largest_micro_batch(workload(), fsdp, wb.Cluster(name="cpu"))
    assert nowhere.value is None
    assert "name a GPU" in nowhere.reason
    none = wb.largest_micro_batch(workload(), layout("single", 1), wb.Cluster.rented("l4", gpus=1))
    assert none.value == 0
    assert none.estimate is None
    assert none.reason.startswith("even 1 sequence needs")
    vision = workload("vit-b-16")
    fixed = wb.longest_sequence(vision, layout("single", 1), wb.Cluster.rented("l4", gpus=1))
    assert fixed.value is None
    assert "patches" in fixed.reason
    assert "5%" in wb.largest_micro_batch(workload(), fsdp, H100).reason


def test_a_learned_position_table_ends_the_search() -> None:
    small = workload("gpt2", seq_len=128)
    found = wb.longest_sequence(small, layout("single", 1), wb.Cluster.rented("h100", gpus=1))
    assert found.value == 1024
    assert "the most that is possible" in found.reason


def test_context_parallelism_sets_the_step() -> None:
    how = layout("cp", 8)
    found = wb.longest_sequence(workload(seq_len=2048), how, H100)
    assert found.value is not None
    assert found.value % 8 == 0


def names(work: wb.Workload, how: wb.Strategy, **options: object) -> set[str]:
    cluster = wb.Cluster.rented("h100", gpus=how.world_size)
    return {one.name for one in sizing.switches(work, how, cluster, costly=True, **options)}


def test_paged_moments_have_to_fit_into_the_hosts_memory() -> None:
    """Those of 46.7 B parameters are 348 GiB: more than a host is assumed to have per GPU."""
    assert "paged AdamW" not in names(workload("mixtral-8x7b"), layout("single", 1))


def test_only_legal_switches_are_offered() -> None:
    fsdp = names(workload(), layout("fsdp", 8))
    assert {"recompute full", "LoRA r16", "QLoRA nf4 r16", "chunked loss"} <= fsdp
    assert {"offload optimizer + parameters", "8-bit AdamW", "expandable segments"} <= fsdp
    assert not {"paged AdamW", "offload optimizer", "sequence parallel", "zero2"} & fsdp
    assert not {"sdpa attention", "micro-batch halved", "recompute attention"} & fsdp
    ddp = names(workload(attention="eager", micro_batch=6), layout("ddp", 8))
    assert {"zero1", "zero2", "fsdp", "gradients as bucket views", "sdpa attention"} <= ddp
    assert {"micro-batch halved", "recompute attention", "paged AdamW"} <= ddp
    paged = names(workload(optimizer="paged-adamw"), layout("single", 1))
    assert not {"offload optimizer", "ZeRO-3 offload"} & paged
    offloaded = layout("single", 1).with_options(offload=("optimizer",))
    assert "paged AdamW" not in names(workload(), offloaded)
    tp = names(workload(), layout("tp", 8))
    assert "sequence parallel" in tp
    assert not {"QLoRA nf4 r16", "fused loss", "fsdp", "offload optimizer"} & tp
    assert "micro-batch / 3" in names(workload(micro_batch=3), layout("single", 1))
    assert "zero3" in names(workload(), layout("zero2", 8))
    assert "reshard after forward" in names(workload(), layout("fsdp-grad-op", 8))
    assert "8-bit Lion" in names(workload(optimizer="lion"), layout("single", 1))
    assert "8-bit Lion" not in names(workload(optimizer="lion"), layout("fsdp", 8))
    assert "LoRA r16" not in names(workload(lora_rank=8), layout("single", 1))


def test_costs_are_counted_for_the_job() -> None:
    def cost(work: wb.Workload, name: str, how: wb.Strategy | None = None) -> str:
        strategy = how or layout("fsdp", 8)
        found = sizing.switches(work, strategy, "cuda", costly=True)
        return next(one.cost for one in found if one.name == name)

    assert "at most 33 % more compute" in cost(workload(), "recompute full")
    assert "at most 50 % more compute" in cost(workload(lora_rank=16), "recompute full")
    plain, again = (layout("single", 1).with_options(recompute=how) for how in ("none", "full"))
    steps = [wb.step_time(workload(), how, H100) for how in (plain, again)]
    assert 1.1 < steps[1].hardware_flops / steps[0].hardware_flops < 4 / 3
    assert "1.5 x the bytes" in cost(workload(), "fsdp", layout("ddp", 8))
    assert "each of the 4" in cost(workload(accumulate=4), "fsdp", layout("ddp", 8))
    assert "needs bitsandbytes" in cost(workload(), "8-bit AdamW", layout("ddp", 8))
    assert "needs torchao" in cost(workload(), "8-bit AdamW")
    halved = cost(workload(micro_batch=4), "micro-batch halved")
    assert "none in the maths" in halved
    assert "keeps the gradients alive" in halved
    offload = cost(workload(), "offload optimizer + parameters")
    assert "over PCIe per step" in offload
    assert "host memory" in offload


@pytest.mark.slow  # loads the libraries
@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_what_a_switch_names_is_in_the_library(strategy: str) -> None:
    """The classes and functions of torch, torchao and bitsandbytes by their whole names."""
    for library in ("torchao.optim", "bitsandbytes.optim"):
        pytest.importorskip(library, reason="the extra lowbit is not installed")
    ranks = 1 if strategy == "single" else 8
    named = 0
    for optimizer in ("adamw", "lion"):
        found = sizing.switches(
            workload(optimizer=optimizer), layout(strategy, ranks), "cuda", costly=True
        )
        for one in found:
            for name in re.findall(r"\b(?:torch|torchao|bitsandbytes)\.[\w.]+", one.in_practice):
                place, _, last = name.rpartition(".")
                assert hasattr(operator.attrgetter(place)(_loaded(name)), last), name
                named += 1
    assert named >= 2


def _loaded(name: str) -> Any:
    """A namespace that has the library of this name."""
    library = name.split(".", 1)[0]
    return SimpleNamespace(**{library: importlib.import_module(library)})


def test_offload_beyond_the_host_is_not_offered() -> None:
    large = workload("llama-3-70b")
    single = layout("single", 1)
    assert "ZeRO-3 offload" not in names(large, single)  # 16 bytes x 70 B on one host
    small = replace(wb.Cluster.rented("h100", gpus=1), memory_bytes=32 * 2**30)
    offered = {one.name for one in sizing.switches(workload(), single, small, costly=True)}
    assert not {"ZeRO-3 offload", "offload optimizer"} & offered


def test_the_trap_of_accumulating_without_synchronisation() -> None:
    work = workload(accumulate=4)
    trapped = layout("fsdp", 8, sync_every_micro_batch=False)
    said = wb.explain(wb.training_memory(work, trapped, H100), work, trapped, H100)
    assert any("unsharded gradients on every rank" in sentence for sentence in said)
    saved = next(
        one
        for one in sizing.switches(work, trapped, H100)
        if one.name == "reduce every micro-batch"
    )
    assert saved.saves_bytes > 2 * LLAMA.parameters
    free = layout("fsdp", 8)
    said = wb.explain(wb.training_memory(work, free, H100), work, free, H100)
    assert not any("unsharded gradients" in sentence for sentence in said)


def test_the_runner_up_is_named_when_it_is_near() -> None:
    for work in (workload(), workload(recompute := "gpt2-xl", micro_batch=8, seq_len=1024)):
        how = layout("fsdp", 8) if recompute in work.model.name else layout("single", 1)
        estimate = wb.training_memory(work, how)
        ranked = sorted(estimate.peaks.values(), reverse=True)
        near = ranked[0] - ranked[1] <= 0.05 * ranked[0]
        said = wb.explain(estimate, work, how)
        assert any("Close behind" in sentence for sentence in said) == near


def test_logits_are_blamed_where_they_are_the_peak() -> None:
    work = workload("qwen-2.5-0.5b", micro_batch=16)
    how = layout("single", 1, recompute="full")
    cluster = wb.Cluster.rented("h100", gpus=1)
    said = wb.explain(wb.training_memory(work, how, cluster), work, how, cluster)
    assert said[0].startswith("The peak is the loss's backward: it holds ")
    assert "of logits in fp32 with their gradient" in said[0]
    assert "Best remedy: chunked loss" in said[0] or "Best remedy: fused loss" in said[0]


def test_a_strategy_that_needs_more_ranks_takes_no_answer_from_the_others() -> None:
    found = wb.fewest_gpus(workload(), "h100", ["hsdp", "fsdp"])
    assert {one.strategy.name for one in found} >= {"hsdp", "fsdp"}
    with pytest.raises(wb.UnknownNameError, match="nope"):
        wb.fewest_gpus(workload(), "h100", ["nope"])


def test_one_gpu_comes_before_many() -> None:
    options = wb.fewest_gpus(workload(), "h100")
    counts = [option.gpus for option in options]
    assert counts == sorted(counts)
    assert options[0].gpus == 1
    assert any("QLoRA" in option.switches[0] for option in options if option.gpus == 1)
    assert any(option.gpus == 1 and not option.changes_result for option in options)
    for option in options:
        gpus = min(8, option.gpus)
        cluster = wb.Cluster.rented("h100", gpus=gpus, nodes=option.nodes)
        assert option.strategy.world_size == option.gpus
        after = wb.training_memory(option.workload, option.strategy, cluster)
        assert sizing.leaves_headroom(after)
        assert option.free_bytes == after.headroom_bytes
    small = wb.fewest_gpus(workload("gpt2", seq_len=512), "h100")
    assert (small[0].gpus, small[0].switches, small[0].strategy.name) == (1, (), "single")


def test_the_first_count_is_the_first() -> None:
    (option,) = (
        one
        for one in wb.fewest_gpus(workload(), "h100", ["fsdp"])
        if one.strategy.name == "fsdp" and not one.switches
    )
    fewer = wb.Strategy.parse("fsdp", option.gpus // 2)
    assert not sizing.leaves_headroom(wb.training_memory(workload(), fewer, H100))


def test_smallest_gpu_is_sorted_and_computes_in_the_precision() -> None:
    found = wb.smallest_gpu(workload(), layout("fsdp", 8))
    sizes = [fit.gpu.memory_bytes for fit in found]
    assert sizes == sorted(sizes)
    assert all(fit.free_bytes == fit.gpu.memory_bytes - fit.estimate.on_card_bytes for fit in found)
    assert {fit.gpu.vendor for fit in found} <= {"NVIDIA", "AMD"}
    tiny = wb.smallest_gpu(workload("gpt2", seq_len=128), layout("single", 1))
    assert "t4" not in {fit.gpu.id for fit in tiny}  # no bf16
    half = wb.smallest_gpu(workload("gpt2", seq_len=128, precision="fp16"), layout("single", 1))
    assert "t4" in {fit.gpu.id for fit in half}
    only = wb.smallest_gpu(workload(), layout("fsdp", 8), [catalog.gpu("l4"), catalog.gpu("h200")])
    assert [fit.gpu.id for fit in only] == ["h200-sxm"]


@pytest.mark.parametrize(
    "name", ["fsdp2-tp2", "zero1x2-tp2", "dp2-fsdp2", "fsdp", "zero3", "ddp", "tp2", "pp2-tp2"]
)
def test_layout_names_are_read_back(name: str) -> None:
    ranks = {"fsdp": 4, "zero3": 4, "ddp": 4, "tp2": 2}.get(name, 4)
    how = wb.Strategy.parse(name, ranks)
    again = wb.Strategy.parse(layout_name(how), ranks)
    assert replace(again, name=name) == how


@pytest.mark.parametrize("name", ["single", "ddp", "fsdp", "zero1", "dp4-tp2"])
def test_the_code_of_a_switch_makes_its_change(name: str) -> None:
    ranks = 1 if name == "single" else 8
    work, how = workload(attention="eager", micro_batch=4), layout(name, ranks)
    for switch in sizing.switches(work, how, "cuda", costly=True):
        made = eval(switch.code, {"replace": replace, "workload": work, "strategy": how})
        assert made in (switch.workload, switch.strategy), switch.name


def typed(given: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The options of a job after those of a switch were typed, or left out, too."""
    flags = {field.flag: field for field in options().values()}
    off = {field.off_flag: field.name for field in options().values() if field.is_switch}
    result, rest = dict(given), iter(words)
    for word in rest:
        if word in off:
            result[off[word]] = False
            continue
        field = flags[next(rest) if word == "without" else word]
        if word == "without":
            del result[field.name]  # only what was given can be left out
        else:
            result[field.name] = True if field.is_switch else field.read(next(rest))
    return result


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kernels": "megatron", "micro_batch": 4},
        {"norm": "fused", "compiled": True},
        {"kernels": "compiled", "activation": "separate"},
        {"recompute": "full", "recompute_layers": 5},
        {"gpus": 8, "bucket_views": True, "reduce_bucket": 10_000, "static_graph": True},
        {"gpus": 8, "strategy": "fsdp-grad-op", "sync_every_micro_batch": False, "accumulate": 2},
        {"strategy": "fsdp-grad-op", "gpus": 1},
        {"gpus": 8, "comm_hook": "fp16", "attention": "eager", "keep_logits": True},
        {"gpus": 8, "strategy": "dp4-tp2", "optimizer": "lion", "attention_mask": True},
        {"trainer": "trl", "micro_batch": 4},
        {"trainer": "trl", "lora_rank": 64, "gpus": 8, "strategy": "zero1", "accumulate": 4},
        {"trainer": "transformers@4.44", "kernels": "fused", "recompute": "none"},
        {"trainer": "torchtune@0.2", "micro_batch": 2},
        {"trainer": "litgpt", "gpus": 8, "strategy": "fsdp", "lora_rank": 8},
        {"trainer": "peft", "quantization": "nf4", "lora_rank": 16, "precision": "fp32"},
        {"trainer": "torchtitan", "gpus": 8, "strategy": "fsdp4-tp2", "keep_logits": True},
        {"trainer": "megatron-lm", "gpus": 8, "strategy": "ddp", "optimizer": "lion"},
    ],
    ids=str,
)
def test_the_options_of_a_switch_make_its_change(given: dict[str, Any]) -> None:
    """What is printed to be typed gives the very job whose memory stands beside it."""
    job = Job.of("llama-3-8b", gpu="h100", **given)
    found = sizing.switches(job, costly=True)
    assert found
    for switch in found:
        made = Job.of("llama-3-8b", **typed({"gpu": "h100", **given}, switch.option.split()))
        assert made.workload == switch.workload, switch.option
        assert replace(made.strategy, name=switch.strategy.name) == switch.strategy, switch.option
        names = {"replace": replace, "job": job, "workload": job.workload, "strategy": job.strategy}
        assert eval(switch.code, names) in (switch.job, switch.workload, switch.strategy)


@pytest.mark.parametrize(
    "given",
    [
        {"foreach_lists": 2, "logits_copies": 5},
        {"attention": "eager", "logits_fp32": False, "compiled_loss": True},
        {"recompute": "selective", "recompute_parts": "mlp"},
        {"gpus": 8, "strategy": "fsdp", "whole_before_sharding": True, "reduce_bytes": 2},
        {"trainer": "trl", "logits_copies": 5, "lora_rank": 8, "lora_targets": "q,k"},
    ],
    ids=str,
)
def test_a_switch_leaves_out_what_changes_nothing_after_it(given: dict[str, Any]) -> None:
    job = Job.of("llama-3-8b", gpu="h100", **given)
    for switch in sizing.switches(job, costly=True):
        made = Job.of("llama-3-8b", **typed({"gpu": "h100", **given}, switch.option.split()))
        assert wb.training_memory(made).parts == switch.estimate.parts, switch.option


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": 4, "strategy": "ddp", "recompute": "full", "bucket_views": True},
        {"gpus": 8, "strategy": "zero3", "offload": "optimizer,parameters"},
        {"trainer": "trl", "seq_len": 32_768},
        {"trainer": "trl", "recompute": "none", "lora_rank": 16, "micro_batch": 16},
        {"trainer": "torchtune", "gpus": 2, "strategy": "fsdp", "micro_batch": 8},
    ],
    ids=str,
)
def test_a_number_of_gpus_is_offered_for_the_job_as_it_was_asked_for(given: dict[str, Any]) -> None:
    """Each offer is the job that its layout, typed in place of the asked one, describes."""
    offers = wb.fewest_gpus(Job.of("llama-3-8b", gpu="a100", **given))
    assert offers
    for offer in offers:
        if offer.switches:
            continue
        where = {"gpus": offer.gpus // offer.nodes, "nodes": offer.nodes}
        of_layout: dict[str, Any] = {"strategy": offer.strategy}
        kept = {name: value for name, value in given.items() if name != "bucket_views"}
        there = Job.of("llama-3-8b", **{"gpu": "a100", **kept, **where, **of_layout})
        assert there.workload == offer.workload, offer.strategy.name
        assert there.strategy.recompute == offer.strategy.recompute, offer.strategy.name
        assert set(there.strategy.offload) == set(offer.strategy.offload), offer.strategy.name


@pytest.mark.parametrize("options", [{}, {"quantization": "nf4"}, {"micro_batch": 8}])
def test_for_lora_gradient_checkpointing_comes_first(options: dict[str, Any]) -> None:
    job = Job.of("llama-3-8b", lora_rank=16, gpu="rtx-4090", **options)
    first = sizing.switches(job.workload, job.strategy, job.cluster)[0]
    assert first.name == "recompute full"
    assert "gradient checkpointing" in first.cost
    assert first.usual


def test_8_bit_adam_on_one_card_is_first_offered_with_bf16_weights() -> None:
    job = Job.of("llama-3-8b", optimizer="adamw-8bit", gpu="h100")
    estimate = wb.training_memory(job)
    why = sizing.explain(estimate, job.workload, job.strategy, job.cluster)
    assert "--precision bf16-pure" in why[0]
    assert "which fits" in why[0]
    option = sizing.fewest_gpus(job.workload, "h100")[0]
    assert option.switches == ("pure bf16 states",)
    # bf16 weights and gradients, two moments of a byte, activations beside them
    assert 44 * GIB < option.estimate.on_card_bytes < 60 * GIB


def test_the_updates_that_pure_bf16_loses_are_those_of_its_rounding() -> None:
    """Half a spacing: nearly 1/512 of a weight just below a power of two, 1/256 of one at it."""
    torch = pytest.importorskip("torch", reason="the train extra is not installed")
    job = Job.of("llama-3-8b", gpu="h100")
    found = sizing.switches(job.workload, job.strategy, job.cluster)
    (cost,) = [one.cost for one in found if one.name == "pure bf16 states"]
    shares = re.search(r"1/(\d+) to 1/(\d+) of the weight", cost)
    assert shares, cost
    for number, share in zip((2 - 2**-7, 1.0), shares.groups(), strict=True):
        weight = torch.tensor(number, dtype=torch.bfloat16)
        assert weight + 0.99 * number / int(share) == weight
        assert weight + 1.01 * number / int(share) > weight


def test_a_job_is_changed_by_its_options() -> None:
    job = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", optimizer="sgd")
    assert job.changed(optimizer=None).workload.optimizer == "adamw"
    assert job.changed(gpus=4).cluster.world_size == 4
    with pytest.raises(wb.UnknownNameError, match="optimiser"):
        job.changed(optimiser="lion")
    described = Job(workload=job.workload, strategy=job.strategy, cluster=job.cluster)
    with pytest.raises(wb.UsageError, match=r"Describe it with wb\.Job\.of"):
        described.changed(optimizer="lion")


def test_what_a_card_lacks_is_not_offered() -> None:
    job = Job.of("llama-3-8b", optimizer="adamw-8bit", gpu="t4")
    names = {one.name for one in sizing.switches(job.workload, job.strategy, job.cluster)}
    assert "pure bf16 states" not in names


def test_every_estimate_takes_a_job_as_it_takes_its_parts() -> None:
    job = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", recompute="full")
    parts = (job.workload, job.strategy, job.cluster)
    for question in (wb.switches, wb.largest_micro_batch, wb.longest_sequence, wb.step_time):
        assert question(job) == question(*parts)
    estimate = wb.training_memory(job)
    assert wb.explain(estimate, job) == wb.explain(estimate, *parts)
    with pytest.raises(wb.UsageError, match="Give a strategy, or a Job"):
        wb.explain(estimate, job.workload)


def test_every_estimate_takes_a_models_name_with_the_options_of_a_job() -> None:
    options = {"gpu": "h100", "gpus": 8, "strategy": "fsdp", "recompute": "full"}
    job = Job.of("llama-3-8b", **options)
    for question in (wb.training_memory, wb.step_time, wb.largest_micro_batch, wb.switches):
        assert question("llama-3-8b", **options) == question(job)
    assert wb.largest_micro_batch("gpt2", gpu="h100", headroom=0.5) == wb.largest_micro_batch(
        Job.of("gpt2", gpu="h100"), headroom=0.5
    )


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: wb.training_memory(3), "takes a Job, or a model's name with options, and not 3"),
        (lambda: wb.step_time("gpt3x", gpu="h100"), "gpt3x"),
        (lambda: wb.step_time("gpt2", gpx="h100"), "gpx"),
        (lambda: wb.step_time(Job.of("gpt2", gpu="h100"), gpus=2), "got gpus beside a Job"),
    ],
)
def test_what_is_no_job_is_told_in_a_sentence(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(wb.UsageError, match=re.escape(says)):
        ask()


def test_a_job_answers_as_its_parts_do() -> None:
    job = wb.Job.of("llama-3-8b", gpu="a100-80gb", gpus=8, strategy="fsdp", seq_len=2048)
    assert wb.smallest_gpu(job) == wb.smallest_gpu(job.workload, job.strategy)
    assert wb.fewest_gpus(job) == wb.fewest_gpus(job.workload, "a100-80gb")
    assert wb.fewest_gpus(job, "h200") == wb.fewest_gpus(job.workload, "h200")
    with pytest.raises(wb.UsageError, match="needs a strategy"):
        wb.smallest_gpu(job.workload)
    with pytest.raises(wb.UsageError, match="needs a GPU"):
        wb.fewest_gpus(job.workload)


def test_quantized_weights_are_offered_where_a_plan_offers_them() -> None:
    """Whole, or sharded by FSDP and ZeRO; tensor-parallel ranks cannot split a matrix of theirs."""
    job = wb.Job.of("llama-3-70b", gpu="rtx-4090", lora_rank=16, quantization="nf4", seq_len=512)
    offered = wb.fewest_gpus(job)
    assert offered
    for option in offered:
        assert option.strategy.tp == 1, option.strategy.name
    assert any(option.strategy.zero_stage == 3 for option in offered)
    with pytest.raises(wb.UsageError, match="nf4 weights cannot be split over tp = 2"):
        wb.training_memory(
            wb.Job.of("llama-3-8b", lora_rank=16, quantization="nf4", strategy="tp2")
        )
