"""The range of a memory estimate: by what is known of the job, and what follows for fitting."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from workbench.describe import Cluster, Gpu, Strategy
from workbench.describe.job import Job
from workbench.estimate.fitted import read_constants
from workbench.estimate.memory import training_memory
from workbench.estimate.memory_range import WHY, kind_of, ranges
from workbench.estimate.parts import Estimate
from workbench.estimate.peaks import peaks
from workbench.estimate.rank import ranks_of
from workbench.estimate.slack import PATH, shares, slack_bytes


def test_every_kind_has_a_range_around_the_estimate() -> None:
    assert set(ranges()) == set(WHY)
    for one in ranges().values():
        assert 0 < one.low <= 1 <= one.high, one


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "plain"),
        ({"strategy": "tp", "gpus": 8}, "several axes"),
        ({"strategy": "zero1", "gpus": 8}, "several axes"),
        ({"strategy": "zero2", "gpus": 8}, "offload, ZeRO-2, 3"),
        ({"precision": "fp8"}, "fp8"),
        ({"lora_rank": 8, "strategy": "tp", "gpus": 8}, "adapters"),
        ({"strategy": "zero3", "gpus": 8, "offload": "optimizer"}, "offload, ZeRO-2, 3"),
        ({"variable_length": True, "lora_rank": 8}, "variable lengths"),
    ],
)
def test_what_is_known_of_a_job_decides_its_range(options: dict[str, object], kind: str) -> None:
    job = Job.of("llama-3-8b", gpu="h100", trainer="pytorch", **options)
    assert kind_of(job.workload, job.strategy) == kind
    estimate = training_memory(job)
    assert (estimate.low, estimate.high) == ranges()[kind][:2]
    assert any(WHY[kind] in sentence for sentence in estimate.assumptions)
    assert estimate.document()["range"] == {
        "low_bytes": estimate.low_bytes,
        "high_bytes": estimate.high_bytes,
    }


def test_a_trainer_that_nobody_named_widens_the_range() -> None:
    named = training_memory(Job.of("llama-3-8b", gpu="h100", trainer="pytorch"))
    assumed = training_memory(Job.of("llama-3-8b", gpu="h100"))
    assert assumed.on_card_bytes == named.on_card_bytes
    assert assumed.high / assumed.low > named.high / named.low


def test_a_job_is_tight_where_only_the_upper_end_of_its_range_does_not_fit() -> None:
    job = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", trainer="pytorch")
    size = training_memory(job).on_card_bytes

    def verdict(card: float) -> str:
        gpus = tuple(Gpu(index=i, name="card", memory_bytes=int(card)) for i in range(8))
        return training_memory(replace(job, cluster=Cluster(name="own", gpus=gpus))).verdict

    assert verdict(2.0 * size) == "fits"
    assert verdict(1.05 * size) == "tight"
    assert verdict(0.9 * size) == "does not fit"
    assert Estimate(parts={}, assumptions=()).verdict == ""


def test_constants_without_a_source_stand_within_their_bounds_and_act() -> None:
    """A fit may move each of them, and each moves the slack of some job."""
    jobs = [
        Job.of("llama-3-8b", gpu="h100", gpus=8, strategy=strategy, recompute=recompute, **more)
        for strategy, recompute, more in (
            ("ddp", "none", {"variable_length": True}),
            ("ddp", "selective", {}),
            ("ddp", "full", {}),
            ("zero2", "none", {}),
        )
    ]
    ranks = [rank for job in jobs for rank in ranks_of(job.workload, job.strategy)]

    def slacks(values: dict[str, float]) -> list[int]:
        return [slack_bytes(rank, moment.parts, values) for rank in ranks for moment in peaks(rank)]

    now = slacks(dict(shares()))
    for name, one in read_constants(PATH).items():
        assert one.low <= one.value <= one.high, name
        assert slacks({**shares(), name: one.high + 0.1}) != now, name


@pytest.mark.parametrize(("lists", "more"), [(1, 1), (2, 2)])
def test_torch_before_2_1_keeps_two_lists_in_its_foreach_adamw(lists: int, more: int) -> None:
    job = Job.of("llama-3-8b", gpu="h100", precision="fp32", optimizer="adamw")
    kernels = dataclasses.replace(job.workload.kernels, foreach_lists=lists)
    (rank,) = ranks_of(replace(job.workload, kernels=kernels), Strategy.parse("single", 1))
    assert rank.states.step == pytest.approx(4 * more * rank.elements.trained, rel=0.01)


def test_a_loss_that_is_assumed_for_long_sequences_says_what_it_saves() -> None:
    job = Job.of(
        "llama-3-8b", gpu="h200", gpus=8, strategy="zero3", seq_len=131072, trainer="transformers"
    )
    assert job.workload.loss == "fused"
    text = " ".join(training_memory(job).assumptions)
    assert "with the logits of all tokens at once (loss full) these alone would take" in text
    short = Job.of("llama-3-8b", gpu="h200", seq_len=8192, trainer="transformers")
    assert short.workload.loss == "full"
    full = Job.of("llama-3-8b", gpu="h200", seq_len=131072, loss="full", trainer="transformers")
    assert full.workload.loss == "full"


def test_fsdp1_keeps_gradients_of_frozen_weights_that_lie_beside_adapters() -> None:
    """LitGPT wraps whole blocks and does not synchronise while it accumulates."""
    lora = {"gpu": "a100", "gpus": 4, "strategy": "fsdp", "lora_rank": 8, "micro_batch": 1}

    def gradients(trainer: str, accumulate: int) -> float:
        job = Job.of("llama-2-13b", trainer=trainer, accumulate=accumulate, **lora)
        (rank,) = ranks_of(job.workload, job.strategy)
        moment = next(one for one in peaks(rank) if one.name == "end of backward")
        return moment.parts["gradients"] / (2 * rank.elements.frozen_linear)

    assert gradients("litgpt", accumulate=8) == pytest.approx(1, rel=0.01)
    assert gradients("litgpt", accumulate=1) < 0.3
    assert gradients("torchtune", accumulate=8) < 0.01
