"""Exports of described jobs and of runs on other machines: layout, its name, GPU and price."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from workbench.engines.export_request import export
from workbench.engines.jobs import job_from_run
from workbench.errors import UsageError
from workbench.store.layout import RunPaths


@pytest.fixture
def script(tmp_path: Path) -> str:
    """An empty script of the user's own."""
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("trainer", ["trl", "torchtitan", "axolotl", "torchtune"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_a_trainer_does_by_itself_is_told_to_no_library(
    trainer: str, strategy: str, script: str
) -> None:
    """As for a launch: the script recomputes by itself, and Accelerate is not told to."""
    job = wb.Job.of("gpt2", gpu="h100", gpus=8, strategy=strategy, trainer=trainer)
    exported = export(script, "slurm", job=job)
    assert exported.job.strategy == job.launched
    assert '"fsdp_activation_checkpointing": true' not in "".join(exported.files.values())


def test_a_described_job_brings_its_machines_and_their_price(script: str) -> None:
    job = wb.Job.of("gpt2", gpu="h100", gpus=8, nodes=2, strategy="ddp")
    assert isinstance(job.cluster, wb.Cluster)
    priced = replace(job, cluster=replace(job.cluster, usd_per_hour=20.0))
    limited = {"max_usd": 100.0, "checkpoint_uri": "/shared"}
    assert export(script, "slurm", job=priced, **limited).job.price == 2 * 20
    with pytest.raises(UsageError, match="needs the price"):
        export(script, "slurm", job=job, **limited)


def test_a_job_on_an_unknown_gpu_is_not_exported_as_cpu(script: str) -> None:
    job = wb.Job.of("gpt2", gpu="h100", gpus=8, strategy="ddp")
    with pytest.raises(UsageError, match="does not say on which GPU"):
        export(script, "slurm", job=replace(job, cluster="cuda"))
    on_cpu = wb.Job.of("gpt2", cpu=True, gpus=8, strategy="ddp")
    assert export(script, "slurm", job=on_cpu).job.gpu is None


@pytest.mark.parametrize(("gpu", "plugin"), [("h100", "nvidia"), ("mi300x", "amd")])
def test_kubernetes_is_asked_for_the_gpus_of_their_maker(gpu: str, plugin: str) -> None:
    exported = export("gpt", "kubeflow", gpu=gpu, processes_per_node=8)
    assert re.findall(r"(\S+)\.com/gpu: '8'", exported.files["trainjob.yaml"]) == [plugin]


def recorded(folder: Path, name: str, ranks: int) -> RunPaths:
    """A run of the recipe gpt on CPU with that strategy, as its record has it."""
    folder.mkdir()
    document: dict[str, object] = {
        "name": "small",
        "recipe": "expert_parallel" if "ep" in name else "gpt",
        "script": "gpt",
        "arguments": [],
        "device": "cpu",
        "strategy": wb.Strategy.parse(name, ranks).options(),
        "cluster": {},
    }
    (folder / "run.json").write_text(json.dumps(document))
    return RunPaths(folder)


@pytest.mark.parametrize(
    ("name", "ranks", "more", "resized"),
    [
        ("single", 1, 8, "ddp"),
        ("dp4", 4, 8, "ddp"),
        ("fsdp4", 4, 8, "fsdp"),
        ("fsdp-grad-op", 4, 8, "fsdp-grad-op"),
        ("zero1", 4, 8, "zero1"),
        ("tp", 4, 8, "dp2-tp4"),
        ("fsdp2-tp2", 4, 8, "fsdp4-tp2"),
        ("hsdp", 8, 16, "dp4-fsdp4"),
        ("hsdp", 8, 4, "fsdp"),
        ("ep", 4, 8, "dp8-ep4"),
    ],
)
def test_a_run_on_other_machines_has_the_name_of_its_layout(
    name: str, ranks: int, more: int, resized: str, tmp_path: Path
) -> None:
    before = wb.Strategy.parse(name, ranks)
    after = job_from_run(recorded(tmp_path / "run", name, ranks), processes_per_node=more, nodes=1)
    assert after.strategy.name == resized
    expected = wb.Strategy.parse(resized, more)
    assert after.strategy == expected
    for degree in ("tp", "cp", "pp", "ep", "zero_stage"):
        assert getattr(after.strategy, degree) == getattr(before, degree)


def test_ranks_over_which_hybrid_shards_do_not_divide_are_refused_with_what_would(
    tmp_path: Path,
) -> None:
    run = recorded(tmp_path / "run", "hsdp", 8)
    with pytest.raises(UsageError, match="a multiple of 4 ranks"):
        job_from_run(run, processes_per_node=2, nodes=1)
