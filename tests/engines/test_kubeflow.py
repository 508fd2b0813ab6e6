"""Kubeflow's own models, asked about our TrainJobs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.sample_jobs import job, rented
from tests.engines.validators import ask, require
from workbench.engines.exporting import export
from workbench.engines.job import EngineJob
from workbench.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.full]

READ = """
from kubeflow_trainer_api import models
answers = {}
for name, document in asked.items():
    try:
        read = models.TrainerV1alpha1TrainJob.from_dict(document).to_dict()
        answers[name] = read if read == document else f"not kept: {read}"
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


def _jobs() -> dict[str, EngineJob]:
    """Without what a cluster that one has already knows nothing of."""
    dropped = {"spot", "max_usd_per_hour", "provider", "region", "idle_minutes", "disk_gb"}
    jobs: dict[str, EngineJob] = {}
    for name, one in rented("pvc:ours").items():
        values = {
            field.name: getattr(one, field.name)
            for field in fields(one)
            if field.name not in dropped
        }
        jobs[name] = EngineJob(**values | {"usd_per_hour": one.price})
    return jobs


def test_kubeflow_keeps_every_field_and_refuses_wrong_ones(tmp_path: Path) -> None:
    """Its models drop fields they do not know, so what comes back must be what went in."""
    require("kubeflow")
    exports = {name: export(one, "kubeflow").files for name, one in _jobs().items()}
    right: dict[str, Any] = {
        name: yaml.safe_load(files["trainjob.yaml"]) for name, files in exports.items()
    }
    made = export(_jobs()["everything"], "kubeflow")
    assert any(one.startswith("kubectl apply --server-side -f ") for one in made.next)
    one = right["everything"]
    spec = one["spec"]
    wrong = {
        "type": {**one, "spec": {**spec, "activeDeadlineSeconds": "soon"}},
        "key": {**one, "spec": {**spec, "num_nodes": 2}},
        "number": {**one, "spec": {**spec, "trainer": {**spec["trainer"], "numNodes": "two"}}},
    }
    answers = ask("kubeflow", READ, {**right, **wrong}, tmp_path)
    for name, answer in answers.items():
        assert isinstance(answer, dict) == (name not in wrong), (name, answer)
    assert answers["everything"]["spec"]["activeDeadlineSeconds"] == 45_000
    for name, files in exports.items():
        mapped = yaml.safe_load(files["files.yaml"])["data"]
        volume = right[name]["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"][
            "spec"
        ]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"][0]
        keys = {item["key"]: item["path"] for item in volume["configMap"]["items"]}
        assert set(keys) == set(mapped)
        assert {"launch.sh", "code/gpt.py"} <= set(keys.values())


def test_spot_is_the_clusters_affair() -> None:
    with pytest.raises(UsageError, match="node pools"):
        export(job(gpu="h100", spot=True, checkpoint_uri="pvc:x"), "kubeflow")
    with pytest.raises(UsageError, match="pvc:NAME"):
        export(job(gpu="h100", checkpoint_uri="s3://x/y"), "kubeflow")


def test_amd_gpus_need_an_image_with_rocm() -> None:
    said = {
        image: " ".join(export(job(processes_per_node=8, gpu=gpu, image=image), "kubeflow").notes)
        for gpu, image in (("mi300x", None), ("mi300x", "rocm/pytorch:latest"))
    }
    assert "--image rocm/pytorch" in said[None]
    assert "CUDA" not in said["rocm/pytorch:latest"]
