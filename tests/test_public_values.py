"""What a Python shell shows of the values that the public functions return."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from workbench.describe import Cluster, Model, Strategy, Workload

_NAMES = {kind.__name__: kind for kind in (Cluster, Model, Strategy, Workload)}


@pytest.fixture(scope="module")
def job() -> wb.Job:
    return wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", seq_len=4096)


def test_described_values_show_what_was_chosen_and_read_back(job: wb.Job) -> None:
    strategy = Strategy.parse("fsdp", 8).with_options(recompute="full", state_dict="full")
    assert "reshard" not in repr(strategy)  # at its default
    assert len(repr(job.workload)) < 200
    for value in (job.workload, job.workload.model):
        assert eval(repr(value), dict(_NAMES)) == value
    assert repr(Strategy.parse("fsdp", 8)) == "Strategy(name='fsdp', dp_shard=8)"
    assert len(repr(job)) < 3000


def test_estimates_and_plans_show_their_text(job: wb.Job) -> None:
    plans = wb.plan(job.workload, tokens=1e9)
    assert plans.best is not None
    memory, step = wb.training_memory(job), wb.step_time(job)
    for value in (memory, step, plans, plans.best, plans.best.cost, plans.rejected):
        assert repr(value) == str(value)
        assert len(repr(value)) < 3000, type(value)
    assert "GiB" in repr(memory)
    assert "$" in repr(plans.best)


def test_answers_in_a_tuple_are_one_line_each(job: wb.Job) -> None:
    answers = (*wb.switches(job), *wb.fewest_gpus(job), *wb.smallest_gpu(job))
    answers += (wb.largest_micro_batch(job), wb.longest_sequence(job))
    assert max(len(repr(answer)) for answer in answers) < 300
    assert not any("\n" in repr(answer) for answer in answers)
    assert max(len(repr(offer)) for offer in wb.offers()) < 700


def test_a_request_is_short(tmp_path: Path) -> None:
    request = wb.request("gpt", store=tmp_path)
    assert repr(request) == f"Request({request.name!r}: gpt.py, ddp, 2 processes)"
