"""A plan of a named trainer asks of each layout what that trainer makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import workbench as wb
from workbench.cli.plan import question
from workbench.cli.plan_values import PlanOptions
from workbench.describe.job import Job
from workbench.planning import plan_on
from workbench.planning.space import Space

SMALL = Space(most_tp=1, most_pp=1, most_cp=1, offload=False)


@pytest.mark.parametrize("trainer", ["transformers", "axolotl", "trl", "megatron-lm"])
def test_what_is_offered_fits_as_its_trainer_runs_it(trainer: str) -> None:
    cluster = wb.Cluster.rented("h100", gpus=8)
    asked = Job.of("llama-3-8b", cpu=True, seq_len=4096, trainer=trainer)
    plans = plan_on(cluster, asked, tokens=1e9, space=SMALL)
    assert plans.plans
    for plan in plans:
        strategy = plan.strategy
        job = Job.of(
            "llama-3-8b",
            gpu="h100",
            gpus=plan.gpus,
            seq_len=4096,
            trainer=trainer,
            strategy=strategy,
            recompute=strategy.recompute,
            recompute_parts=strategy.recompute_parts,
            offload=strategy.offload,
            micro_batch=plan.workload.micro_batch,
            accumulate=plan.workload.accumulate,
        )
        memory = wb.training_memory(job)
        assert memory.on_card_bytes == plan.memory.on_card_bytes
        assert memory.fits
        assert wb.step_time(job).step_seconds == pytest.approx(plan.step.step_seconds)


def test_two_trainers_are_two_questions() -> None:
    plain = PlanOptions(job={"model": "gpt2"}, tokens="1B")
    others = [replace(plain, job={**plain.job, "trainer": name}) for name in ("trl", "pytorch")]
    assert len({question(one) for one in (plain, *others)}) == 3
