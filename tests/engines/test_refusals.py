"""What each engine refuses: sentences with a reason and a way out, and one table behind them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.engines.sample_jobs import job
from workbench.cli.entry import app
from workbench.describe import prices
from workbench.describe.accelerators import accelerators
from workbench.engines import limits, refusals
from workbench.engines.exporting import export
from workbench.errors import UsageError

EIGHT = {"processes_per_node": 8, "gpu": "h100", "strategy": "ddp"}


def reasons(engine: str, **given: object) -> dict[str, str]:
    return {one.what: one.sentence for one in refusals.refusals(job(**given), engine)}


def test_the_table_is_whole() -> None:
    """Each row has a source and a date; each name of an accelerator is one of the catalog."""
    table = refusals.places()
    assert len({(one.engine, one.provider) for one in table}) == len(table)
    assert all(one.source and one.date for one in table)
    ids = {one.id for one in accelerators()}
    assert {gpu for gpu in ids if refusals.gpu_name("skypilot", gpu)} >= {"h100-sxm", "l4"}
    known = set(prices.providers())
    sold = {one.provider for one in prices.offers(live=False, own=False)}
    named = {one.provider for one in table}
    assert {"aws", "runpod", "lambda", "nebius"} <= named & sold & known


@pytest.mark.parametrize(
    ("engine", "given", "what", "said"),
    [
        ("skypilot", {"nodes": 2, "provider": "vastai"}, "nodes", "For 2 machines it supports"),
        ("skypilot", {"spot": True, "provider": "lambda"}, "spot", "spot is not offered"),
        ("skypilot", {"provider": "coreweave"}, "provider", "does not support coreweave"),
        ("skypilot", {"provider": "verda", "idle_minutes": 9}, "limit", "--idle-minutes"),
        ("dstack", {"nodes": 2, "provider": "vastai"}, "nodes", "joins no machines"),
        ("dstack", {"spot": True, "provider": "runpod"}, "spot", "on demand only"),
        ("runpod", {"nodes": 1}, "nodes", "2 to 8 machines"),
        ("runpod", {"nodes": 16}, "nodes", "not 16 with 128"),
        ("runpod", {"nodes": 2, "spot": True}, "spot", "on demand only.*--to skypilot"),
        ("runpod", {"nodes": 2, "provider": "aws"}, "provider", "does not support aws"),
        ("kubeflow", {"spot": True}, "spot", "node pools"),
        ("kubeflow", {"provider": "aws"}, "provider", "does not rent machines"),
        ("accelerate", {"spot": True}, "spot", "do not restart"),
        ("torchrun", {"max_usd_per_hour": 9.0}, "limit", "do not have prices"),
        ("slurm", {"gpu": "trn2"}, "gpu", "starts ranks on NVIDIA or AMD only.*--gpu"),
        ("kubeflow", {"gpu": "tpu-v5e"}, "gpu", "starts ranks on NVIDIA or AMD only"),
        ("accelerate", {"gpu": "mi300x", "max_kwh": 3.0}, "limit", "nvidia-smi.*--max-hours"),
    ],
)
def test_each_refusal_has_its_reason(
    engine: str, given: dict[str, object], what: str, said: str
) -> None:
    found = reasons(engine, **{**EIGHT, **given})
    assert what in found, found
    assert re.search(said, found[what]), found[what]


GIVEN: dict[str, object] = {
    "max_hours": 2.0,
    "max_usd_per_hour": 9.0,
    "max_usd": 40.0,
    "max_kwh": 2.0,
    "idle_minutes": 10,
    "restarts": 2,
    "image": "a/b:c",
    "region": "somewhere",
    "disk_gb": 500,
}


@pytest.mark.parametrize("engine", refusals.ENGINES)
def test_no_limit_is_dropped_without_a_word(engine: str) -> None:
    """Each is in the engine's files, in its notes or refused; and refused only if it was given."""
    storage = {"skypilot": "s3://b/p", "kubeflow": "pvc:c"}.get(engine, "volume:v")
    storage = "/shared" if engine in {"torchrun", "accelerate", "slurm"} else storage
    plain = job(**EIGHT, nodes=2, checkpoint_uri=storage, usd_per_hour=20.0)
    assert refusals.refusals(plain, engine) == ()
    before = export(plain, engine, address="10.0.0.1")
    for name, value in GIVEN.items():
        one = replace(plain, **{name: value})
        found = refusals.refusals(one, engine)
        if name in limits.ABSENT.get(engine, {}):
            assert [refusal.what for refusal in found] == ["image" if name == "image" else "limit"]
            assert f"Leave --{name.replace('_', '-')} out." in found[0].sentence
        else:
            assert found == ()
            after = export(one, engine, address="10.0.0.1")
            assert (before.files, before.notes) != (after.files, after.notes), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_hours", value) for value in (0, -1.0, float("nan"), float("inf"), True)),
        *(("max_usd_per_hour", value) for value in (0, -3, float("nan"))),
        *(("disk_gb", 0), ("idle_minutes", 0), ("checkpoint_every", -5), ("restarts", -1)),
    ],
)
def test_impossible_numbers_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        job(**{name: value})


