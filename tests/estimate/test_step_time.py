"""The step-time estimate: golden numbers, its laws, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.describe import Cluster, Conditions, Model, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.fitted import using
from workbench.estimate.flops import flops_per_token, model_flops
from workbench.estimate.network import Group, Links, links
from workbench.estimate.scaling import scaling
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import COMMUNICATION
from workbench.estimate.traffic import block_traffic

LLAMA = Model.catalog("llama-3-8b")
WORK = Workload(model=LLAMA, seq_len=4096, micro_batch=2, precision="bf16", optimizer="adamw-fused")
NODE = Cluster.rented("h100", 8)


def layouts() -> st.SearchStrategy[tuple[Strategy, Workload, Cluster]]:
    """Legal layouts of the 8B model on one to four nodes of eight."""

    @st.composite
    def build(draw: st.DrawFn) -> tuple[Strategy, Workload, Cluster]:
        tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
        ranks = draw(st.sampled_from([1, 2, 4]))
        nodes = max(1, tp * pp * ranks // 8)
        gpu = draw(st.sampled_from(["h100", "a100-sxm-80", "l40s", "b200-sxm", "rtx-4090"]))
        sharded = draw(st.booleans())
        strategy = Strategy(
            name="drawn",
            tp=tp,
            pp=pp,
            dp_shard=ranks if sharded else 1,
            dp_replicate=1 if sharded else ranks,
            zero_stage=draw(st.sampled_from([None, 1, 3])) if sharded else None,
            recompute=draw(st.sampled_from(["none", "selective", "full"])),
            sequence_parallel=draw(st.booleans()),
        )
        work = replace(
            WORK,
            micro_batch=draw(st.sampled_from([1, 2, 8])),
            accumulate=draw(st.sampled_from([1, 4, 16])),
        )
        per_node = min(8, tp * pp * ranks)
        return strategy, work, Cluster.rented(gpu, per_node, nodes, network="8x400 infiniband")

    return build()


def test_an_eight_billion_model_on_one_node() -> None:
    """The published rate of such a run on 8 H100 is about 9,000 to 11,000 tokens/s and GPU."""
    step = step_time(WORK, Strategy.parse("fsdp", 8), NODE)
    assert 8_000 < step.tokens_per_second_per_gpu < 12_000
    assert step.mfu == pytest.approx(step.hfu)
    assert 0.35 < (step.mfu or 0) < 0.60
    assert step.tokens == 8 * 2 * 4096


def test_flops_follow_six_n() -> None:
    """6 N (embedding left out) and 6 L s h: 45.03 + 6.44 GFLOP per token at 8K (estimators 2.5)."""
    work = replace(WORK, seq_len=8192)
    found = sum(model_flops(work).values()) / work.tokens
    assert found / 1e9 == pytest.approx(45.03 + 6.44, rel=0.002)
    assert flops_per_token(LLAMA, 8192, causal=False) / 1e9 == pytest.approx(57.9, rel=0.002)
    assert flops_per_token(LLAMA, 8192) == pytest.approx(found, rel=0.002)


def test_a_vision_head_answers_once_per_image() -> None:
    """About 17.5 billion products for ViT-B/16 at 224, the patches' own left out."""
    model = Model.catalog("vit-b-16")
    parts = model_flops(Workload(model=model, seq_len=1))
    assert parts["head"] == 3 * 2 * 768 * 1000
    assert sum(parts.values()) / 6 == pytest.approx(17.5e9, rel=0.005)


def test_lora_needs_two_thirds_of_the_flops() -> None:
    full = sum(model_flops(WORK).values())
    narrow = sum(model_flops(replace(WORK, lora_rank=8)).values())
    assert narrow / full == pytest.approx(2 / 3, abs=0.03)


