"""The closed form: golden numbers, the competing peaks, and properties that must always hold."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.describe import (
    KERNELS,
    Cluster,
    Gpu,
    ImplementationAssumptions,
    Model,
    Strategy,
    Workload,
)
from workbench.describe.workload import OPTIMIZERS, PRECISIONS
from workbench.estimate.memory import training_memory
from workbench.estimate.rank import ranks_of
from workbench.units import GIB

LLAMA_1B = Model.catalog("llama-3.2-1b")
LLAMA_8B = Model.catalog("llama-3-8b")
SHARED = replace(LLAMA_8B, heads=48, kv_heads=8, head_dim=128, mlp_hidden=12288)
SMALL = Model(name="small", layers=4, hidden=256, heads=8, mlp_hidden=1024, vocab=1024)


def work(model: Model = LLAMA_8B, **extra: object) -> Workload:
    given = {"seq_len": 4096, "micro_batch": 1, "precision": "bf16"} | extra
    return Workload(model=model, **given)


def card(gib: float, count: int = 8) -> Cluster:
    gpus = tuple(Gpu(index=i, name="x", memory_bytes=int(gib * GIB)) for i in range(count))
    return Cluster(name="c", gpus=gpus)


@pytest.mark.parametrize(
    ("model", "recompute", "gib"),
    [
        (LLAMA_1B, "none", 14.90),
        (LLAMA_1B, "full", 8.51),
        (LLAMA_8B, "none", 44.10),
        (LLAMA_8B, "full", 20.58),
    ],
)
def test_fsdp_against_the_exact_simulation(model: Model, recompute: str, gib: float) -> None:
    """World 8, fp32 shards, bf16 compute, foreach AdamW: exact peaks, simulated."""
    strategy = Strategy.parse("fsdp", 8).with_options(recompute=recompute)
    assert training_memory(work(model), strategy).allocated_bytes / GIB == pytest.approx(
        gib, rel=0.02
    )


def test_offloaded_activations_come_back_one_operation_at_a_time() -> None:
    """The MLP's product: its two factors, its gradient and theirs are on the card at once."""
    asked = work(LLAMA_8B, seq_len=65_536, loss="fused")
    plain = Strategy.parse("fsdp", 8)
    moved = plain.with_options(offload=("activations",))
    inner = 2 * asked.tokens * LLAMA_8B.mlp_hidden
    blocks = training_memory(asked, moved).parts["activations: blocks"]
    assert 5 * inner <= blocks <= 7 * inner
    whole = training_memory(asked, moved.with_options(recompute="full"))
    assert whole.parts["activations: blocks"] > 1.3 * blocks  # all of a block is made again
    assert training_memory(asked, plain).allocated_bytes > 5 * whole.allocated_bytes


@pytest.mark.parametrize(
    ("precision", "optimizer", "per_parameter"),
    [
        ("fp32", "adamw-fused", 16),
        ("fp32", "adamw", 20),
        ("bf16", "adamw-fused", 16),
        ("bf16-pure", "adamw-fused", 8),
        ("bf16-pure", "adamw", 10),
        ("fp32", "sgd", 8),
        ("fp32", "sgd-momentum", 12),
        ("fp32", "adamw-8bit", 10.03125),
    ],
)
def test_bytes_per_parameter_at_the_optimizer_step(
    precision: str, optimizer: str, per_parameter: float
) -> None:
    estimate = training_memory(
        work(precision=precision, optimizer=optimizer), Strategy.parse("single", 1)
    )
    assert estimate.peaks is not None
    assert estimate.peaks["optimizer step"] / LLAMA_8B.parameters == pytest.approx(per_parameter)