def test_what_is_proposed_instead_is_accepted() -> None:
    """Every provider that a refusal names takes the same job."""
    for place in refusals.places():
        for nodes, spot in ((2, False), (1, True), (2, True)):
            mounted = spot and place.engine == "dstack"  # SkyPilot's volumes are another column
            there = refusals.able(place.engine, nodes=nodes, spot=spot, bucket=mounted)
            where = "volume:x" if spot else None
            one = job(**EIGHT, nodes=nodes, spot=spot, checkpoint_uri=where)
            for provider in there:
                if place.engine != "runpod":
                    assert not refusals.refusals(replace(one, provider=provider), place.engine)


def test_spot_without_storage_is_refused_everywhere() -> None:
    for engine in ("skypilot", "dstack"):
        assert "--checkpoints" in reasons(engine, **EIGHT, spot=True)["storage"]


@pytest.mark.parametrize(
    ("engine", "right", "wrong"),
    [
        ("skypilot", "gs://b/p", "/shared"),
        ("dstack", "volume:v", "s3://b/p"),
        ("runpod", "volume:v", "pvc:c"),
        ("kubeflow", "pvc:c", "volume:v"),
        ("slurm", "/shared", "s3://b/p"),
        ("accelerate", "/shared", "volume:"),
    ],
)
def test_storage_is_of_the_engines_kind(engine: str, right: str, wrong: str) -> None:
    given = {**EIGHT, "nodes": 2}
    assert not refusals.refusals(job(**given, checkpoint_uri=right), engine)
    assert "--checkpoints" in reasons(engine, **given, checkpoint_uri=wrong)["storage"]


def test_which_engine_starts_a_plans_machines() -> None:
    found = refusals.starters("runpod", nodes=2)
    assert found["runpod"] == ""
    assert "non-trivial" in found["skypilot"]
    assert refusals.starters("lambda")["skypilot"] == ""
    assert "does not support" in refusals.starters("coreweave")["dstack"]


def test_the_table_on_the_command_line() -> None:
    done = CliRunner().invoke(app, ["export", "--why", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert len(rows) == len(refusals.places())
    done = CliRunner().invoke(
        app, ["export", "--why", "--provider", "runpod", "--nodes", "2", "--to", "skypilot"]
    )
    assert "several machines" in done.output
    done = CliRunner().invoke(app, ["export", "--why", "--provider", "ovhcloud"])
    assert "No engine of ours rents at ovhcloud" in str(done.exception)
    done = CliRunner().invoke(app, ["export", "--why", "--provider", "lambdalabs", "--json"])
    assert {one["provider"] for one in json.loads(done.output)} == {"lambda"}
    done = CliRunner().invoke(app, ["export", "--why", "--to", "slurm"])
    assert "slurm rents nothing" in str(done.exception)
    done = CliRunner().invoke(app, ["export", "--why", "--to", "runpod", "--provider", "aws"])
    assert "runpod never rents at aws" in str(done.exception)
    done = CliRunner().invoke(app, ["export", "--why", "--to", "slurn"])
    assert "Did you mean slurm" in str(done.exception)