def test_full_recompute_repeats_most_of_forward() -> None:
    plain = Strategy.parse("fsdp", 8)
    again = plain.with_options(recompute="full")
    before, after = step_time(WORK, plain, NODE), step_time(WORK, again, NODE)
    assert after.model_flops == before.model_flops
    assert 1.20 < after.hardware_flops / after.model_flops < 4 / 3
    assert 1.15 < after.step_seconds / before.step_seconds < 1.36
    assert "recompute" in after.parts
    assert "recompute" not in before.parts


@pytest.mark.parametrize("name", ["fsdp", "ddp", "tp2-pp4", "zero3"])
def test_recompute_of_some_blocks_lies_between_none_and_all(name: str) -> None:
    full = Strategy.parse(name, 8).with_options(recompute="full")
    per_stage = LLAMA.layers // full.pp

    def timed(layers: int | None) -> tuple[float, float]:
        step = step_time(WORK, full.with_options(recompute_layers=layers), NODE)
        return step.step_seconds, step.hardware_flops / step.model_flops

    none, half, every = timed(0), timed(per_stage // 2), timed(None)
    assert none == pytest.approx(
        (step_time(WORK, full.with_options(recompute="none"), NODE).step_seconds, 1.0)
    )
    assert timed(per_stage) == pytest.approx(every)
    assert half[1] == pytest.approx((none[1] + every[1]) / 2)
    # On PCIe or by piece what is hidden may hide more beside longer compute, never less.
    assert none[0] < half[0] < every[0]


@pytest.mark.parametrize("name", ["fsdp", "ddp", "fsdp-grad-op", "zero2"])
def test_nothing_goes_backward_below_the_first_trained_block(name: str) -> None:
    strategy = Strategy.parse(name, 8)
    steps = [
        step_time(replace(WORK, trained_layers=layers), strategy, NODE)
        for layers in (0, 16, 32, None)
    ]
    seconds = [step.step_seconds for step in steps]
    assert seconds[0] < seconds[1] < seconds[2] == pytest.approx(seconds[3])
    assert steps[0].model_flops > steps[3].model_flops / 3  # the whole forward, and the head
    assert steps[1].model_flops == pytest.approx((steps[0].model_flops + steps[3].model_flops) / 2)


def test_a_job_without_a_known_gpu_is_refused_in_a_sentence() -> None:
    job = wb.Job.of("gpt2", cpu=True, gpus=2, strategy="ddp")
    with pytest.raises(UsageError, match="GPUs of the catalog"):
        wb.step_time(job)


def test_offloaded_activations_cross_the_bus_twice() -> None:
    layout = Strategy.parse("fsdp", 8).with_options(offload=("activations",))
    none, full = (
        step_time(WORK, layout.with_options(recompute=kind), NODE) for kind in ("none", "full")
    )
    assert none.parts["offload traffic"] > 5 * full.parts["offload traffic"]


def test_the_experts_part_of_recompute_is_of_no_use_without_experts() -> None:
    layout = Strategy.parse("fsdp", 8)
    moe = layout.with_options(recompute="selective", recompute_parts=("moe",))
    plain = wb.training_memory(WORK, layout, NODE).allocated_bytes
    assert wb.training_memory(WORK, moe, NODE).allocated_bytes == plain


def test_a_stage_sends_the_activations_of_its_own_blocks_to_the_host() -> None:
    def moved(name: str) -> float:
        strategy = Strategy.parse(name, 8).with_options(recompute="full", offload=("activations",))
        work = replace(WORK, accumulate=8)
        return step_time(work, strategy, NODE).parts["offload traffic"]

    assert moved("tp2-pp4") < moved("dp4-tp2") / 2


@given(layouts())
@settings(max_examples=150)
def test_parts_are_positive_and_sum_up(case: tuple[Strategy, Workload, Cluster]) -> None:
    step = step_time(case[1], case[0], case[2])
    assert all(seconds > 0 and math.isfinite(seconds) for seconds in step.parts.values())
    assert sum(step.parts.values()) == pytest.approx(step.step_seconds)
    assert 0 < (step.mfu or 0) < 1
    assert (step.hfu or 0) >= (step.mfu or 0) * (1 - 1e-9)
    assert step.low < 1 < step.high


@given(layouts(), st.floats(1.05, 8))
@settings(max_examples=100)
def test_more_bandwidth_is_never_slower(
    case: tuple[Strategy, Workload, Cluster], factor: float
) -> None:
    strategy, work, cluster = case
    gpu, network = cluster.accelerator, cluster.network
    assert gpu is not None
    assert network is not None
    before = step_time(work, strategy, cluster).step_seconds
    wider = replace(
        cluster, network=replace(network, bytes_per_second=network.bytes_per_second * factor)
    )
    assert step_time(work, strategy, wider).step_seconds <= before * (1 + 1e-9)
    link = replace(gpu, link_bytes_per_second=(gpu.link_bytes_per_second or 1e10) * factor)
    assert step_time(work, strategy, replace(cluster, accelerator=link)).step_seconds <= before * (
        1 + 1e-9
    )
    memory = replace(gpu, memory_bytes_per_second=(gpu.memory_bytes_per_second or 1e12) * factor)
    assert step_time(
        work, strategy, replace(cluster, accelerator=memory)
    ).step_seconds <= before * (1 + 1e-9)


@given(layouts())
@settings(max_examples=60)
def test_more_work_is_never_faster(case: tuple[Strategy, Workload, Cluster]) -> None:
    strategy, work, cluster = case
    before = step_time(work, strategy, cluster).step_seconds
    more = replace(work, accumulate=work.accumulate * 2)
    assert step_time(more, strategy, cluster).step_seconds > before
    longer = replace(work, seq_len=work.seq_len * 2)
    assert step_time(longer, strategy, cluster).step_seconds >= before * 0.999999  # host-bound


def test_pcie_costs_what_the_link_is_slower() -> None:
    """Tensor parallelism over PCIe: communication, hardly visible on NVLink, takes over."""
    strategy = Strategy.parse("tp", 8)
    fast = step_time(WORK, strategy, NODE)
    slow = step_time(WORK, strategy, replace(NODE, link="pcie"))
    assert fast.exposed_seconds < 0.35 * fast.step_seconds
    assert slow.exposed_seconds > 0.5 * slow.step_seconds


def test_a_straggler_holds_everybody_up() -> None:
    even = step_time(WORK, Strategy.parse("ddp", 8), NODE)
    late = step_time(WORK, Strategy.parse("ddp", 8), NODE, Conditions(straggler=0.25))
    assert late.step_seconds == pytest.approx(1.25 * even.step_seconds)
    assert f"{COMMUNICATION}: slowest rank" in late.parts


def test_the_input_is_waited_for_only_as_far_as_the_step_does_not_hide_it() -> None:
    strategy = Strategy.parse("ddp", 8)
    one = step_time(WORK, strategy, NODE)
    quick = step_time(WORK, strategy, NODE, Conditions(input_seconds=0.01))
    assert "input wait" not in quick.parts
    slow = step_time(WORK, strategy, NODE, Conditions(input_seconds=10.0))
    assert slow.parts["input wait"] == pytest.approx(10 - one.step_seconds)


def test_a_loader_goes_on_beside_the_optimizer_and_the_messages() -> None:
    """One that is as fast as a whole step is waited for by no one; a slower one sets the pace."""
    work, strategy = replace(WORK, accumulate=4), Strategy.parse("ddp", 8)
    alone = step_time(work, strategy, NODE).step_seconds
    as_fast = step_time(work, strategy, NODE, Conditions(input_seconds=0.999 * alone / 4))
    assert as_fast.step_seconds == pytest.approx(alone)
    slower = step_time(work, strategy, NODE, Conditions(input_seconds=1.5 * alone / 4))
    assert slower.step_seconds == pytest.approx(1.5 * alone)


def test_a_measured_machine_narrows_the_range() -> None:
    plain = step_time(WORK, Strategy.parse("ddp", 8), NODE)
    known = Conditions(matmul_share=0.7, measured_ratio=1.1, source="this host, 60 s")
    found = step_time(WORK, Strategy.parse("ddp", 8), NODE, known)
    assert found.high / found.low < plain.high / plain.low
    assert "this host, 60 s" in found.assumptions


def test_interleaving_shrinks_the_bubble() -> None:
    work = replace(WORK, micro_batch=1, accumulate=8)
    plain = Strategy.parse("pp", 4)
    chunks = plain.with_options(schedule="interleaved", virtual_stages=2)
    four = Cluster.rented("h100", 4)
    before = step_time(work, plain, four).parts["pipeline bubble"]
    after = step_time(work, chunks, four).parts["pipeline bubble"]
    assert after < 0.7 * before


LINKS = Links(link=400e9, port=40e9, domain=8, network_hop=6e-6)


def test_collectives_meet_the_ring_formulas() -> None:
    """Large messages: (n-1)/n S/B one way, twice that for an all-reduce; small ones: latency."""
    inside, across = Group(size=8, per_node=8), Group(size=32, per_node=8)
    size = 4e10
    assert LINKS.gather_seconds(size, inside) == pytest.approx(7 / 8 * size / 400e9, rel=0.01)
    assert LINKS.reduce_seconds(size, inside) == pytest.approx(14 / 8 * size / 400e9, rel=0.01)
    # eight ports of 40 GB/s serve the eight ranks of a node, as many as between two nodes
    with using({"crowding": 0.0}):
        between = LINKS.gather_seconds(size, across)
    assert between == pytest.approx(31 / 32 * size / 320e9, rel=0.01)
    assert LINKS.gather_seconds(size, across) > between
    small = LINKS.reduce_seconds(8, across)
    assert small < 2 * LINKS.latency(across)  # a tree's depth, not a ring's length
    assert LINKS.gather_seconds(0, across) == 0
    assert LINKS.gather_seconds(size, Group(size=1, per_node=1)) == 0


def test_seven_billion_gradients_by_link() -> None:
    """Correction C4: 14 GB on 8 GPUs take 67 ms at 367 GB/s, about half a second on PCIe 5."""
    for link, low, high in (("catalog", 0.06, 0.08), ("pcie", 0.4, 0.9)):
        found = links(Cluster.rented("h200-sxm", 8, link=link), Conditions())
        seconds = found.reduce_seconds(14e9, found.group(8, 1))
        assert low < seconds < high


def test_a_rack_is_one_domain() -> None:
    """GB200 NVL72: nodes of four GPUs, but 72 of them share NVLink."""
    found = links(Cluster.rented("gb200", 4, 16), Conditions())
    assert found.group(64, 1).nodes == 1
    assert found.group(128, 1).nodes > 1


def test_the_scaling_curve_names_its_causes() -> None:
    cluster = Cluster.rented("h100", 8, network="8x400 infiniband")
    slow = Cluster.rented("h100", 8, network="100 ethernet")
    strategy = Strategy.parse("fsdp", 8)
    fast = scaling(WORK, strategy, cluster, gpus=(8, 64, 512))
    poor = scaling(WORK, strategy, slow, gpus=(8, 64, 512))
    assert fast[0].efficiency == 1
    assert 0.85 < fast[-1].efficiency < 1
    assert poor[-1].efficiency < 0.5 * fast[-1].efficiency
    for point in (*fast, *poor):
        assert sum(point.lost.values()) == pytest.approx(1 - point.efficiency, abs=1e-9)
    worst = max(poor[-1].lost, key=lambda name: poor[-1].lost[name])
    assert worst == f"{COMMUNICATION}: sharded weights"


def test_strong_scaling_keeps_the_global_batch() -> None:
    work = replace(WORK, micro_batch=4, accumulate=8)
    cluster = Cluster.rented("h100", 8, network="8x400 infiniband")
    points = scaling(work, Strategy.parse("fsdp", 8), cluster, gpus=(8, 64, 256), mode="strong")
    assert {point.step.tokens for point in points} == {8 * 32 * 4096}
    assert points[-1].efficiency < points[1].efficiency <= 1.05
    with pytest.raises(UsageError, match="cannot be spread"):
        scaling(work, Strategy.parse("fsdp", 8), cluster, gpus=(8, 1024), mode="strong")


def test_what_cannot_be_timed_is_refused() -> None:
    strategy = Strategy.parse("single", 1)
    with pytest.raises(UsageError, match="no bf16 matmuls"):
        step_time(WORK, strategy, Cluster.rented("v100-sxm2-32", 1))
    with pytest.raises(UsageError, match="GPUs of the catalog"):
        step_time(WORK, strategy, Cluster(name="laptop"))
    with pytest.raises(UsageError, match="heads"):
        step_time(WORK, Strategy(name="x", tp=3), Cluster.rented("h100", 3))


@pytest.mark.parametrize("length", [2048, 524_288])
def test_ulysses_sends_less_than_the_ring_but_hides_nothing(length: int) -> None:
    """Long sequences hide the ring behind attention; short ones pay its larger volume."""
    work = Workload(
        model=Model.catalog("llama-2-7b"), seq_len=length, micro_batch=1, precision="bf16"
    )

    def waiting(method: str) -> float:
        strategy = Strategy.parse("cp8", 8).with_options(cp_method=method)
        return step_time(work, strategy, NODE).parts.get(f"{COMMUNICATION}: cp", 0.0)

    assert (waiting("ring") < waiting("ulysses")) is (length > 2048)
    assert waiting("ulysses") > 0


def test_compressed_gradients_travel_faster() -> None:
    plain = Strategy.parse("ddp", 8)
    cluster = Cluster.rented("rtx-4090", 8)
    work = Workload(model=Model.catalog("gpt2"), seq_len=512, micro_batch=1, precision="bf16")
    waits = [
        step_time(work, plain.with_options(comm_hook=hook), cluster).parts[
            f"{COMMUNICATION}: gradients"
        ]
        for hook in (None, "bf16", "powersgd")
    ]
    assert waits[0] > 1.5 * waits[1] > 10 * waits[2]


def test_weights_of_gptq_are_unpacked_by_separate_operations() -> None:
    """AutoGPTQ shifts, casts, masks, moves and scales each weight in its own pass; bitsandbytes in
    one kernel. Autograd keeps AutoGPTQ's matrix, so without recomputation it is unpacked once."""
    one, card = Strategy(name="single"), Cluster.rented("a100-sxm-80", 1)
    short = replace(WORK, micro_batch=1, seq_len=256, lora_rank=64)
    full = one.with_options(recompute="full")
    plain, blocks, gptq = (
        step_time(replace(short, quantization=kind), full, card).step_seconds
        for kind in ("none", "nf4", "int4")
    )
    assert gptq - plain > 1.3 * (blocks - plain)
    kept = step_time(replace(short, quantization="int4"), one, card).step_seconds
    bare = step_time(short, one, card).step_seconds
    assert kept - bare < 0.7 * (gptq - plain)


def test_adapters_launch_their_casts_and_dropout() -> None:
    """fp32 adapters under autocast are cast before both products (peft's Linear.forward)."""
    one = Strategy(name="single")
    small = replace(WORK, micro_batch=1, seq_len=64, lora_rank=8)

    def launches(work: Workload) -> float:
        return block_traffic(work, one, moe=False).launches

    dropping = replace(small, kernels=replace(small.kernels, lora_dropout=True))
    pure = replace(small, precision="bf16-pure")
    targets = len(small.lora_targets)
    assert launches(small) == launches(replace(small, adapter_bytes=2)) + 2 * targets
    assert launches(small) == launches(pure) + 2 * targets
    assert launches(dropping) == launches(small) + targets