@pytest.mark.parametrize(
    ("stage", "ranks", "per_parameter"),
    [(1, 8, 4 + 12 / 8), (2, 8, 2 + 14 / 8), (3, 8, 16 / 8), (1, 64, 4 + 12 / 64), (3, 64, 0.25)],
)
def test_zero_is_a_formula_in_the_number_of_ranks(
    stage: int, ranks: int, per_parameter: float
) -> None:
    """ZeRO's states (arXiv 1910.02054): 4 + 12/d, 2 + 14/d, 16/d; not 4x, 8x, 64x."""
    estimate = training_memory(work(optimizer="adamw-fused"), Strategy.parse(f"zero{stage}", ranks))
    step = next(peak for peak in estimate.stages[0].peaks if peak.name == "optimizer step")
    names = ("parameters", "gradients", "master copy", "optimizer states")
    states = sum(step.parts.get(name, 0) for name in names)
    assert states / LLAMA_8B.parameters == pytest.approx(per_parameter, rel=0.01)


def test_accumulating_without_sync_keeps_whole_gradients() -> None:
    fsdp = Strategy.parse("fsdp", 8)
    quiet = fsdp.with_options(sync_every_micro_batch=False)
    model = work(accumulate=4)
    more = (
        training_memory(model, quiet).allocated_bytes - training_memory(model, fsdp).allocated_bytes
    )
    assert more == pytest.approx(4 * LLAMA_8B.parameters * 7 / 8, rel=0.05)


def test_the_loss_is_the_peak_and_chunking_it_helps() -> None:
    single = Strategy.parse("single", 1).with_options(recompute="full")
    whole = training_memory(work(LLAMA_1B, seq_len=8192), single)
    chunked = training_memory(work(LLAMA_1B, seq_len=8192, loss="chunked"), single)
    assert whole.peak == "loss backward"
    assert chunked.peak != "loss backward"
    assert chunked.allocated_bytes < whole.allocated_bytes


def test_pipeline_stages_differ_and_the_fullest_counts() -> None:
    estimate = training_memory(work(accumulate=8), Strategy.parse("pp", 4))
    assert [stage.in_flight for stage in estimate.stages] == [4, 3, 2, 1]
    assert [stage.layers for stage in estimate.stages] == [8, 8, 8, 8]
    fullest = max(stage.peak.total_bytes for stage in estimate.stages)
    assert estimate.allocated_bytes == fullest
    gpipe = Strategy.parse("pp", 4).with_options(schedule="gpipe")
    assert training_memory(work(accumulate=8), gpipe).stages[0].in_flight == 8


def test_fits_is_answered_against_the_card() -> None:
    fsdp = Strategy.parse("fsdp", 8)
    estimate = training_memory(work(), fsdp, card(80))
    assert estimate.fits is True
    assert estimate.headroom_bytes == 80 * GIB - estimate.on_card_bytes
    assert estimate.allocated_bytes < estimate.reserved_bytes < estimate.on_card_bytes
    assert training_memory(work(), fsdp, card(40)).fits is False
    assert training_memory(work(), fsdp).fits is None


def test_qlora_stores_the_base_in_half_a_byte() -> None:
    single = Strategy.parse("single", 1).with_options(recompute="full")
    lora = training_memory(work(lora_rank=16, precision="bf16-pure"), single)
    qlora = training_memory(
        work(lora_rank=16, precision="bf16-pure", quantization="nf4-dq"), single
    )
    linear = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    saved = lora.parts["parameters"] - qlora.parts["parameters"]
    assert saved == pytest.approx(linear * (2 - 0.5 - 1 / 64 - 4 / (64 * 256)), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "strategy", "ranks", "sentence"),
    [
        ({}, "tp", 3, "32 attention heads cannot be split over tp = 3"),
        ({}, "pp", 64, "at least 64 blocks"),
        ({"seq_len": 4095}, "cp", 2, "4095 tokens cannot be split.*a multiple of 2 as seq_len"),
        ({}, "tp", 3, "Use one of 2, 4, 8, 16, 32"),
        ({"trained_layers": 33}, "ddp", 2, "has 32 blocks: its last 33 cannot be trained. Use"),
        ({}, "ep", 2, "has no experts to spread over ep = 2. Leave ep out"),
        ({"model": SHARED}, "tp", 6, "8 key/value heads cannot be shared out over tp = 6. Use one"),
        ({"model": replace(LLAMA_8B, heads=3, kv_heads=3, head_dim=128)}, "tp", 2, "leave tp out"),
        ({"model": Model.catalog("vit-b-16")}, "cp", 2, "197 tokens.*They are fixed: use cp 1"),
        ({"model": Model.catalog("mixtral-8x7b")}, "ep", 3, "8 experts: .* Use one of 2, 4, 8"),
    ],
)
def test_impossible_layouts_are_refused(
    change: dict[str, object], strategy: str, ranks: int, sentence: str
) -> None:
    with pytest.raises(wb.UsageError, match=sentence):
        training_memory(work(**change), Strategy.parse(strategy, ranks))


