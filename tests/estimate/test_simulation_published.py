"""The simulation against measurements that others published, and against its own reference figures.

torchtitan's rows: active and reserved memory printed by its trainer. The table of 1B and 8B was
produced by two independent trackers, one of them torch's FSDPMemTracker.
"""

from __future__ import annotations

import pytest

from tests.conftest import allowed
from tests.estimate.titan import Shape, training
from workbench.describe import Model, Strategy, Workload
from workbench.estimate.simulate import simulate, simulate_many

GIB = 2**30
SEVEN = (32, 4096, 32, 32, 11008, 32000)
EIGHT = (32, 4096, 32, 8, 14336, 128256)
LLAMA_1B = Model.catalog("llama-3.2-1b")
LLAMA_8B = Model.catalog("llama-3-8b")


def job(model: Model, **options: object) -> Workload:
    values = {"model": model, "seq_len": 4096, "micro_batch": 1, "precision": "bf16"}
    return Workload(**{**values, **options})  # pyright: ignore[reportArgumentType]


# shape, active GiB (None: not printed), reserved GiB
PUBLISHED = {
    # torchtitan PR 165, 2024-03, 8 x H100
    "7B full": (Shape(8, *SEVEN, 8, 2048, "full", keeps_logits=True), 22.73, 31.02),
    "7B op": (Shape(8, *SEVEN, 8, 2048, "op", keeps_logits=True), 49.54, 59.41),
    # torchtitan benchmarks/llama3_h100_202412, 8 and 128 x H100
    "8B op": (Shape(8, *EIGHT, 2, 8192, "op", keeps_logits=False), None, 82.4),
    "8B op, 128 ranks": (Shape(128, *EIGHT, 2, 8192, "op", keeps_logits=False), None, 67.0),
}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED)
def test_torchtitan_on_h100(row: str) -> None:
    shape, active, reserved = PUBLISHED[row]
    found = simulate(training(shape), Strategy.parse("fsdp", shape.ranks))
    if active is not None:
        assert found.allocated_bytes / GIB == pytest.approx(active, rel=0.01)
    assert found.reserved_bytes / GIB == pytest.approx(reserved, rel=0.07)


@pytest.mark.full
@pytest.mark.slow
def test_transformers_llama_with_torchtitans_recompute() -> None:
    layout = Strategy.parse("fsdp", 8).with_options(recompute="selective", recompute_parts=("op",))
    found = simulate(job(LLAMA_8B, seq_len=8192, micro_batch=2), layout)
    assert found.reserved_bytes / GIB == pytest.approx(82.4, rel=0.07)


@pytest.mark.full
@pytest.mark.slow
def test_fsdp_of_1b_and_8b_agrees_with_torchs_own_tracker() -> None:
    plain, full = (
        Strategy.parse("fsdp", 8),
        Strategy.parse("fsdp", 8).with_options(recompute="full"),
    )
    pairs = [(job(model), layout) for model in (LLAMA_1B, LLAMA_8B) for layout in (plain, full)]
    found = simulate_many(pairs)
    allocated = [each.allocated_bytes / GIB for each in found]
    assert allocated == pytest.approx([14.90, 8.51, 44.10, 20.58], abs=0.006)
    reserved = [each.reserved_bytes / GIB for each in found]
    assert reserved == pytest.approx([18.0, 9.9, 51.9, 28.9], abs=0.06)
    assert {each.peak for each in found} == {"loss backward"}
    assert all(each.reserved_bytes >= each.smallest_card_bytes for each in found)


@pytest.mark.full
@pytest.mark.slow
def test_lora_on_one_gpu_with_fp32_adapters() -> None:
    linears = ("q", "k", "v", "o", "gate", "up", "down")
    options = {"precision": "bf16-pure", "adapter_bytes": 4, "lora_targets": linears}
    workload = job(LLAMA_8B, lora_rank=16, **options)
    layouts = [Strategy(name="single"), Strategy(name="single", recompute="full")]
    found = simulate_many([(workload, layout) for layout in layouts])
    allocated = [each.allocated_bytes / GIB for each in found]
    assert allocated == pytest.approx([57.4, 22.4], abs=0.06)


@pytest.mark.full
@pytest.mark.slow
def test_eight_billion_parameters_on_eight_ranks_take_seconds_and_little_memory() -> None:
    found = simulate(job(LLAMA_8B), Strategy.parse("fsdp", 8), card_bytes=80 * GIB)
    assert found.fits
    assert found.seconds < allowed(20)  # 7 s on two quiet cores
