"""What run.json keeps of a job gives the same job back, of this version and of earlier ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

import workbench as wb
from workbench.describe import catalog
from workbench.describe.job import Job
from workbench.describe.recorded import from_document


def record(job: Job, **more: Any) -> dict[str, Any]:
    """The part of run.json that describes a job, through JSON."""
    cluster = job.cluster
    assert isinstance(cluster, wb.Cluster)
    found = {
        "run": "some-run",
        "script": "/home/me/train.py",
        "device": cluster.device,
        "cluster": asdict(cluster),
        "workload": asdict(job.workload),
        "strategy": job.strategy.options(),
    }
    return json.loads(json.dumps(found | more))


@pytest.mark.parametrize("model", [one.id for one in catalog.every_published()])
def test_every_model_comes_back(model: str) -> None:
    job = Job.of(model, gpu="h100", gpus=8, strategy="fsdp", network="8x400 infiniband")
    assert Job.recorded(record(job)) == job


def test_every_accelerator_comes_back() -> None:
    for gpu in catalog.gpus():
        cluster = wb.Cluster.rented(gpu, gpus=2, usd_per_hour=3.5)
        assert from_document(wb.Cluster, json.loads(json.dumps(asdict(cluster)))) == cluster


def test_options_come_back_and_estimates_are_the_same() -> None:
    job = Job.of(
        "llama-3.2-1b",
        gpu="a100",
        gpus=4,
        strategy="fsdp2-tp2",
        lora_rank=8,
        offload="optimizer,parameters",
        kernels="megatron",
        recompute="full",
    )
    again = Job.recorded(record(job))
    assert again == job
    assert wb.training_memory(again) == wb.training_memory(job)
    assert Job.recorded(record(job, device="cpu")).cluster == "cpu"


def test_a_record_of_another_version_is_read_as_far_as_it_goes() -> None:
    job = Job.of("gpt2", gpu="a100")
    document = record(job)
    document["workload"] |= {"unheard_of": 1}
    del document["workload"]["loss_chunks"]
    document["cluster"]["unheard_of"] = {"a": [1]}
    assert Job.recorded(document) == job


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"workload": None}, "train.py was launched without a job"),
        ({"workload": {"seq_len": 128}}, "does not describe its job: .*model"),
        ({"strategy": None}, "does not describe its job"),
        ({"cluster": None}, "does not describe its job"),
    ],
)
def test_what_is_missing_has_a_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(wb.UsageError, match=reason):
        Job.recorded(record(Job.of("gpt2", gpu="a100"), **change))
