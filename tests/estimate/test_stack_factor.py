"""What one measured run of a stack says about the others: factor, range, memory, what applies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import workbench as wb
from tests.estimate.sample_stack import job, measured, stack
from workbench.describe import Cluster
from workbench.estimate.stack_factor import NOISE, UNTOLD
from workbench.estimate.timing import CALIBRATION
from workbench.planning import plan_on
from workbench.planning.plans import Plan

ONE = 1 / (1 + NOISE)
"""How far one measurement counts."""


def factor(*measurements: Any, **options: Any) -> float:
    plain, known = job(**options), job(stack(*measurements), **options)
    return wb.step_time(known).step_seconds / wb.step_time(plain).step_seconds


def test_a_measured_step_corrects_another_size_layout_and_gpu_of_the_generation() -> None:
    for options in (
        {},
        {"seq_len": 8192, "micro_batch": 2},
        {"strategy": "dp2-tp4", "recompute": "full"},
        {"gpu": "h200", "gpus": 4},
    ):
        assert factor(measured(), **options) == pytest.approx(1.25**ONE)


def test_it_is_a_part_of_its_own_with_its_source_and_a_narrower_range() -> None:
    plain, step = wb.step_time(job()), wb.step_time(job(stack(measured())))
    assert step.parts[CALIBRATION] == pytest.approx(step.step_seconds - plain.step_seconds)
    assert {name: step.parts[name] for name in plain.parts} == plain.parts
    assert plain.low < step.low < 1 < step.high < plain.high
    assert step.high == pytest.approx(plain.high ** (1 - ONE / (1 + UNTOLD)) ** 0.5)
    assert step.assumptions[-1] == (
        f"stack calibration: step time x {1.25**ONE:.2f}, from run run-a, {measured().date} "
        "(measured 1.25 x its prediction)"
    )
    quicker = wb.step_time(job(stack(measured(step_ratio=0.8))))
    assert quicker.parts[CALIBRATION] < 0
    assert quicker.step_seconds == pytest.approx(sum(quicker.parts.values()))


@pytest.mark.parametrize(
    ("unlike", "why"),
    [
        ({"trainer": "torchtune"}, "of another trainer (torchtune)"),
        ({"trained": "lora"}, "it trained lora"),
        ({"has_experts": True}, "only one of the two models has experts"),
        ({"device": "cpu", "arch": ""}, "of another kind of device (cpu)"),
    ],
)
def test_another_stack_does_not_apply_and_says_so(unlike: dict[str, Any], why: str) -> None:
    plain, step = wb.step_time(job()), wb.step_time(job(stack(measured(**unlike), is_named=True)))
    assert (step.step_seconds, step.low, step.high) == (plain.step_seconds, plain.low, plain.high)
    assert CALIBRATION not in step.parts
    assert step.assumptions[-1].endswith(f"does not apply: {why}")


@pytest.mark.parametrize(
    ("unlike", "why"),
    [
        ({"arch": "Ampere"}, "GPU generation Ampere, so it counts less"),
        ({"precision": "fp8"}, "precision fp8, so it counts less"),
        ({"arch": "Ampere", "precision": "fp16"}, "GPU generation Ampere, precision fp16, so"),
    ],
)
def test_another_generation_or_precision_counts_less_and_widens(
    unlike: dict[str, Any], why: str
) -> None:
    own, other = (wb.step_time(job(stack(one))) for one in (measured(), measured(**unlike)))
    plain = wb.step_time(job())
    assert plain.step_seconds < other.step_seconds < own.step_seconds
    assert plain.low < other.low < own.low
    assert own.high < other.high < plain.high
    assert why in other.assumptions[-1]


def test_releases_are_told_apart_where_both_are_known() -> None:
    old = measured(release="2024-12")
    newer = replace(stack(old), release="2025-06")
    known = wb.step_time(job(newer)).step_seconds / wb.step_time(job()).step_seconds
    assert 1 < known < factor(old)
    assert factor(old) == pytest.approx(1.25**ONE)  # the job does not name its own


def test_another_script_counts_less_where_no_trainer_is_named() -> None:
    own = replace(stack(measured(script="train.py")), script="train.py")
    other, unknown = replace(own, script="tune.py"), replace(own, script="")
    plain = wb.step_time(job()).step_seconds
    steps = [wb.step_time(job(one)).step_seconds / plain for one in (own, unknown, other)]
    assert steps == pytest.approx([1.25**ONE, 1.25**ONE, 1.25 ** (ONE / 2)])


def test_several_runs_weigh_more_and_repeats_are_their_median() -> None:
    several = [measured(f"run-{name}", step_ratio=1.25) for name in "abcd"]
    assert factor(*several[:1]) < factor(*several[:2]) < factor(*several) < 1.25
    repeats = [measured(f"r{n}", layout="same", step_ratio=r) for n, r in enumerate((1.2, 9, 1.2))]
    assert factor(*repeats) == pytest.approx(1.2**ONE)


def test_an_odd_configuration_does_not_lead_the_others_astray() -> None:
    agreeing = [measured(f"run-{name}", layout=name, step_ratio=1.1) for name in "abcd"]
    odd = measured("run-odd", layout="odd", step_ratio=2.0)
    without, beside, alone = factor(*agreeing), factor(*agreeing, odd), factor(odd)
    assert 1.08 < without < beside < 1.14
    assert beside < alone
    assert alone == pytest.approx(2.0**ONE)  # nothing says that the layout is odd, not the stack


def test_what_does_not_apply_pushes_nothing_out() -> None:
    others = [measured(f"cpu-{number}", device="cpu", arch="") for number in range(30)]
    assert factor(measured(), *others) == pytest.approx(1.25**ONE)


def test_memory_is_corrected_where_it_is_not_book_keeping() -> None:
    plain = wb.training_memory(job())
    states = sum(plain.parts[one] for one in ("parameters", "optimizer states"))
    about = {"tensors_bytes": plain.allocated_bytes, "states_bytes": states, "step_ratio": None}
    about |= {"predicted_bytes": plain.allocated_bytes, "peak_bytes": 1.3 * plain.allocated_bytes}
    known = stack(measured(**about))
    memory = wb.training_memory(job(known))
    assert (
        1.1 < memory.allocated_bytes / plain.allocated_bytes < 1.2
    )  # 30 % may be the layout's own
    assert memory.parts[CALIBRATION] == memory.total_bytes - plain.total_bytes
    assert "from run run-a" in memory.assumptions[-1]
    assert memory.low == pytest.approx(1 / memory.high)
    assert memory.high / memory.low == pytest.approx(plain.high / plain.low)
    unnamed = [
        wb.training_memory(one.workload, one.strategy, one.cluster) for one in (job(), job(known))
    ]
    assert unnamed[0].high / unnamed[0].low > unnamed[1].high / unnamed[1].low
    # A job of many states is touched less than one of many activations.
    shares: list[float] = []
    for options in ({"optimizer": "adamw", "strategy": "zero1"}, {"micro_batch": 16}):
        before = wb.training_memory(job(gpu=None, cpu=False, **options))
        after = wb.training_memory(job(known, gpu=None, cpu=False, **options))
        shares.append(after.allocated_bytes / before.allocated_bytes)
    assert 1 < shares[0] < 1.15 < shares[1] < 1.3
    smaller = stack(measured(**{**about, "peak_bytes": 0.8 * plain.allocated_bytes}))
    own, unknown, other = (
        wb.training_memory(job(smaller, gpu=gpu)).parts[CALIBRATION]
        for gpu in ("h100", None, "a100-sxm-80")
    )
    assert own < other < 0
    assert unknown == other  # what is not known to apply takes little away
    larger = [wb.training_memory(job(known, gpu=gpu)) for gpu in ("h100", None, "a100-sxm-80")]
    assert [one.parts[CALIBRATION] > larger[2].parts[CALIBRATION] for one in larger] == [
        *(True, True, False),
    ]


def test_a_plan_is_of_the_same_layouts_with_corrected_steps() -> None:
    def best(gpu: str, *measurements: Any) -> Plan:
        work = job(stack(*measurements) if measurements else None).workload
        return plan_on(Cluster.rented(gpu, 8), work, tokens=1e9, global_batch=64).plans[0]

    for gpu, least, most in (("h100", 1.17, 1.18), ("a100-sxm-80", 1.05, 1.1)):
        plain, known = best(gpu), best(gpu, measured())
        assert (known.strategy, known.workload.micro_batch) == (
            plain.strategy,
            plain.workload.micro_batch,
        )
        assert least < known.step.step_seconds / plain.step.step_seconds < most
