"""A plan that is written as JSON and read back is the same job; one that cannot be is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from workbench.cli.plan import answer, document
from workbench.cli.plan_values import PlanAnswer, PlanOptions
from workbench.cli.rehearse_values import RehearseOptions, rehearsed
from workbench.describe.hardware import Cluster
from workbench.engines.export_request import ExportRequest
from workbench.engines.exporting import export
from workbench.engines.jobs import job_from_plan
from workbench.engines.planned import layout, planned_job
from workbench.engines.trainer_export import described
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time


def planned(**more: Any) -> tuple[PlanAnswer, dict[str, Any]]:
    given: dict[str, Any] = {"job": {"model": "llama-3-8b"}, "tokens": "1B", "gpu": ("h100",)}
    report = answer(PlanOptions(**given | more))
    return report, json.loads(json.dumps(document(report)))


@pytest.fixture(scope="module")
def own() -> tuple[PlanAnswer, dict[str, Any]]:
    return planned(gpus=8)


@pytest.mark.parametrize("trainer", [None, "transformers", "trl", "nanotron"])
def test_a_plan_read_back_is_the_job_that_was_planned(trainer: str | None) -> None:
    report, read = planned(job={"model": "llama-3-8b", "trainer": trainer}, gpus=8)
    beside = [entry["options"] | entry["trained"] for entry in read["plans"]]
    assert any(beside), "nothing that a strategy's name does not say"
    for entry, plan in zip(read["plans"], report.plans.plans, strict=True):
        assert layout(entry) == plan.strategy
        job = planned_job(entry, read)
        assert (job.workload, job.strategy) == (plan.workload, plan.trained)
        assert isinstance(job.cluster, Cluster)
        assert (job.cluster.nodes, job.cluster.network) == (plan.nodes, plan.cluster.network)
        assert training_memory(job).on_card_bytes == plan.memory.on_card_bytes
        own = training_memory(plan.job)
        assert (own.parts, own.low, own.high) == (
            plan.memory.parts,
            plan.memory.low,
            plan.memory.high,
        )
        assert step_time(plan.job).step_seconds == plan.step.step_seconds
        assert plan.job.launched == plan.strategy


def test_a_plan_is_rehearsed_and_exported_as_its_trainer_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    _, read = planned(job={"model": "llama-3-8b", "trainer": "transformers"}, gpus=8)
    file.write_text(json.dumps(read))
    rank = 1 + next(
        index
        for index, entry in enumerate(read["plans"])
        if entry["precision"] != read["workload"]["precision"]
    )
    entry = read["plans"][rank - 1]
    played = rehearsed(RehearseOptions(plan_file=file, rank=rank))
    assert played.notes == ()
    assert played.cost.step.step_seconds == pytest.approx(entry["step_seconds"])
    assert described(str(file), rank).workload.precision == entry["precision"]


def test_own_machines_have_no_provider(own: tuple[PlanAnswer, dict[str, Any]]) -> None:
    for entry in own[1]["plans"]:
        assert job_from_plan(entry, "gpt").provider is None
    made = export(ExportRequest(what="gpt", plan=own[1]["plans"][0]).engine_job(), "slurm")
    assert "--gpus-per-node=h100:8" in made.files["gpt-zero1.sbatch"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"nodes": 1.5}, "nodes must be a whole number"),
        ({"nodes": 3}, "8 GPUs are not so many on each of 3 machines"),
        ({"gpus": "8"}, "gpus must be a whole number"),
        ({"strategy": None}, "None is not a name"),
        ({"options": []}, "options are not an object"),
        ({"options": {"sequence_paralel": True}}, "Did you mean sequence_parallel"),
        ({"trained": 3}, "trained are not an object"),
    ],
)
def test_what_is_no_plan_is_refused_by_every_reader(
    change: Mapping[str, Any],
    reason: str,
    own: tuple[PlanAnswer, dict[str, Any]],
    tmp_path: Path,
) -> None:
    file, entry = tmp_path / "plans.json", own[1]["plans"][0] | change
    file.write_text(json.dumps(own[1] | {"plans": [entry]}))
    with pytest.raises(UsageError, match=reason):
        described(str(file))
    with pytest.raises(UsageError, match=reason):
        rehearsed(RehearseOptions(plan_file=file))
    if "trained" not in change:  # of what is estimated, not of what is started
        with pytest.raises(UsageError, match=reason):
            job_from_plan(entry, "gpt")


@pytest.mark.parametrize("price", [0, -5, float("nan")])
def test_a_price_that_cannot_be_is_refused(
    price: float, own: tuple[PlanAnswer, dict[str, Any]]
) -> None:
    with pytest.raises(UsageError, match="usd_per_hour must be above 0"):
        job_from_plan(own[1]["plans"][0] | {"usd_per_hour": price}, "gpt")


def test_who_rents_nothing_says_what_to_do_with_a_plan() -> None:
    _, read = planned(max_gpus=8)
    with pytest.raises(UsageError, match="plan for your machines: workbench plan --gpu G --gpus N"):
        export(job_from_plan(read["plans"][0], "gpt"), "slurm")
