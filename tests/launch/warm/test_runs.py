"""Warm runs: the same training as a cold one, watched, stopped and explained in the same way."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from workbench.launching.warm import client
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

pytestmark = pytest.mark.slow
Start = Callable[..., wb.Run]
GPT = ("--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--eval-every", "0")
LONG = ("--steps", "100000", "--step-seconds", "0.02")


def state(run: wb.Run) -> dict[str, Any]:
    return read_json(RunPaths(run.directory).state) or {}


def rank(run: wb.Run, number: int) -> Any:
    return (read_json(RunPaths(run.directory).rank_start(number)) or {})["process"]


def trained(run: wb.Run) -> dict[str, Any]:
    """What the run did and with what, without names, times and process numbers."""
    assert run.wait(240) == "succeeded", run.status.message
    supervisor = state(run)["supervisor"]  # the run's last files come after its outcome
    until(lambda: not processes.is_alive(supervisor), 30, "its supervisor has ended")
    files = sorted((run.directory / "metrics").glob("rank-*.jsonl"))
    metrics = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    ours = {"pid", "time", "process", "rank"}
    starts = [
        {
            key: str(value).replace(str(run.directory), "RUN")
            for key, value in (read_json(path) or {}).items()
            if key not in ours
        }
        for path in sorted((run.directory / "metrics").glob("rank-*.start.json"))
    ]
    here = str(run.directory)
    output = (run.directory / "logs" / "rank-0.log").read_text()
    numbers = re.compile(r"\d+(\.\d+)? (tokens/s|s|ms)\b|\d\d:\d\d:\d\d(\.\d+)?")
    return {
        "losses": [
            [
                (line["step"], line.get("loss"), line.get("grad_norm"), line.get("lr"))
                for line in of_rank
            ]
            for of_rank in metrics
        ],
        "files": sorted(
            str(path.relative_to(run.directory))
            for path in run.directory.rglob("*")
            if path.is_file() and not _of_a_slow_start(path)
        ),
        "starts": starts,
        "command": [word.replace(here, "RUN") for word in run.command],
        "config": {
            path.replace(here, "RUN"): text.replace(here, "RUN")
            for path, text in run.config_files.items()
        },
        "output": numbers.sub("N", output.replace(here, "RUN")),
    }


def _of_a_slow_start(path: Path) -> bool:
    """Left where a rank needs long before its first step: it is asked where it stands."""
    return path.name in {"dump", "stacks"} or path.name.endswith((".trace.json", ".stack"))


SAVING = (*GPT, "--layers", "2", "--steps", "6", "--checkpoint-every", "3", "--micro-batch", "2")
SAME = [
    pytest.param(
        "raw_ddp.py", ("--steps", "6"), "ddp", {}, id="raw_ddp.py", marks=pytest.mark.full
    ),
    pytest.param("accelerate_loop.py", ("--steps", "4"), "single", {}, id="accelerate_loop.py"),
    pytest.param("gpt", SAVING, "fsdp", {}, marks=pytest.mark.full, id="fsdp"),
    pytest.param("gpt", SAVING, "zero2", {}, marks=pytest.mark.full, id="zero2"),
    *(
        pytest.param(
            "gpt", SAVING, name, options, id=f"{name} {options or ''}", marks=pytest.mark.full
        )
        for name, options in [
            ("ddp", {"comm_hook": "powersgd"}),
            ("fsdp", {"engine": "fsdp1"}),
            ("fsdp", {"offload": ("optimizer", "parameters"), "recompute": "full"}),
            ("zero1", {}),
            ("zero1", {"engine": "torch"}),
            ("zero2", {"offload": ("optimizer",)}),
            ("zero3", {}),
            ("tp", {"sequence_parallel": True}),
            ("pp", {}),
            ("cp", {}),
        ]
    ),
]


@pytest.mark.parametrize(("script", "arguments", "strategy", "options"), SAME)
def test_same_config_losses_and_files_as_cold(
    start: Start,
    script: str,
    arguments: tuple[str, ...],
    strategy: str,
    options: dict[str, Any],
) -> None:
    how: dict[str, Any] = {"strategy": strategy, "name": "same", "options": options or None}
    warm, cold = (start(script, arguments, cold=cold, **how) for cold in (False, True))
    assert trained(warm) == trained(cold)
    assert state(warm)["warm"] is True, (warm.directory / "logs/supervisor.log").read_text()
    assert "cold" not in (warm.directory / "logs/launcher.log").read_text()
    assert (state(cold)["warm"], cold.document["warm"]) == (False, False)


def test_the_exception_is_named_at_its_line(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "2000", "--raise-at", "4"))
    assert run.wait(120) == "failed"
    assert state(run)["warm"]
    end = read_json(RunPaths(run.directory).rank_end(1)) or {}
    source = Path(__file__).parents[2] / "scripts" / "raw_ddp.py"
    line = next(
        number for number, text in enumerate(source.read_text().splitlines(), 1) if "raise " in text
    )
    assert f"raw_ddp.py:{line}" in end["where"]
    assert "/launch/warm/" not in (run.directory / "logs" / "rank-1.log").read_text()


def test_exit_codes_reach_the_outcome(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "2000", "--exit-at", "4"))
    assert run.wait(120) == "failed"
    assert state(run)["warm"]
    ended = read_json(RunPaths(run.directory).exit) or {}
    assert ended["exit_code"] == 1  # the launcher's


def test_the_stop_ladder_ends_at_one_step(start: Start) -> None:
    run = start("accelerate_loop.py", LONG)
    run.wait(120, steps=5)
    assert run.stop(timeout=120)["processes_left"] == 0
    assert run.outcome == "stopped"
    assert state(run)["warm"]
    ends = [read_json(RunPaths(run.directory).rank_end(number)) or {} for number in (0, 1)]
    assert ends[0]["steps"] == ends[1]["steps"]


def oom_score(process: Mapping[str, Any]) -> int:
    return int(Path(f"/proc/{process['pid']}/oom_score_adj").read_text())


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_a_process_that_is_killed_ends_the_run(start: Start, victim: str) -> None:
    run = start("raw_ddp.py", LONG)
    run.wait(120, steps=5)
    document = state(run)
    scores = [oom_score(one) for one in (document["launcher"], rank(run, 0), rank(run, 1))]
    assert scores == [max(scores)] * 3  # the kernel takes any of them before the supervisor
    assert scores[0] > oom_score(document["supervisor"])
    process = rank(run, 1) if victim == "rank" else document["launcher"]
    processes.send_signal(process, signal.SIGKILL)
    assert run.wait(120) == "failed"
    assert not processes.find_marked(run.document["marker"])


def test_runs_go_on_when_the_server_is_killed_and_restart_cold(start: Start) -> None:
    run = start(
        "gpt",
        (*GPT, "--steps", "100000", "--checkpoint-every", "200"),
        recovery=Recovery(restarts=1),
        environment={"TORCH_SHOW_CPP_STACKTRACES": "0"},  # a server of its own
    )
    run.wait(120, steps=250)
    assert state(run)["warm"]
    server = next(one for one in client.servers() if one["running"] and one["started"] == 1)
    os.kill(server["pid"], signal.SIGKILL)
    before = run.view()["steps"]
    until(lambda: run.view()["steps"] > before, 30, "it trains on")
    processes.send_signal(rank(run, 1), signal.SIGKILL)
    until(lambda: "Started cold" in str(state(run).get("message")), 90, "restarted")
    assert state(run)["warm"] is False
    log = (run.directory / "logs" / "supervisor.log").read_text()
    assert "Started cold: no warm server" in log
    assert run.stop(now=True)["processes_left"] == 0


def test_a_restart_is_warm_too(start: Start) -> None:
    run = start(
        "gpt",
        (*GPT, "--steps", "100000", "--checkpoint-every", "200"),
        recovery=Recovery(restarts=1),
    )
    run.wait(120, steps=250)
    processes.send_signal(rank(run, 0), signal.SIGKILL)
    until(lambda: state(run).get("restarts") == 1, 60, "restarted")
    begin = time.monotonic()
    until(lambda: run.view().get("attempt") == 2 and run.view()["steps"], 60, "it trains")
    assert state(run)["warm"], time.monotonic() - begin
    assert run.stop(now=True)["processes_left"] == 0


def test_a_folder_that_others_may_enter_makes_it_cold_and_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "sockets"
    open_to_all.mkdir(mode=0o755)
    open_to_all.chmod(0o755)
    monkeypatch.setenv(client.FOLDER, str(open_to_all))
    run = start("raw_ddp.py", LONG)
    until(lambda: "Started cold" in str(run.status.message), 60, "the reason is told")
    assert "not a folder that you alone can enter" in str(run.status.message)
    assert run.document["warm"] is True
    assert state(run)["warm"] is False
    assert run.stop(now=True)["processes_left"] == 0