@pytest.mark.parametrize(
    ("pp", "chunks", "remedy"),
    [(64, 1, "at most pp = 32."), (8, 8, "pp = 4 or virtual_stages = 4."), (1, 99, "virtual_stag")],
)
def test_too_many_stages_say_how_many_there_may_be(pp: int, chunks: int, remedy: str) -> None:
    how = wb.Strategy(name="pp", pp=pp).with_options(virtual_stages=chunks)
    with pytest.raises(wb.UsageError, match=remedy):
        training_memory(work(accumulate=64), how)


def test_a_fantasy_is_refused_or_computed() -> None:
    with pytest.raises(wb.UsageError, match="Check layers, hidden and experts"):
        replace(LLAMA_8B, hidden=4096 * 4096, heads=4096)
    huge = replace(LLAMA_8B, layers=640, hidden=32768, heads=256, mlp_hidden=131072)
    assert huge.parameters > 1e13 / 2
    assert training_memory(work(huge), Strategy.parse("fsdp", 8)).allocated_bytes > huge.parameters


def test_the_estimator_knows_no_source_no_framework_and_no_row() -> None:
    """Behaviour of frameworks is a named assumption of the workload, never an identity."""
    names = {
        field.name
        for value in (Workload, ImplementationAssumptions, Strategy, Model)
        for field in fields(value)
    }
    names |= set(inspect.signature(training_memory).parameters)
    assert not names & {"source", "source_id", "framework", "release", "version", "id", "row"}


models = st.builds(
    lambda heads, share, width, layers, inner, vocab, tied, gated: Model(
        name="m",
        layers=layers,
        hidden=heads * width,
        heads=heads,
        kv_heads=heads // share,
        mlp_hidden=inner * 64,
        vocab=vocab,
        tied_embeddings=tied,
        gated_mlp=gated,
    ),
    heads=st.sampled_from([8, 16, 32]),
    share=st.sampled_from([1, 2, 4, 8]),
    width=st.sampled_from([16, 64, 128]),
    layers=st.integers(8, 48),
    inner=st.integers(1, 64),
    vocab=st.integers(256, 200_000),
    tied=st.booleans(),
    gated=st.booleans(),
)
workloads = st.builds(
    Workload,
    model=models,
    seq_len=st.sampled_from([128, 1024, 8192]),
    micro_batch=st.integers(1, 16),
    accumulate=st.sampled_from([1, 2, 8]),
    precision=st.sampled_from(PRECISIONS),
    optimizer=st.sampled_from(OPTIMIZERS),
    lora_rank=st.sampled_from([0, 0, 16]),
    attention=st.sampled_from(["sdpa", "flash", "eager"]),
    loss=st.sampled_from(["full", "chunked", "chunked-output", "fused"]),
    keep_logits=st.booleans(),
    kernels=st.sampled_from(list(KERNELS.values())),
)
NAMES = ("fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3", "tp")


