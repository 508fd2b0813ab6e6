"""What a start takes from a record: what its user's workbench wrote there, or what only tunes."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare.recorded_environment import is_applied, recorded_value
from workbench.launching.start.launch_spec import recorded_spec
from workbench.launching.start.start import prepare, vouched
from workbench.store.files import write_json_atomic
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord
from workbench.store.secrets import HIDDEN
from workbench.store.signatures import vouch

GIVEN = {"DATA": "/mine", "OMP_NUM_THREADS": "3", "PYTHONPATH": "/my/source"}
CODE = {
    "LD_PRELOAD": "/planted.so",
    "PYTHONPATH": "/planted",
    "BASH_ENV": "/planted",
    "NCCL_NET_PLUGIN": "/planted.so",
    "HF_ENDPOINT": "https://planted.example",
    "CUDA_INJECTION64_PATH": "/planted.so",
    "PATH": "/planted",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's key lies."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (*GIVEN, *CODE):
        if name != "PATH":
            monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "training-workbench"


def record(root: Path) -> RunRecord:
    request = wb.request("gpt", cpu=True, processes=1, store=root, environment=GIVEN)
    return read_record(prepare(request)[0])


def test_a_record_of_ones_own_gives_back_everything(tmp_path: Path, home: Path) -> None:
    run = record(tmp_path / "runs")
    order = recorded_spec(run)
    assert {name: order["environment"][name] for name in ("DATA", "OMP_NUM_THREADS")} == {
        "DATA": "/mine",
        "OMP_NUM_THREADS": "3",
    }
    assert order["environment"]["PYTHONPATH"].split(":") == [str(SITE_FOLDER), "/my/source"]
    key = home / "record-key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes().hex() not in str(run)
    # The hook of an installation that has moved since is this one's.
    environment = {"PYTHONPATH": "/old/workbench/launch/capture/site:/my/source"}
    moved = replace(run, environment=environment, vouched=vouch(run, environment))
    path = recorded_spec(moved)["environment"]["PYTHONPATH"]
    assert path.split(":") == [str(SITE_FOLDER), "/my/source"]


@pytest.mark.parametrize("name", CODE)
def test_what_somebody_wrote_into_a_record_is_not_applied(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "runs")
    environment = {"OMP_NUM_THREADS": "3", name: CODE[name]}
    planted = replace(run, environment=environment)
    if name != "PATH":  # that one is always set
        with pytest.raises(wb.UsageError, match=f"Set {name} in this environment"):
            recorded_spec(planted)
    monkeypatch.setenv(name, "/own")
    order = recorded_spec(planted) if name != "PYTHONPATH" else recorded_spec(run)
    assert CODE[name] not in order["environment"].values()
    assert order["environment"]["OMP_NUM_THREADS"] == "3"


def test_a_proof_is_of_one_record_and_one_users_key(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "runs")
    assert recorded_value(run, "DATA", "/mine") == "/mine"
    for other in (replace(run, marker="another"), replace(run, vouched=[])):
        with pytest.raises(wb.UsageError):
            recorded_value(other, "DATA", "/mine")
    with pytest.raises(wb.UsageError):
        recorded_value(run, "DATA", "/theirs")
    (home / "record-key").chmod(0o644)  # no secret any more
    with pytest.raises(wb.UsageError):
        recorded_value(run, "DATA", "/mine")
    (home / "record-key").unlink()
    vouched(replace(run, vouched=[]))  # another key is made
    with pytest.raises(wb.UsageError):
        recorded_value(run, "DATA", "/mine")
    monkeypatch.setenv("DATA", "/here")
    assert recorded_value(run, "DATA", "/mine") == "/here"


def test_a_home_that_cannot_be_written_costs_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert record(tmp_path / "runs").vouched == []


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "WORKBENCH_CAPTURE", "TOKENIZERS_PARALLELISM"]
)
def test_what_tunes_is_applied(name: str) -> None:
    assert is_applied(name)


def planted(root: Path, **changes: object) -> wb.Run:
    """A recipe's run whose record someone else has changed."""
    paths = prepare(wb.request("gpt", cpu=True, processes=1, store=root, environment=GIVEN))[0]
    write_json_atomic(paths.run, read_record(paths).document() | changes)
    return wb.Run(paths)


@pytest.mark.parametrize("engine", ["torchrun", "slurm"])
def test_an_export_has_the_variables_of_ones_own_record(engine: str, tmp_path: Path) -> None:
    job = wb.export(planted(tmp_path / "runs"), engine).job
    assert job.environment == {"DATA": "/mine", "OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("name", [*sorted(CODE.keys() - {"PYTHONPATH", "PATH"}), "PIP_INDEX_URL"])
def test_an_export_has_no_variable_that_somebody_wrote_into_a_record(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files install packages and train, as the user who exported them."""
    monkeypatch.delenv(name, raising=False)
    run = planted(tmp_path / "runs", environment={"OMP_NUM_THREADS": "3", name: "planted"})
    with pytest.raises(wb.UsageError, match=f"Set {name} in this environment"):
        wb.export(run, "torchrun")
    monkeypatch.setenv(name, "/own")
    job = wb.export(run, "torchrun").job
    assert job.environment == {"OMP_NUM_THREADS": "3", name: "/own"}


@pytest.mark.parametrize("name", ["A=1; touch x; B", "$(touch x)", "A\ntouch x\nB", "a b", ""])
@pytest.mark.parametrize("value", ["1", HIDDEN])
def test_the_name_of_a_recorded_variable_is_no_command(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, name: "1"})  # even were there such a one
    run = planted(tmp_path / "runs", environment={name: value})
    for engine in ("torchrun", "slurm", "dstack"):
        with pytest.raises(wb.UsageError, match="not a valid name of an environment variable"):
            wb.export(run, engine, gpu="h100")


def test_the_names_of_a_record_are_no_commands_in_an_export(tmp_path: Path) -> None:
    strategy = wb.Strategy.parse("single", 1).options() | {"name": "single\ntouch planted\n"}
    run = planted(tmp_path / "runs", strategy=strategy, name="gpt\ntouch planted\n")
    for engine in ("torchrun", "slurm", "dstack", "kubeflow"):
        for text in wb.export(run, engine, gpu="h100").files.values():
            assert not re.search(r"^\s*touch", text, re.MULTILINE), text
