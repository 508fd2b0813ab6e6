"""What data-parallel ranks exchange: whole gradients or each its part, in which messages; kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.job import Job
from workbench.estimate.fitted import fitted, using
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time

GRADIENTS = "exposed communication: gradients"
WORK = Workload(model=Model.catalog("llama-3-8b"), seq_len=4096, precision="bf16")
CLUSTER = Cluster.rented("h100", 8, 4, network="8x400 infiniband")
ZERO1 = Strategy.parse("zero1", 32).with_options(overlap_gradients=False)


def exposed(*, to_all: bool) -> float:
    kernels = replace(WORK.kernels, gradients_to_all=to_all, reduce_bytes=4)
    work = replace(WORK, kernels=kernels)
    return step_time(work, ZERO1, CLUSTER).parts[GRADIENTS]


def test_whole_gradients_for_every_rank_are_twice_the_traffic() -> None:
    """8.03e9 fp32 gradients once more over 31/32 of the ring: nanotron's all_reduce against a
    reduce-scatter (arXiv 1910.02054 section 7)."""
    rails = CLUSTER.network.bytes_per_second * fitted("infiniband_share")
    once = 31 / 32 * 4 * WORK.model.parameters / (rails * 2 ** -fitted("crowding"))
    assert exposed(to_all=True) - exposed(to_all=False) == pytest.approx(once, rel=0.05)


def of_nanotron(strategy: str, **more: object) -> Job:
    options = {"gpu": "h100", "gpus": 8, "nodes": 16, "trainer": "nanotron@0.5", **more}
    return Job.of("llama-3-8b", strategy=strategy, **options)


def test_nanotron_reduces_beside_backward_without_zero_only() -> None:
    """trainer.py 0.5: DDP's hook without ZeRO; with it one fp32 all-reduce after backward."""
    plain, split = of_nanotron("dp16-tp8"), of_nanotron("zero1x16-tp8")
    assert plain.strategy.overlap_gradients is not False
    assert split.strategy.overlap_gradients is False
    assert split.workload.kernels.gradients_to_all
    assert not plain.workload.kernels.gradients_to_all
    assert split.workload.kernels.reduce_bytes == plain.workload.kernels.reduce_bytes == 4
    ahead = [step_time(one, conditions=None).parts[GRADIENTS] for one in (plain, split)]
    assert ahead[0] < ahead[1]


@pytest.mark.parametrize("trained", [None, 2])
def test_a_last_stage_may_hold_the_head_alone(trained: int | None) -> None:
    """nanotron cuts by FLOPs: a head worth more than a stage's share leaves it no block."""
    job = of_nanotron("dp8-pp16", micro_batch=1, accumulate=16, trained_layers=trained)
    memory = training_memory(job)
    assert [stage.layers for stage in memory.stages][-1] == 0
    assert memory.stages[-1].peaks[0].total_bytes > 0
    assert step_time(job).step_seconds > 0


def test_every_kernel_starts_and_drains() -> None:
    """With one token per rank nothing moves, and the gaps between the kernels remain."""
    tiny = replace(WORK, seq_len=1, kernels=replace(WORK.kernels, norm="upcast"))
    single, card = Strategy.parse("single", 1), Cluster.rented("h100", 1)

    def pointwise(work: Workload, gap: float) -> float:
        with using({"kernel_seconds": gap}):
            return step_time(work, single, card).parts["memory-bound operations"]

    gaps = pointwise(tiny, 4e-6) - pointwise(tiny, 2e-6)
    launches = 9 + 4 * 2 * WORK.model.norms_per_block + 10 + 8
    products = 7
    assert gaps == pytest.approx(3 * 2e-6 * (launches - products) * WORK.model.layers)
    fused = replace(tiny, kernels=replace(tiny.kernels, norm="fused", compiled=True))
    assert pointwise(fused, 4e-6) < pointwise(tiny, 4e-6)


def test_experts_are_gathered_by_the_ranks_that_hold_them() -> None:
    """Mixtral is 96 % experts: with ep 8 in one node no rank gathers any, with ep 2 half of them."""
    work = Workload(model=Model.catalog("mixtral-8x7b"), seq_len=4096, precision="bf16")

    def gathered(name: str) -> float:
        strategy = Strategy.parse(name, 8).with_options(overlap_gradients=False)
        node = replace(CLUSTER, nodes=1)
        return step_time(work, strategy, node).parts["exposed communication: sharded weights"]

    assert 0.02 < gathered("fsdp8-ep8") / gathered("fsdp") < 0.1
    assert gathered("fsdp8-ep2") / gathered("fsdp") == pytest.approx(
        0.5 * 3 / 4 / (7 / 8), rel=0.15
    )


def test_a_stage_that_keeps_its_weights_gathers_them_once_whatever_the_micro_batches() -> None:
    """The first micro-batch waits for them all: nothing is spread over the others."""
    strategy = Strategy.parse("fsdp16-pp2", 32)
    assert strategy.keeps_gathered_weights

    def once(accumulate: int) -> dict[str, float]:
        return step_time(replace(WORK, accumulate=accumulate), strategy, CLUSTER).parts

    few, many = once(4), once(16)
    assert many[GRADIENTS] == pytest.approx(few[GRADIENTS])
    assert many[GRADIENTS] > 2 * 8e9 / 2 * 15 / 16 / CLUSTER.network.bytes_per_second / 2


def test_gradients_reduced_once_wait_in_the_last_micro_batch_alone() -> None:
    """Without a reduction in each micro-batch, one more of them costs no communication."""
    each = Strategy.parse("fsdp-grad-op", 32).with_options(sync_every_micro_batch=True)
    last = each.with_options(sync_every_micro_batch=False)

    def communication(strategy: Strategy, accumulate: int) -> float:
        parts = step_time(replace(WORK, accumulate=accumulate), strategy, CLUSTER).parts
        return parts.get("exposed communication: sharded weights", 0.0) + parts[GRADIENTS]

    assert communication(last, 1) == pytest.approx(communication(each, 1))
    more = communication(last, 9) - communication(last, 1)
    assert more < 0.6 * (communication(each, 9) - communication(each, 1))
