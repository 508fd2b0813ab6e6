"""``workbench warm``: a server that fits a launch is started ahead of it, listed and ended."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.cli.conftest import Command
from workbench.launching.start import supervisor_process, warm_server
from workbench.launching.start.launch_spec import make_spec
from workbench.launching.start.launch_spec import warm_server as warm_of_record
from workbench.launching.warm import client
from workbench.store.run_record import RunRecord


@pytest.fixture(autouse=True)
def light_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Real servers in a folder of their own, which import little."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        monkeypatch.setenv(client.FOLDER, folder)
        monkeypatch.setattr(client, "MODULES", ("json", "decimal"))
        yield
        client.stop_servers()


def test_start_status_stop(command: Command) -> None:
    assert "workbench warm start" in command("warm", "status").out
    started = json.loads(command("warm", "start", "--cpu", "--json", OMP_NUM_THREADS="3").out)
    assert {"pid", "threads", "started", "running", "memory_bytes"} <= set(started)
    assert started["threads"] == "3"
    again = command("warm", "start", "--cpu", OMP_NUM_THREADS="3").out
    assert f"warm server {started['pid']} with json and decimal, 3 CPU threads per rank" in again
    assert "for 15 minutes" in again
    (listed,) = json.loads(command("warm", "status", "--json").out)
    assert listed["pid"] == started["pid"]
    assert "0 launches so far, 0 running" in command("warm", "stop").out
    assert json.loads(command("warm", "status", "--json").out) == []
    assert command("warm", "stop").out == "No warm server is running.\n"


def test_one_that_ends_before_it_is_ready_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MODULES", ("no_such_module",))
    done = command("warm", "start", "--cpu")
    assert done.code == 1
    assert "ended before it was ready" in done.err
    assert "Launches start cold" in done.err


def test_the_server_started_ahead_is_the_one_that_the_launch_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also under a kernel or shell whose variables a supervisor does not inherit."""
    monkeypatch.setenv("PYTHONSTARTUP", "/etc/startup.py")
    request = wb.request("gpt", cpu=True, warm=True)
    warm = warm_server.part_of(request)
    ahead = warm_server.fitting_kind(request.environment, warm)
    order = make_spec(
        request.command_in(request.script.parent),
        request.arguments,
        {**request.environment, "WORKBENCH_RUN_DIR": "/run"},
        request.script.parent,
        warm,
    )
    started = list[client.ServerKind]()
    monkeypatch.setattr(supervisor_process, "start_server", started.append)
    sent = supervisor_process._with_warm_server(order, None)
    kept = {
        name: value for name, value in os.environ.items() if name not in supervisor_process.LOADERS
    }
    by_supervisor = client.server_kind({**kept, **order["environment"]}, **warm)
    assert [ahead] == started
    assert ahead == by_supervisor
    assert sent["warm"] == {**warm, "server": str(ahead.address)}


@pytest.mark.parametrize(
    ("strategy", "device", "preloads"),
    [
        ("zero2", "cpu", True),
        ("fsdp", "cpu", True),
        ("ddp", "cpu", False),
        ("zero2", "cuda", False),
    ],
)
def test_the_server_has_what_the_ranks_of_a_strategy_import(
    tmp_path: Path, strategy: str, device: str, *, preloads: bool
) -> None:
    """DeepSpeed looks for a GPU while it is imported: where there are some, a rank does it."""
    pytest.importorskip("deepspeed")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    warm = warm_server.warm_part(
        script, 1, strategy=wb.Strategy.parse(strategy, 2), splits=None, device=device
    )
    assert ("deepspeed" in warm["modules"]) == preloads
    run = {
        "warm": True,
        "script": str(script),
        "recipe": None,
        "device": device,
        "cpu_threads": {"value": 1},
        "strategy": wb.Strategy.parse(strategy, 2).options(),
    }
    assert warm_of_record(RunRecord.of(run)) == warm  # a restart finds the same server


def test_what_a_script_imports_is_preloaded_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("try:\n    import deepspeed, transformers\nexcept ImportError:\n    pass\n")
    monkeypatch.setattr(warm_server, "find_spec", {"transformers": object()}.get)
    warm = warm_server.warm_part(
        script, 1, strategy=wb.Strategy.parse("ddp", 2), splits=None, device="cpu"
    )
    assert warm["modules"] == ["transformers", "transformers.trainer"]