@settings(max_examples=300)
@given(workloads, st.sampled_from(NAMES), st.sampled_from(["none", "selective", "full"]))
def test_memory_never_rises_with_a_sharding_degree(
    workload: Workload, name: str, recompute: str
) -> None:
    """More ranks share what one held: allocated bytes fall or stay."""
    sizes = []
    for ranks in (2, 4, 8):
        strategy = Strategy.parse(name, ranks).with_options(recompute=recompute)
        sizes.append(training_memory(workload, strategy).allocated_bytes)
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=300)
@given(
    workloads,
    st.sampled_from(["single", "ddp", *NAMES, "pp", "hsdp", "fsdp2-tp2", "pp2-dp2", "cp"]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_parts_sum_to_the_total_and_none_is_negative(
    workload: Workload, name: str, recompute: str
) -> None:
    ranks = 1 if name == "single" else 4
    strategy = Strategy.parse(name, ranks).with_options(recompute=recompute)
    estimate = training_memory(workload, strategy, card(80))
    assert sum(estimate.parts.values()) == estimate.on_card_bytes
    assert all(size >= 0 for size in estimate.parts.values())
    assert all(isinstance(size, int) for size in estimate.parts.values())
    assert estimate.peaks is not None
    assert max(estimate.peaks.values()) == estimate.allocated_bytes == estimate.peaks[estimate.peak]
    assert estimate.allocated_bytes <= estimate.reserved_bytes <= estimate.on_card_bytes
    for stage in estimate.stages:
        assert stage.peak.total_bytes <= estimate.allocated_bytes


@settings(max_examples=100)
@given(workloads, st.sampled_from(["micro_batch", "seq_len", "accumulate"]))
def test_more_work_never_needs_less(workload: Workload, field: str) -> None:
    more = replace(workload, **{field: 2 * getattr(workload, field)})
    for name, ranks in (("single", 1), ("fsdp", 4), ("zero3", 4)):
        strategy = Strategy.parse(name, ranks)
        assert (
            training_memory(more, strategy).allocated_bytes
            >= training_memory(workload, strategy).allocated_bytes
        )


@settings(max_examples=100)
@given(workloads)
def test_full_recompute_never_keeps_more_activations(workload: Workload) -> None:
    """The blocks' saved tensors shrink; the peak can still rise by one block's inputs."""
    none, full = (Strategy.parse("fsdp", 4).with_options(recompute=r) for r in ("none", "full"))
    saved = [
        next(p for p in training_memory(workload, s).stages[0].peaks if p.name == "forward end")
        for s in (none, full)
    ]
    assert saved[1].total_bytes <= saved[0].total_bytes


def test_fsdp_in_a_pipeline_keeps_weights_and_gradients_until_the_step() -> None:
    """Each micro-batch would gather the stage's weights again; torch reduces after the last one."""
    job = work(accumulate=8)
    inside = Strategy.parse("fsdp4-pp2", 8)
    said = replace(inside.with_options(reshard_after_forward=False), sync_every_micro_batch=False)
    assert training_memory(job, inside).parts == training_memory(job, said).parts
    every = replace(inside, sync_every_micro_batch=True)
    whole = 4 * LLAMA_8B.parameters / 2 * (1 - 1 / 4)  # fp32 gradients of a stage, unsharded
    more = (
        training_memory(job, inside).parts["gradients"]
        - training_memory(job, every).parts["gradients"]
    )
    assert more == pytest.approx(whole, rel=0.1)
    assert not Strategy.parse("zero1x4-pp2", 8).reduces_once
    assert not Strategy.parse("fsdp", 8).keeps_gathered_weights


@pytest.mark.parametrize("layout", ["single", "fsdp4"])
def test_a_head_that_is_trained_alone_holds_no_backward_of_blocks(layout: str) -> None:
    ranks = Strategy.ranks_of(layout) or 1
    asked = work(Model.catalog("pythia-70m"), trained_layers=0, micro_batch=16)
    whole = [
        training_memory(asked, Strategy.parse(layout, ranks).with_options(recompute=recompute))
        for recompute in ("none", "full")
    ]
    assert whole[0].parts == whole[1].parts  # nothing is kept, so nothing is run again


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("last", [0, 3, 9, None])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_last_blocks_are_those_of_the_model(name: str, last: int | None, stages: int) -> None:
    """Not of each stage: the stages together train what one device trains."""
    asked = work(Model.catalog(name), trained_layers=last, accumulate=stages)
    one = ranks_of(asked, Strategy(name="single"))[0].elements
    split = [rank.elements for rank in ranks_of(asked, Strategy.parse("pp", stages))]
    for field in ("block", "experts", "frozen_linear", "frozen_experts"):
        assert sum(getattr(each, field) for each in split) == getattr(one, field), field
    if last == 3 and stages == 4:
        assert [bool(each.block) for each in split] == [False, False, False, True]
