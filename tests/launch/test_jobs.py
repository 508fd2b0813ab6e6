"""One value travels: what is planned is launched, what was launched is estimated again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.describe.job import Job
from workbench.estimate.card import CPU_IMPORTS_BYTES
from workbench.estimate.cost import RunPlan
from workbench.estimate.parts import CONTEXT
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.resume.run_options import changed, options_of
from workbench.launching.run import Run
from workbench.launching.start.start import prepare
from workbench.planning import plan_on
from workbench.planning.plans import Plan
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord

SMALL = ("--size", "1", "--seq-len", "32", "--steps", "2")
CARDS = wb.Cluster.rented("rtx-4090", gpus=2, usd_per_hour=1.5)


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A described machine in the place of this host: what is asked for is checked, not started."""
    module = sys.modules["workbench.launching.prepare.build_request"]
    monkeypatch.setattr(module, "detect_host", lambda: replace(CARDS, usd_per_hour=None))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("import sys; print(sys.argv)\n")
    return path


def small(**options: Any) -> Job:
    """The job of the recipe gpt with few arguments, on CPU."""
    job = wb.request("gpt", SMALL, cpu=True, **options).job
    assert job is not None
    return job


def prepared(target: str | Path | Job, store: Path, **options: Any) -> Run:
    """A run that is prepared and not started."""
    return Run(prepare(wb.request(target, **options, store=store))[0])


def best(workload: wb.Workload) -> Plan:
    found = plan_on(CARDS, workload, run=RunPlan(tokens=10**8, checkpoint_seconds=1.0)).best
    assert found is not None
    return found


def test_what_is_planned_is_launched_unchanged(two_cards: None) -> None:
    found = best(small(strategy="single").workload)
    request = wb.request(found.job)
    assert request.job is not None
    assert (request.recipe, request.device) == ("gpt", "cuda")
    assert request.job.workload == found.job.workload
    assert request.job.strategy == found.job.strategy
    assert request.predicted is not None
    assert request.predicted == wb.training_memory(found.job)
    assert request.usd_per_hour == 1.5  # the plan's price, where this host says none


def test_what_was_launched_is_estimated_unchanged(tmp_path: Path) -> None:
    job = small(strategy="fsdp", processes=2, options={"recompute": "full"})
    run = prepared(job, tmp_path)
    assert run.job == job
    assert run.why_no_job() == ""
    assert wb.training_memory(run.job).parts == wb.training_memory(job).parts
    assert wb.request(run.job).job == job


def test_a_script_is_predicted_by_the_job_that_describes_it(tmp_path: Path, script: Path) -> None:
    job = Job.of("gpt2", gpu="h100", gpus=2, strategy="fsdp", seq_len=256, micro_batch=4)
    run = prepared(script, tmp_path, job=job, cpu=True)
    document = json.loads((run.directory / "run.json").read_text())
    assert document["tokens_per_step"] == 2 * 4 * 256
    assert document["predicted"]["memory"]["parts"]
    assert run.job == replace(job, cluster="cpu")
    options = options_of(run._paths, RunRecord.of(document))
    assert options.job is not None
    again, dropped = changed(RunRecord.of(document), options, {"processes": 4})
    assert not dropped
    assert again.job is not None
    assert again.job.workload == job.workload
    assert wb.request(script, **_keywords(again)).workload == job.workload


def _keywords(options: LaunchOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("job", "strategy", "processes", "cpu")}


def test_what_is_given_beside_a_job_counts(tmp_path: Path) -> None:
    job = small(strategy="ddp", processes=2)
    request = wb.request(job, strategy="fsdp", store=tmp_path)
    assert request.job is not None
    assert (request.strategy.name, request.processes) == ("fsdp", 2)
    assert request.job.workload == job.workload


