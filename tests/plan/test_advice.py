"""Each rule of advice with golden numbers, and the articles' examples refuted or confirmed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import workbench as wb
from workbench.describe import Conditions, Network, Offer
from workbench.describe.model import usual_seq_len
from workbench.errors import UsageError
from workbench.planning.advice import (
    Advice,
    RunFacts,
    advise,
    all_reduce_time,
    batch_limits,
    checkpoint_advice,
    critical_batch_tokens,
    ddp_or_fsdp,
    instance_sanity,
    known_offer,
    learning_rate_advice,
    memory_rubric,
    need_more_gpus,
    nvlink_or_pcie,
    recompute_cost,
    scaled_rate,
    zero_savings,
)
from workbench.planning.market import RANK_HOST_BYTES

parse, rented = wb.Strategy.parse, wb.Cluster.rented


def job(model: str = "llama-2-7b", **options) -> wb.Workload:
    shape = wb.Model.catalog(model)
    length = 2 * usual_seq_len(shape) if shape.position != "learned" else usual_seq_len(shape)
    return wb.Workload(model=shape, **({"seq_len": length, "micro_batch": 1} | options))


def test_what_a_rule_corrects_is_a_sentence_that_people_know() -> None:
    """No number of a list that readers do not have."""
    answers = advise(wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="ddp"))
    told = [one.corrects for one in answers if one.corrects]
    assert len(told) >= 5
    for one in answers:
        for text in (one.corrects or "", one.source):
            assert not re.search(r"\b[CS]\d{1,2}[a-z]?\b", text), text
    assert all(" " in text for text in told)


class TestMoreGpus:
    def test_7b_fits_one_gpu_with_a_switch(self) -> None:
        """C9: 16 bytes per parameter do not fit 80 GB as they are; off the card they do."""
        found = need_more_gpus(job(), "h100")
        assert found.verdict.startswith("No: it fits on one NVIDIA H100")
        assert "off" in found.verdict or "paged" in found.verdict
        assert found.numbers["on_card_bytes"] > 112e9
        assert found.numbers["gpus_at_least"] == 1
        assert any(one.startswith("LoRA r16: -92.9 GiB, fits (changes") for one in found.steps)
        assert any("fsdp" in one for one in found.steps)
        assert found.steps[0].startswith("Mixed precision")

    def test_it_fits_as_it_is(self) -> None:
        found = need_more_gpus(job("gpt2"), "a100")
        assert found.verdict.endswith("as it is.")
        assert found.numbers["switches"] == ""

    def test_70b_needs_many_or_adapters(self) -> None:
        """C10, C11: not 4 to 8 H100; QLoRA alone makes one GPU enough."""
        found = need_more_gpus(job("llama-3-70b"), "h100")
        assert found.verdict.startswith("Only if training must stay as it is:")
        assert "QLoRA" in found.verdict
        assert found.numbers["gpus_at_least"] >= 16
        assert found.numbers["gpus_if_the_result_may_change"] == 1

    def test_time_alone_can_ask_for_more(self) -> None:
        relaxed = need_more_gpus(job("gpt2"), "h100", tokens=1e8, deadline_hours=100)
        assert relaxed.verdict.startswith("No")
        hours = relaxed.numbers["hours_on_one_gpu"]
        alone = wb.step_time(job("gpt2"), parse("single", 1), rented("h100", 1))
        assert hours == pytest.approx(1e8 / alone.tokens_per_second / 3600)
        tight = need_more_gpus(job("gpt2"), "h100", tokens=1e8, deadline_hours=hours / 3.5)
        assert tight.verdict.startswith("Yes, for time: at least")
        assert 2 <= tight.numbers["gpus_for_the_deadline"] <= 4
        with pytest.raises(UsageError, match="deadline_hours must be above 0"):
            need_more_gpus(job("gpt2"), "h100", tokens=1e9, deadline_hours=0)


class TestRubric:
    @pytest.mark.parametrize(
        ("model", "gpu", "states", "least"),
        [
            ("llama-2-7b", "h100", 107.8e9, 2),
            ("llama-3-70b", "h100", 1128.9e9, 14),  # C10: 14 x 80 GB with no activations
            # C10 counts 81 cards of 80e9 bytes; the driver reports 85.5e9, so 76 hold them
            ("llama-3.1-405b", "h100", 6493.7e9, 76),
            ("llama-3.1-405b", "h200", 6493.7e9, 44),
        ],
    )
    def test_16_bytes_per_parameter(self, model, gpu, states, least) -> None:
        found = memory_rubric(job(model), gpu)
        assert found.numbers["bytes_per_parameter"] == pytest.approx(16, rel=1e-3)
        assert found.numbers["state_bytes"] == pytest.approx(states, rel=1e-3)
        assert found.numbers["gpus_at_least"] == least
        left = least * found.numbers["card_bytes"] - found.numbers["state_bytes"]
        assert f"leaves {left / 1e9:,.0f} GB for activations" in found.reason
        assert found.corrects == (
            "above 10B it takes model parallelism; 7B fits 80 GB; 70B takes 4 to 8 H100"
        )

    @pytest.mark.parametrize(
        ("options", "low", "high"),
        [
            ({"lora_rank": 16}, 2, 3),
            ({"lora_rank": 16, "quantization": "nf4"}, 0.6, 0.8),
            ({"precision": "bf16-pure"}, 8, 8),
            ({"optimizer": "adamw-8bit"}, 10, 10.1),
            ({"optimizer": "sgd"}, 8, 8),  # C33: SGD has no states at all
        ],
    )
    def test_the_mode_decides_not_the_size(self, options, low, high) -> None:
        each = memory_rubric(job(**options), "h100").numbers["bytes_per_parameter"]
        assert low - 1e-3 <= each <= high + 1e-3


def test_c1_zero_savings_are_a_formula() -> None:
    for gpus, expected in ((8, (2.9, 4.3, 8.0)), (64, (3.8, 7.2, 64.0))):
        found = zero_savings(job(), gpus)
        for stage, times in enumerate(expected, start=1):
            assert found.numbers[f"zero{stage}_times_less"] == pytest.approx(times, abs=0.05)
        assert f"On {gpus} GPUs" in found.verdict
    each = zero_savings(job(), 8).numbers
    assert each["zero1_bytes_per_parameter"] == pytest.approx(4 + 12 / 8, rel=1e-3)
    assert each["zero2_bytes_per_parameter"] == pytest.approx(2 + 14 / 8, rel=1e-3)


def test_c39_memory_decides_between_ddp_and_fsdp() -> None:
    seven = ddp_or_fsdp(job(), rented("h100", 8))
    assert seven.verdict == "FSDP."
    assert "does not fit" in seven.reason
    small = ddp_or_fsdp(job("gpt2", micro_batch=8, accumulate=8), rented("h100", 8, 8))
    ddp, fsdp = (small.numbers[f"{name}_step_seconds"] for name in ("ddp", "fsdp"))
    assert small.verdict == ("DDP." if ddp <= fsdp else "FSDP.")  # 64 GPUs and both fit
    assert (
        ddp
        == wb.step_time(
            job("gpt2", micro_batch=8, accumulate=8), parse("ddp", 64), rented("h100", 8, 8)
        ).step_seconds
    )
    large = ddp_or_fsdp(job("llama-3.1-405b"), rented("h100", 8))
    assert large.verdict.startswith("Neither fits")
    with pytest.raises(UsageError, match="from 2 GPUs on"):
        ddp_or_fsdp(job(), rented("h100", 1))


def test_recompute_that_is_on_counts_for_ddp_and_for_fsdp() -> None:
    long, cluster = job("llama-3-8b", seq_len=16384), rented("h100", 8)
    meant = parse("fsdp", 8).with_options(recompute="full")
    assert ddp_or_fsdp(long, cluster).verdict.startswith("Neither fits")
    found = ddp_or_fsdp(long, cluster, strategy=meant)
    assert (found.verdict, found.holds) == ("FSDP.", True)
    needed = wb.training_memory(long, meant, cluster).on_card_bytes
    assert found.numbers["fsdp_on_card_bytes"] == needed


@pytest.mark.parametrize(
    ("options", "bytes_of_all"),
    [({}, 4 * 6_738_415_616), ({"precision": "bf16-pure"}, 2 * 6_738_415_616)],
)
def test_the_all_reduce_is_of_what_the_job_reduces(
    options: dict[str, str], bytes_of_all: int
) -> None:
    layout, cluster = parse("ddp", 8), rented("h100", 8)
    (found,) = (
        one for one in advise(job(**options), layout, cluster) if one.rule == "all-reduce-time"
    )
    assert found.numbers["bytes"] == bytes_of_all
    adapters = job(lora_rank=16)
    (found,) = (one for one in advise(adapters, layout, cluster) if one.rule == "all-reduce-time")
    assert found.numbers["bytes"] == 4 * 16 * 32 * 2 * (4096 + 4096)  # q and v of 32 blocks


class TestLinks:
    def test_c14_the_penalty_is_computed(self) -> None:
        """7B on 8 GPUs over PCIe is far from 10 to 15 %; with accumulation it shrinks."""
        layout, cluster = parse("fsdp", 8), rented("h100", 8)
        found = nvlink_or_pcie(job(), layout, cluster)
        times = [
            wb.step_time(job(), layout, replace(cluster, link=link)).step_seconds
            for link in ("nvlink", "pcie")
        ]
        assert found.numbers["penalty_share"] == pytest.approx(times[1] / times[0] - 1)
        assert found.numbers["penalty_share"] > 0.15
        ddp = parse("ddp", 8)
        once, often = (
            nvlink_or_pcie(job("gpt2", accumulate=count), ddp, cluster).numbers["penalty_share"]
            for count in (1, 32)
        )
        assert often < once

    def test_parts_without_a_link_say_so(self) -> None:
        found = nvlink_or_pcie(job("gpt2"), parse("ddp", 4), rented("l40s", 4))
        assert found.verdict == "NVIDIA L40S 48GB has no NVLink: PCIe is all there is."
        assert found.numbers["nvlink_bytes_per_second"] is None
        found = nvlink_or_pcie(job("gpt2"), parse("single", 1), rented("h100", 1))
        assert found.verdict.startswith("One GPU per node")

        assert "over NVLink" not in nvlink_or_pcie(*self.on("l40s", 4)).reason

    @staticmethod
    def on(card: str, gpus: int, link: str = "catalog"):
        return job("gpt2"), parse("ddp", gpus), rented(card, gpus, link=link)

    def test_a_bridge_is_no_link_between_more_cards_than_it_joins(self) -> None:
        for card, gpus in (("rtx-3090", 5), ("a100-pcie-80", 8), ("h200-nvl", 8)):
            found = nvlink_or_pcie(*self.on(card, gpus))
            assert f"does not join {gpus} x" in found.verdict
            assert "over NVLink" not in found.reason
            assert found.numbers["penalty_share"] is None
            assert found.numbers["nvlink_step_seconds"] is None
            times = all_reduce_time(1e9, rented(card, gpus)).numbers
            assert times["nvlink_seconds"] is None
            assert times["pcie_seconds"]

    def test_a_bridge_is_counted_where_someone_says_so(self) -> None:
        found = nvlink_or_pcie(*self.on("rtx-3090", 2))
        assert found.verdict.startswith("No bridge is counted; with one (--link nvlink) a step")
        slow, fast = (found.numbers[f"{link}_step_seconds"] for link in ("pcie", "nvlink"))
        assert wb.step_time(*self.on("rtx-3090", 2)).step_seconds == pytest.approx(slow)
        assert f"takes {1 - fast / slow:.0%} less" in found.verdict
        assert "Without NVLink" in nvlink_or_pcie(*self.on("rtx-3090", 2, "nvlink")).verdict

    def test_c4_gradients_take_milliseconds(self) -> None:
        """14 GB on 8 H100: 67 ms at 367 GB/s (ring), about half a second and more over PCIe 5."""
        found = all_reduce_time(14e9, rented("h100", 8))
        assert found.numbers["nvlink_seconds"] == pytest.approx(0.067, rel=0.15)
        assert 0.4 < found.numbers["pcie_seconds"] < 1.0
        assert found.numbers["kilobyte_seconds"] < 100e-6
        assert "1.75x the bytes" in found.reason
        with pytest.raises(UsageError, match="at least 2 GPUs"):
            all_reduce_time(14e9, rented("h100", 1))

    def test_c34_full_recompute_is_a_third_more_compute(self) -> None:
        found = recompute_cost(job(micro_batch=2), parse("fsdp", 8), rented("h100", 8))
        assert found.numbers["full_flops_ratio"] == pytest.approx(4 / 3, abs=0.09)
        assert found.numbers["selective_flops_ratio"] < 1.1
        assert 0.1 < found.numbers["full_time_share"] < 0.4
        assert found.numbers["full_saved_bytes"] > 20 * 2**30
        assert "GiB less memory; selective" in found.verdict

    def test_recomputing_may_save_no_memory(self) -> None:
        found = recompute_cost(job("llama-3-8b", seq_len=2048), parse("ddp", 8), rented("h100", 8))
        assert found.numbers["full_saved_bytes"] < 0
        assert found.verdict.count("no less memory") == 2


class TestLearningRate:
    def test_linear_for_sgd(self) -> None:
        """Goyal 2017: 0.1 at 256 becomes 3.2 at 8192, over 5 epochs."""
        found = learning_rate_advice(scaled_rate(0.1, 256, 8192, "sgd"))
        assert found.numbers["rate"] == pytest.approx(3.2)
        assert found.numbers["rule"] == "linear"
        assert "5 epochs" in found.steps[0]

    def test_square_root_for_adam(self) -> None:
        """Malladi 2022: k = 4 doubles the rate; 1 - beta grows k times."""
        new = scaled_rate(3e-4, 0.5e6, 2e6, betas=(0.9, 0.95))
        assert new.rate == pytest.approx(6e-4)
        assert (new.beta1, new.beta2) == pytest.approx((0.6, 0.8))
        assert new.warmup_steps == 40  # 2 / (1 - 0.95)
        assert scaled_rate(1e-3, 1, 2, betas=(0.9, 0.999)).warmup_steps == 2000
        assert scaled_rate(6e-4, 2e6, 0.5e6).rate == pytest.approx(3e-4)

    def test_c30_the_same_global_batch_leaves_it_alone(self) -> None:
        few = job(accumulate=8).tokens_per_step(1)
        many = job(accumulate=1).tokens_per_step(8)
        found = learning_rate_advice(scaled_rate(3e-4, few, many))
        assert found.verdict == "Leave the learning rate at 0.0003."
        assert found.corrects == "multiply the learning rate by the number of GPUs"
        assert found.steps == ()

    def test_bad_input(self) -> None:
        with pytest.raises(UsageError, match="new_batch must be above 0"):
            scaled_rate(1e-3, 1, 0)
        with pytest.raises(UsageError, match="betas"):
            scaled_rate(1e-3, 1, 2, betas=(0.9, 1.0))


def test_batch_limits() -> None:
    """Kaplan 2020: 2.1e8 x loss^-4.8 tokens; twice the data at the critical batch."""
    assert critical_batch_tokens(3.0) == pytest.approx(1.0766e6, rel=1e-3)
    assert critical_batch_tokens(2.0) > 6 * critical_batch_tokens(3.0)
    layout, cluster = parse("fsdp", 8), rented("h100", 8)
    fine = batch_limits(job(), layout, cluster)
    assert "below the critical one" in fine.verdict
    assert fine.numbers["global_batch_tokens"] == 8 * 4096
    assert fine.numbers["tokens_over_least"] == pytest.approx(1 + 32768 / 1.0766e6, rel=1e-3)
    assert (
        fine.numbers["largest_micro_batch"] == wb.largest_micro_batch(job(), layout, cluster).value
    )
    large = batch_limits(job(accumulate=64), layout, cluster)
    assert "above the critical one" in large.verdict


class TestMachine:
    def offer(self, **options) -> Offer:
        given = {
            "provider": "cudo",
            "name": "8xh100",
            "gpu": "h100",
            "gpus": 8,
            "usd_per_hour": 15.32,
            "cpu_cores": 64,
            "memory_bytes": 128 * 10**9,
            "source": "catalog",
            "date": "2026-01-01",
        }
        return Offer(**given | options)

    def test_c32_host_memory_follows_offload_and_checkpoint(self) -> None:
        """Cudo's node of C21: 16 GB per GPU are enough to train, not to gather or to offload."""
        plain = instance_sanity(job(), parse("fsdp", 8), self.offer())
        assert plain.verdict == "Cores, memory and network suffice."
        assert plain.numbers["gathered_checkpoint_bytes"] == 12 * job().model.parameters
        assert plain.steps[0].startswith("Save sharded")
        layout = parse("fsdp", 8).with_options(offload=("optimizer", "parameters"))
        moved = instance_sanity(job(), layout, self.offer())
        on_host = wb.training_memory(job(), layout, rented("h100", 8)).host_bytes or 0
        needed = on_host + 8 * RANK_HOST_BYTES
        assert needed > 16 * job().model.parameters  # gradients are there, too
        assert moved.verdict == (
            f"Too little: 119 GiB of host memory, {needed / 2**30:.0f} needed."
        )
        large = self.offer(memory_bytes=2 * 2**40)
        assert instance_sanity(job(), layout, large).steps == ()

    def test_cores_from_the_measured_input(self) -> None:
        layout = parse("fsdp", 8)
        alone = wb.step_time(job(), layout, rented("h100", 8)).step_seconds
        slow = Conditions(input_seconds=8.5 * alone, source="measured")
        found = instance_sanity(job(), layout, self.offer(), conditions=slow)
        assert found.numbers["cores_per_gpu_needed"] == 10
        assert "8 cores per GPU, 10 needed" in found.verdict
        few = instance_sanity(job(), parse("fsdp", 8), self.offer(cpu_cores=16))
        assert "2 cores per GPU, 4 needed" in few.verdict

    def test_unknown_is_said_and_never_0(self) -> None:
        vague = self.offer(cpu_cores=None, memory_bytes=None)
        found = instance_sanity(job(), parse("fsdp", 16), vague, nodes=2)
        assert found.verdict == (
            "What is known suffices. Unknown: cores per GPU, GiB of host memory, "
            "Gbit/s per GPU between nodes."
        )
        assert found.numbers["cores_per_gpu"] is None
        ports = self.offer(network=Network.parse("100 ethernet"))
        found = instance_sanity(job(), parse("fsdp", 16), ports, nodes=2)
        assert "12.5 Gbit/s per GPU between nodes, 25 needed" in found.verdict
        with pytest.raises(UsageError, match="one rank per GPU"):
            instance_sanity(job(), parse("fsdp", 4), self.offer())


