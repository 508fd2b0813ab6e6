"""dstack's own models and backends, asked about our files and our table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.sample_jobs import job, rented
from tests.engines.validators import ask, require
from workbench.engines import refusals
from workbench.engines.exporting import export
from workbench.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.full]

READ = """
from dstack._internal.core.models.configurations import parse_apply_configuration
answers = {}
for name, document in asked.items():
    try:
        answers[name] = json.loads(parse_apply_configuration(document).json())
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""
KEPT = """
from dstack._internal.utils.interpolator import VariablesInterpolator
read = VariablesInterpolator({"secrets": {"K": "v"}, "run": {"args": ""}}).interpolate_or_error
env, commands = asked
print(json.dumps([{name: read(value) for name, value in env.items()}, list(map(read, commands))]))
"""
BACKENDS = """
import ast, pathlib, dstack._internal.core.backends as backends
answers = {}
for path in pathlib.Path(backends.__path__[0]).glob("*/compute.py"):
    bases = {ast.unparse(base).split("[")[0] for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.ClassDef) for base in node.bases}
    answers[path.parent.name.rstrip("_")] = sorted(bases)
print(json.dumps(answers))
"""
OURS = {"lambda": "lambdalabs"}
"""dstack's configuration calls it lambda, its folder lambdalabs."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("dstack")
    return tmp_path_factory.mktemp("dstack")


def documents(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in rented("volume:ours", "runpod").items():
        files = export(one, "dstack").files
        for file in ("task.dstack.yml", "fleet.dstack.yml"):
            found[f"{name}: {file}"] = yaml.safe_load(files[file])
    return found | given


def test_dstack_reads_each_file_as_we_meant_it_and_refuses_wrong_ones(home: Path) -> None:
    right = documents()
    task = right["everything: task.dstack.yml"]
    wrong = {
        "key": {**task, "num_nodes": 2},
        "policy": {**task, "spot_policy": "sometimes"},
        "gpu": {**task, "resources": {"gpu": "H100:80GB:8:9:10"}},
    }
    answers = ask("dstack", READ, {**right, **wrong}, home)
    for name, answer in answers.items():
        assert isinstance(answer, dict) == (name not in wrong), (name, answer)
    for name, one in rented("volume:ours", "runpod").items():
        read = answers[f"{name}: task.dstack.yml"]
        assert read["nodes"] == one.nodes
        assert read["spot_policy"] == ("spot" if one.spot else "on-demand")
        fleet = answers[f"{name}: fleet.dstack.yml"]
        assert fleet["nodes"]["max"] == one.nodes
        assert fleet["placement"] == ("cluster" if one.nodes > 1 else None)
        if one.gpu is not None:
            count = {"min": one.processes_per_node, "max": one.processes_per_node}
            assert read["resources"]["gpu"]["count"] == count
    read = answers["everything: task.dstack.yml"]
    assert read["max_duration"] == 12.5 * 3600
    assert read["max_price"] == pytest.approx(90 / 4)
    assert read["backends"] == ["gcp"]
    assert "interruption" in read["retry"]["on_events"]


def test_values_and_lines_arrive_as_they_are_and_secrets_are_put_in(home: Path) -> None:
    """dstack replaces ``${{ name }}``, and ends a job that has another in a value."""
    odd, line = "it's $HOME $$ ${{ y }} $", "echo $$ ${{ run.args }}"
    one = replace(job(environment={"NOTE": odd}, setup=(line,)), secrets=("K",))
    task = yaml.safe_load(export(one, "dstack").files["task.dstack.yml"])
    env, commands = ask("dstack", KEPT, [task["env"], task["commands"]], home)
    assert env == {"NOTE": odd, "K": "v"}
    assert line in commands
    assert commands[-2].startswith("export NODE_RANK=$DSTACK_NODE_RANK ")


def test_the_table_says_which_backends_join_machines_and_have_volumes(home: Path) -> None:
    bases = ask("dstack", BACKENDS, None, home)
    table = [one for one in refusals.places() if one.engine == "dstack"]
    for one in table:
        found = bases[OURS.get(one.provider, one.provider)]
        if one.provider not in {"digitalocean", "amddevcloud"}:  # theirs is a shared base class
            assert ("ComputeWithMultinodeSupport" in found) == (not one.nodes), one
        assert ("ComputeWithVolumeSupport" in found) == (not one.bucket), one


def test_a_bucket_is_refused_with_what_would_work() -> None:
    given = {"processes_per_node": 8, "gpu": "h100", "spot": True, "checkpoint_every": 10}
    with pytest.raises(UsageError, match=r"own volumes.*volume:NAME"):
        export(job(**given, checkpoint_uri="s3://b/p"), "dstack")
    with pytest.raises(UsageError, match=r"lambda: its backend joins no machines.*aws"):
        export(
            job(gpu="h100", processes_per_node=8, nodes=2, strategy="ddp", provider="lambda"),
            "dstack",
        )
