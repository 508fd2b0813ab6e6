"""What offload takes from the host, and number formats that a card lacks: said in every answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

import workbench as wb
from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.accelerators import accelerators
from workbench.planning.pick import pick
from workbench.units import GIB

LLAMA = Model.catalog("llama-3-8b")
WORK = Workload(model=LLAMA, seq_len=2048, micro_batch=1, precision="bf16")
NODE = replace(Cluster.rented("h100", 8), memory_bytes=64 * GIB)


def zero(stage: int, *parts: str) -> Strategy:
    return Strategy.parse(f"zero{stage}", 8).with_options(offload=parts)


def test_without_offload_nothing_is_said() -> None:
    found = wb.training_memory(WORK, zero(3), NODE)
    assert found.host_bytes is None
    assert not any("host memory" in line for line in found.assumptions)


@pytest.mark.parametrize("stage", [2, 3])
def test_the_optimizer_leaves_its_states_on_the_host(stage: int) -> None:
    """fp32 master copy and two moments, 12 bytes a parameter, and the gradients beside them."""
    found = wb.training_memory(WORK, zero(stage, "optimizer"), NODE)
    assert found.host_bytes is not None
    assert 12 * LLAMA.parameters <= found.host_bytes <= 16.5 * LLAMA.parameters
    assert "it does not fit" in found.assumptions[0]
    assert "64 GiB" in found.assumptions[0]
    assert found.document()["host_bytes"] == found.host_bytes


def test_parameters_come_on_top() -> None:
    optimizer = wb.training_memory(WORK, zero(3, "optimizer"), NODE).host_bytes
    both = wb.training_memory(WORK, zero(3, "optimizer", "parameters"), NODE).host_bytes
    assert optimizer is not None
    assert both == pytest.approx(optimizer + 2 * LLAMA.parameters, rel=0.01)


def test_enough_and_unknown_host_memory_are_told_apart() -> None:
    large = replace(NODE, memory_bytes=2048 * GIB)
    said = wb.training_memory(WORK, zero(3, "optimizer"), large).assumptions[0]
    assert "2 TiB" in said
    assert "not fit" not in said
    unknown = replace(NODE, memory_bytes=None)
    assert "not known" in wb.training_memory(WORK, zero(3, "optimizer"), unknown).assumptions[0]


@pytest.mark.parametrize(
    ("gpu", "precision", "instead"),
    [("t4", "bf16", "fp16"), ("v100", "bf16", "fp16"), ("a100", "fp8", "bf16")],
)
def test_a_format_that_the_card_lacks_is_said(gpu: str, precision: str, instead: str) -> None:
    work = replace(WORK, precision=precision)
    said = wb.training_memory(work, Strategy.parse("single", 1), Cluster.rented(gpu, 1))
    assert f"has no {precision} matmuls. Use precision {instead}" in said.assumptions[0]


def test_what_it_suggests_the_card_has() -> None:
    for one in accelerators():
        for precision in ("bf16", "fp16", "fp8"):
            said = one.why_not(precision)
            assert (said == "") == (one.peak_flops(precision) is not None)
            if "Use precision" in said:
                other = said.partition("Use precision ")[2].partition(",")[0]
                assert one.peak_flops(other) is not None, (one.id, said)


@pytest.mark.parametrize("gpu", ["t4", "v100"])
def test_where_nobody_chose_the_card_decides(gpu: str) -> None:
    job = wb.Job.of("gpt2", gpu=gpu)
    assert job.workload.precision == "fp16"
    assert "has no bf16 matmuls: fp16 is assumed" in job.notes[0]
    assert wb.Job.of("gpt2", gpu=gpu, precision="fp32").workload.precision == "fp32"
    assert wb.Job.of("gpt2", gpu="a100").workload.precision == "bf16"


@pytest.mark.parametrize("frozen", [{"lora_rank": 16}, {"trained_layers": 1}])
def test_frozen_experts_are_held_once_however_they_are_spread(frozen: dict[str, int]) -> None:
    work = replace(WORK, model=Model.catalog("mixtral-8x7b"), precision="bf16-pure", **frozen)
    weights = [
        8 * wb.training_memory(work, Strategy.parse(name, 8)).parts["parameters"]
        for name in ("fsdp", "fsdp8-ep2", "fsdp8-ep8")
    ]
    assert weights == pytest.approx([weights[0]] * 3, rel=0.01)
    assert weights[0] == pytest.approx(2 * work.model.parameters, rel=0.02)


def test_frozen_weights_on_the_host_are_fetched_for_forward_and_backward() -> None:
    layout = Strategy.parse("zero3", 8).with_options(offload=("optimizer", "parameters"))
    work = replace(WORK, lora_rank=16)
    node = Cluster.rented("a100", 8)
    full, lora = (wb.step_time(one, layout, node).parts["offload traffic"] for one in (WORK, work))
    assert full / 4 < lora < full


def test_fsdp_takes_its_gradients_to_the_host_with_its_states() -> None:
    layout = Strategy.parse("fsdp", 8).with_options(offload=("optimizer", "parameters"))
    found = wb.training_memory(WORK, layout, NODE).host_bytes or 0
    assert found == pytest.approx(16 * LLAMA.parameters, rel=0.01)


def test_activations_of_every_micro_batch_in_flight_are_on_the_host() -> None:
    layout = Strategy.parse("pp", 4).with_options(offload=("activations",), schedule="gpipe")
    one, four = (
        wb.training_memory(replace(WORK, accumulate=count), layout, NODE).host_bytes or 0
        for count in (1, 4)
    )
    assert four == pytest.approx(4 * one, rel=0.01)


def test_a_layout_whose_offload_the_host_cannot_hold_is_not_picked() -> None:
    small = replace(Cluster.rented("rtx-4090", 1), memory_bytes=32 * GIB)
    with pytest.raises(wb.UsageError):
        pick("fit", WORK, small, 1)
    assert pick("fit", WORK, replace(small, memory_bytes=512 * GIB), 1).strategy.offload
