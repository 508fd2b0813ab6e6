"""The number of CPU threads is the user's; without one it is what a launch without us would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from workbench.engines.commands import plain_commands
from workbench.engines.job import EngineJob
from workbench.launching.prepare.cpu_threads import VARIABLE, cpu_threads
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.start.start import prepare
from workbench.store.files import read_json

FLAG = "--num_cpu_threads_per_process"


def of(request: wb.Request) -> str:
    command = request.command
    return command[command.index(FLAG) + 1]


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_what_the_user_set_reaches_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    request = wb.request("gpt", strategy=strategy, cpu=True, store=tmp_path)
    assert of(request) == "3"
    more = replace(request, options=LaunchOptions(environment={VARIABLE: "5"}))
    assert of(more) == "5"
    paths, _ = prepare(more)
    kept = (read_json(paths.run) or {})["cpu_threads"]
    assert kept == {"value": 5, "source": "OMP_NUM_THREADS of the environment"}


@pytest.mark.parametrize(
    ("ranks", "device", "offload", "threads"),
    [
        (1, "cpu", False, 12),  # as under python
        (1, "cuda", False, 12),
        (4, "cpu", False, 3),  # as under accelerate launch --cpu
        (16, "cpu", False, 1),
        (4, "cuda", False, 1),  # as under torchrun
        (4, "cuda", True, 3),  # the optimizer works on these threads
    ],
)
def test_without_one_it_is_what_another_launcher_gives(
    ranks: int, device: str, threads: int, *, offload: bool
) -> None:
    for empty in ({}, {VARIABLE: ""}, {VARIABLE: "many"}, {VARIABLE: "0"}):
        given = cpu_threads(empty, cores=12, ranks=ranks, device=device, offload=offload)
        assert given.value == threads
    nested = {VARIABLE: "7,2"}  # one for each level of nested regions
    assert cpu_threads(nested, cores=12, ranks=ranks, device=device, offload=offload).value == 7


def test_the_interface_that_the_user_chose_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "GLOO_SOCKET_IFNAME"
    monkeypatch.delenv(name, raising=False)
    request = wb.request("gpt", cpu=True, store=tmp_path)
    assert request.environment[name] == "lo"
    monkeypatch.setenv(name, "eth7")
    assert request.environment[name] == "eth7"
    other = replace(request, options=LaunchOptions(environment={name: "eth8"}))
    assert other.environment[name] == "eth8"


def test_an_export_keeps_the_threads_that_its_user_set() -> None:
    job = EngineJob(
        name="a", script="gpt", strategy=wb.Strategy.parse("ddp", 2), processes_per_node=2
    )
    (plain,) = plain_commands(job, "10.0.0.1")
    assert f"{FLAG} 1" in plain
    (chosen,) = plain_commands(replace(job, environment={VARIABLE: "6"}), "10.0.0.1")
    assert f"{FLAG} 6" in chosen
