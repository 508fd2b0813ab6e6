"""SkyPilot's own schema, features and optimizer, asked about our files, table and prices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines import sky_catalog
from tests.engines.sample_jobs import job, rented
from tests.engines.validators import ask, require
from workbench.engines import refusals
from workbench.engines.exporting import export
from workbench.engines.gpu_names import gpu_name, known_gpus, name_notes
from workbench.engines.job import EngineJob
from workbench.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.full]

READ = """
import copy, os, sky
answers = {}
for name, files in asked.items():
    os.makedirs(name, exist_ok=True)
    os.chdir(name)
    try:
        task = sky.Task.from_yaml_config(copy.deepcopy(files))
        one = list(task.resources)[0]
        answers[name] = {"nodes": task.num_nodes, "accelerators": one.accelerators,
            "spot": one.use_spot, "cloud": str(one.cloud), "secrets": sorted(files.get("secrets") or {}), "envs": task.envs,
            "mounts": sorted(task.storage_mounts), "recovery": one.job_recovery}
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
    os.chdir("..")
print(json.dumps(answers))
"""
FEATURES = """
import sky
from sky.utils.registry import CLOUD_REGISTRY
kinds = {"nodes": "multi-node", "spot": "spot_instance", "image": "docker_image",
    "bucket": "storage_mounting", "idle": "autodown"}
answers = {}
for name, cloud in CLOUD_REGISTRY.items():
    try:
        found = cloud._unsupported_features_for_resources(sky.Resources(cloud=cloud))
    except ImportError:  # Kubernetes' client is not installed: what holds for every cluster
        found = cloud._CLOUD_UNSUPPORTED_FEATURES
    found = {feature.value for feature in found}
    answers[name] = {column: value in found for column, value in kinds.items()}
print(json.dumps(answers))
"""

NAMES = """
import ast, pathlib, re
from sky.catalog import data_fetchers
from sky.provision.runpod.utils import GPU_NAME_MAP
folder = pathlib.Path(list(data_fetchers.__path__)[0])

def constant(file, name):
    for node in ast.walk(ast.parse((folder / file).read_text())):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(targets[0]) == name:
            return ast.literal_eval(node.value)