def test_a_run_goes_on_as_another_job(tmp_path: Path) -> None:
    job = small(strategy="ddp", processes=2)
    record = read_record(prepared(job, tmp_path)._paths)
    other = small(strategy="fsdp", processes=4)
    options, _ = changed(record, LaunchOptions(strategy=job.strategy), {"job": other})
    assert (options.strategy, options.processes, options.cpu) == (other.strategy, 4, True)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: wb.request(Job.of("gpt2", cpu=True)), "No recipe trains GPT-2 small"),
        (lambda: wb.request("vision", job=small()), "its model is not described"),
        (lambda: wb.request("gpt", ["--seq-len", "16"], job=small()), "seq len 16, not 32"),
        (
            lambda: wb.request(replace(small(), cluster=wb.Cluster.rented("h100", gpus=1))),
            r"needs 1 x h100-sxm.*rehearse on CPU ranks",
        ),
    ],
)
def test_another_training_than_the_described_one_is_refused(
    ask: Callable[[], object], reason: str, two_cards: None
) -> None:
    with pytest.raises(wb.UsageError, match=reason):
        ask()


def test_a_run_of_any_script_has_no_job_and_says_why(tmp_path: Path, script: Path) -> None:
    run = prepared(script, tmp_path, cpu=True)
    assert run.job is None
    assert "mine.py was launched without a job" in run.why_no_job()


def test_a_rank_holds_deepspeed_where_accelerate_imports_it(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    context = dict[str, int]()
    for strategy in ("ddp", "fsdp", "zero2"):
        options = {"strategy": strategy, "processes": 2, "cpu": True, "store": tmp_path}
        predicted = wb.request("gpt", SMALL, **options).predicted
        assert predicted is not None
        context[strategy] = predicted.parts[CONTEXT]
    imports = CPU_IMPORTS_BYTES["deepspeed"]
    assert context["fsdp"] == context["zero2"] == context["ddp"] + imports


def test_a_script_is_predicted_as_the_trainer_that_it_imports(script: Path, tmp_path: Path) -> None:
    job = Job.of("gpt2", cpu=True, gpus=2, strategy="ddp", seq_len=128)
    script.write_text("from trl import SFTTrainer\n")
    found = wb.request(script, job=job, cpu=True, store=tmp_path)
    assert found.trainer is not None
    assert found.trainer.note.startswith("Assuming TRL, which the script imports: ")
    assert found.workload == job.with_trainer("trl").workload
    assert found.strategy == job.strategy  # checkpointing is TRL's own: no library is told
    assert found.predicted is not None
    assert found.trainer.note in found.predicted.assumptions
    parts = dict(wb.training_memory(job.with_trainer("trl")).parts)
    parts[CONTEXT] = found.predicted.parts[CONTEXT]  # the launch knows what this environment loads
    assert parts[CONTEXT] > wb.training_memory(job).parts[CONTEXT]
    assert found.predicted.parts == parts
    named = wb.request(script, job=job.with_trainer("torchtune"), cpu=True, store=tmp_path)
    assert named.trainer is not None
    assert named.trainer.trainer.name == "torchtune"
    run = Run(prepare(found)[0])
    assert run.document["trainer"]["name"] == "trl"
    assert run.document["trainer"]["imported"] is True


@pytest.mark.parametrize("trainer", ["torchtitan", "litgpt"])
def test_a_named_trainer_narrows_the_range_of_a_launch_too(
    trainer: str, script: Path, tmp_path: Path
) -> None:
    job = wb.Job.of("gpt2", cpu=True, gpus=2, strategy="ddp", trainer=trainer)
    expected = wb.training_memory(job)
    predicted = wb.request(str(script), job=job, store=tmp_path).predicted
    assert predicted is not None
    assert (predicted.low, predicted.high) == (expected.low, expected.high)
    assert "the trainer is not named" not in " ".join(predicted.assumptions)


def test_a_planned_job_is_launched_without_what_its_trainer_does_by_itself(
    two_cards: None, script: Path
) -> None:
    described = wb.Job.of("llama-3.2-1b", gpu="rtx-4090", gpus=2, trainer="trl", lora_rank=8)
    found = plan_on(CARDS, described, run=RunPlan(tokens=10**8, checkpoint_seconds=1.0)).best
    assert found is not None
    assert wb.request(str(script), job=found.job).strategy == found.strategy