def test_c35_checkpoint_interval() -> None:
    found = checkpoint_advice(60, 8)
    assert found.numbers["young_seconds"] / 60 == pytest.approx(31, abs=0.1)
    assert found.verdict == "Save every 30 min 19 s."
    assert found.numbers["lost_share"] == pytest.approx(0.0675, abs=0.002)  # C/t + t/(2M) = 6.5 %
    with pytest.raises(UsageError, match="above 0"):
        checkpoint_advice(0, 8)
    with pytest.raises(UsageError, match="above 0"):
        checkpoint_advice(60, 0)


def test_advise_asks_every_rule_that_it_can() -> None:
    found = advise(job(), parse("fsdp", 8), rented("h100", 8))
    assert [one.rule for one in found] == [
        *("more-gpus", "memory-rubric", "batch-limits", "recompute-cost"),
        *("ddp-or-fsdp", "nvlink-or-pcie", "all-reduce-time", "zero-savings"),
    ]
    assert len(advise(job("gpt2"), parse("single", 1), rented("h100", 1))) == 4
    for one in found:
        assert_complete(one)
    with pytest.raises(UsageError, match="not in the catalog"):
        advise(job(), parse("single", 1), wb.Cluster(name="this host"))


def test_a_rule_says_whether_the_job_is_fine_and_what_to_do_if_not() -> None:
    def rules(work: wb.Workload, layout: wb.Strategy, **facts: float) -> dict[str, Advice]:
        cluster = rented("h100", layout.world_size)
        known = RunFacts(offer=known_offer(cluster), **facts)
        return {one.rule: one for one in advise(work, layout, cluster, known)}

    fine = rules(job("gpt2", micro_batch=8, accumulate=8), parse("ddp", 8), rate=3e-4)
    assert {name for name, one in fine.items() if one.holds is False} == set()
    assert fine["more-gpus"].next.startswith("Use one GPU;")
    assert fine["learning-rate"].holds
    assert fine["instance-sanity"].next == ""
    large = rules(
        job("llama-3-70b", accumulate=64), parse("ddp", 8), rate=3e-4, rate_batch_tokens=5e5
    )
    failing = {name for name, one in large.items() if one.holds is False}
    assert {"more-gpus", "memory-rubric", "batch-limits", "recompute-cost"} <= failing
    assert "learning-rate" in failing
    assert all(large[name].next for name in failing - {"ddp-or-fsdp"})
    assert "14 GPUs" in large["memory-rubric"].next
    seven = rules(job(), parse("ddp", 8))
    assert (seven["ddp-or-fsdp"].holds, seven["ddp-or-fsdp"].next) == (False, "--strategy fsdp")
    assert rules(job(), parse("fsdp", 8))["ddp-or-fsdp"].holds
    assert rules(job(), parse("zero3", 8))["ddp-or-fsdp"].holds is None


def assert_complete(one: Advice) -> None:
    """Every rule states condition, evidence, numbers and source, and prints no raw value."""
    for text in (one.verdict, one.reason, one.condition, one.evidence, one.source):
        assert len(text) > 3
        assert "None" not in text
        assert "nan" not in text.split()
    assert one.verdict.endswith(".")
    assert one.numbers
    json.dumps(one.document())
    assert str(one).startswith(one.verdict)