def renamed(offer):  # the fetcher's own lines, which it has only as a program
    scope = {"re": re, "offer": {"gpu_name": offer}, "_map": constant("fetch_vast.py", "_map")}
    for node in ast.walk(ast.parse((folder / "fetch_vast.py").read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node).startswith("gpu = re.sub"):
            exec(ast.unparse(node), scope)
    return scope["_map"].get(scope["gpu"], scope["gpu"])

print(json.dumps({
    "runpod": GPU_NAME_MAP,
    "sold at runpod": sorted(constant("fetch_runpod.py", "DEFAULT_GPU_INFO")),
    "vastai": {name: renamed(name) for name in asked},
    "seeweb": constant("fetch_seeweb.py", "SEEWEB_GPU_NAME_TO_SKYPILOT_GPU_NAME"),
}))
"""
VAST = {
    "H100 SXM": "h100-sxm",
    "H100 PCIE": "h100-pcie",
    "H100 NVL": "h100-nvl",
    "H200": "h200-sxm",
    "A100 SXM4": "a100-sxm-80",
    "A100 PCIE": "a100-pcie-80",
    "RTX 4090": "rtx-4090",
    "L4": "l4",
    "RTX 6000Ada": "rtx-6000-ada",
    "RTX A6000": "rtx-a6000",
    "Tesla V100": "v100-sxm2-32",
    "Tesla T4": "t4",
    "L40S": "l40s",
    "B200": "b200-sxm",
    "A40": "a40",
    "RTX 5090": "rtx-5090",
}
"""Vast.ai's own names of offers -> ours."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("skypilot")
    folder = tmp_path_factory.mktemp("sky")
    sky_catalog.write(folder / ".sky" / "catalogs" / "v8")
    return folder


@pytest.fixture(scope="module")
def answers(home: Path) -> dict[str, Any]:
    """What SkyPilot's optimizer chooses for each question, in one process."""
    asked = [one.asked for one in sky_catalog.QUESTIONS]
    found = ask("skypilot", sky_catalog.OPTIMIZE, asked, home)
    return {one.name: best for one, best in zip(sky_catalog.QUESTIONS, found, strict=True)}


def documents(jobs: dict[str, EngineJob]) -> dict[str, Any]:
    return {
        name: yaml.safe_load(export(one, "skypilot").files["skypilot.yaml"])
        for name, one in jobs.items()
    }


def test_skypilot_reads_each_file_as_we_meant_it_and_refuses_wrong_ones(home: Path) -> None:
    """One process: importing it takes seconds."""
    jobs = rented("s3://bucket/path")
    wrong = documents({"typo": jobs["spot"], "type": jobs["spot"], "key": jobs["spot"]})
    wrong["typo"]["num_nodez"] = wrong["typo"].pop("num_nodes")
    wrong["type"]["num_nodes"] = "two"
    wrong["key"]["resources"]["use_spots"] = True
    answers = ask("skypilot", READ, {**documents(jobs), **wrong}, home)
    for name, one in jobs.items():
        read = answers[name]
        assert isinstance(read, dict), (name, read)
        assert read["nodes"] == one.nodes
        assert read["spot"] == one.spot
        assert read["secrets"] == sorted(one.secrets)
        assert read["mounts"] == (["/checkpoints"] if one.checkpoint_uri else [])
        if one.gpu is not None:
            assert list(read["accelerators"].values()) == [one.processes_per_node]
    assert answers["everything"]["cloud"] == "GCP"
    assert answers["everything"]["recovery"]["max_restarts_on_errors"] == 2
    for name in wrong:
        assert "Error" in str(answers[name]), (name, answers[name])


def test_the_table_says_what_skypilots_own_code_says(home: Path) -> None:
    """Every cell: what it cannot do there, as its launcher would find."""
    answers = ask("skypilot", FEATURES, None, home)
    table = [one for one in refusals.places() if one.engine == "skypilot"]
    assert {one.name for one in table} <= set(answers)
    for one in table:
        for column, unsupported in answers[one.name].items():
            assert bool(getattr(one, column)) == unsupported, (one.provider, column)


def test_each_gpu_has_the_name_that_skypilots_code_gives_it_at_the_provider(home: Path) -> None:
    """RunPod's interface has one name per card, so both of our tables must meet in it."""
    answers = ask("skypilot", NAMES, list(VAST), home)
    named = set(known_gpus("skypilot", "runpod"))
    assert named >= {"h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "a100-sxm-80", "b200-sxm"}
    for gpu in named:
        name = gpu_name("skypilot", gpu, "runpod")
        assert answers["runpod"].get(name) == gpu_name("runpod", gpu), (gpu, name)
        assert name in answers["sold at runpod"], (gpu, name)
    for gpu in set(known_gpus("runpod")) - named:  # RunPod has it, SkyPilot's map does not
        assert gpu_name("runpod", gpu) not in answers["runpod"].values(), gpu
    for offer, gpu in VAST.items():
        assert gpu_name("skypilot", gpu, "vastai") == answers["vastai"][offer], offer
    assert answers["seeweb"]["A100 80GB"] == gpu_name("skypilot", "a100-sxm-80", "seeweb")


def test_an_h100_at_runpod_is_the_one_that_was_asked_for() -> None:
    given = {"processes_per_node": 8, "strategy": "ddp", "gpu": "h100-sxm"}

    def read(**more: Any) -> tuple[Any, str]:
        made = export(job(**given, **more), "skypilot")
        task = yaml.safe_load(made.files["skypilot.yaml"])
        return task["resources"]["accelerators"], " ".join(made.notes)

    assert read(provider="runpod") == ("H100-SXM:8", "")
    name, notes = read()
    assert name == "H100:8"
    assert "H100 at runpod is h100-pcie, not h100-sxm" in notes
    name, notes = read(provider="vastai")
    assert name == "H100:8"
    assert "may be h100-sxm or h100-pcie or h100-nvl" in notes
    with pytest.raises(
        UsageError, match=r"The name of t4 at skypilot for runpod is unknown.*h100-sxm"
    ):
        export(job(gpu="t4", provider="runpod"), "skypilot")


def test_runpod_cannot_be_given_two_machines_nor_a_bucket() -> None:
    """Refused before SkyPilot would drop them silently; what is proposed is accepted."""
    two = job(nodes=2, processes_per_node=8, gpu="h100", strategy="fsdp", provider="runpod")
    with pytest.raises(UsageError, match=r"non-trivial.*--to runpod.*lambda"):
        export(two, "skypilot")
    spot = {"processes_per_node": 8, "gpu": "h100", "spot": True, "provider": "runpod"}
    with pytest.raises(UsageError, match=r"object stores cannot be mounted.*volume:NAME"):
        export(job(**spot, checkpoint_uri="s3://b/p", checkpoint_every=10), "skypilot")
    made = export(job(**spot, checkpoint_uri="volume:v", checkpoint_every=10), "skypilot")
    assert yaml.safe_load(made.files["skypilot.yaml"])["volumes"] == {"/checkpoints": "v"}


@pytest.mark.parametrize("asked", sky_catalog.QUESTIONS, ids=lambda one: one.name)
def test_its_optimizer_with_our_prices_agrees_or_the_difference_is_explained(
    answers: dict[str, Any], asked: sky_catalog.Question
) -> None:
    """Same table, two searches for the lowest price per hour; a difference has one of three causes:
    a refusal that our table of engines has, a GPU name that stands for two of ours, or one that the
    provider does not have, which the notes say."""
    best, offers = answers[asked.name], sky_catalog.offers()
    ours = sky_catalog.cheapest(offers, asked)
    theirs = sky_catalog.cheapest(offers, asked, startable=True)
    assert best["cloud"].lower() == sky_catalog.cloud_name(theirs.provider)
    assert best["usd_per_hour"] == pytest.approx(asked.price(theirs), rel=1e-6)
    why = refusals.starters(ours.provider, nodes=asked.nodes, spot=asked.spot)["skypilot"]
    refused = bool(why) and asked.price(ours) < asked.price(theirs)
    renamed = theirs.gpu != ours.gpu and asked.price(theirs) < asked.price(ours)
    same = best["usd_per_hour"] == pytest.approx(asked.price(ours), rel=1e-6)
    outcome = (
        "refused" if refused else "renamed" if renamed else "agrees" if same else "unexplained"
    )
    usual, there = (gpu_name("skypilot", asked.gpu, one) for one in (None, ours.provider))
    if outcome == "unexplained" and usual != there:
        outcome = "named"
        notes = " ".join(name_notes("skypilot", asked.gpu, None))
        assert f"not offered at {ours.provider}, where {asked.gpu} is called {there}" in notes
    assert outcome == asked.outcome, (ours, theirs, why)
    fabric = (theirs.max_nodes or 1) >= asked.nodes and theirs.network is not None
    assert (asked.nodes == 1 or fabric) == asked.joined, theirs
