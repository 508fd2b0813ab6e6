"""A script of one rank that trains in processes which it starts itself."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.launch.ranks import Ranks
from workbench.launching.capture import spawned
from workbench.launching.supervise.outcome import Verdict, judge
from workbench.observe.events import recorded_rows
from workbench.observe.pulse import read_pulse
from workbench.observe.rank_count import rank_count
from workbench.store.layout import RunPaths

pytest.importorskip("torch")


@pytest.mark.parametrize(("written", "records"), [(None, 1), (-10.0, 1), (10.0, 0)])
def test_a_rank_that_trains_itself_keeps_its_place(
    tmp_path: Path, written: float | None, records: int
) -> None:
    """What a spawned process of it trains beside it, say an actor, is not the run's training."""
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    (metrics / "rank-0.start.json").write_text('{"time": 1000.0}')
    if written is not None:
        lines = metrics / "rank-0.jsonl"
        lines.write_text("{}\n")
        os.utime(lines, (1000.0 + written,) * 2)
    became: list[int] = []
    for _ in range(2):  # only one of several may become the recorder
        actions = spawned.watch(str(tmp_path), 1, lambda rank, *_: became.append(rank))
        steps: list[Any] = []
        module = SimpleNamespace(register_optimizer_step_post_hook=steps.append)
        actions["torch.optim.optimizer"](module)
        for _ in range(3):
            steps[0](None, None, None)
    assert became == [0] * records


@pytest.mark.slow
@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_process_that_leads_the_training_is_recorded(tmp_path: Path, world: int) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", str(world))
    assert ranks.wait(300) == [0]
    steps = [line["step"] for line in ranks.lines()]
    # without a group the training is known by its first step, and recorded from there
    assert steps == list(range(1, 13 if world == 2 else 12))
    start = ranks.document("start")
    assert start["spawned"]
    assert start["process"]["pid"] != ranks.processes[0].pid
    assert start.get("group_world_size") == (2 if world == 2 else None)
    verdict = judge(
        RunPaths(tmp_path),
        ranks=1,
        steps=len(steps),
        exit_code=0,
        stop_reason=None,
        capture=True,
    )
    assert verdict.outcome == "succeeded"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_each_process_is_recorded_under_its_own_rank(tmp_path: Path, method: str) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", "3", "--method", method)
    assert ranks.wait(300) == [0]
    pids = {ranks.processes[0].pid}
    for rank in range(3):
        assert [line["step"] for line in ranks.lines(rank)] == list(range(1, 13))
        start = ranks.document("start", rank)
        assert (start["rank"], start["spawned"], start["group_world_size"]) == (rank, True, 3)
        pids.add(start["process"]["pid"])
        pulse = read_pulse(RunPaths(tmp_path).rank_pulse(rank))
        assert pulse.phase == "ended"
    assert len(pids) == 4
    assert not (tmp_path / "metrics" / "unobserved").exists()
    assert [ranks.document("end", rank)["ok"] for rank in range(3)] == [True] * 3
    assert rank_count(RunPaths(tmp_path), 1) == 3
    rows = list(recorded_rows(RunPaths(tmp_path), 3))
    assert [row.ranks for row in rows] == [3] * 12


@pytest.mark.full
def test_a_hang_of_a_spawned_rank_names_it(start: Callable[..., wb.Run]) -> None:
    """Not the one that waits for it."""
    arguments = ("--world", "2", "--hang-at", "8", "--step-seconds", "0.1")
    run = start("spawns.py", arguments, strategy="single")
    until(lambda: any(one.kind == "hang" for one in run.findings()), 90, "a hang")
    (hang,) = (one for one in run.findings() if one.kind == "hang")
    assert hang.rank == 1
    assert "spawns.py" in hang.cause
    view = json.loads((run.directory / "view.json").read_text())
    assert [one["step"] for one in view["ranks"]] == [7, 7]
    run.stop(now=True)


@pytest.mark.slow
@pytest.mark.full
def test_an_exception_in_a_spawned_process_names_its_line(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--fail-at", "3")
    assert ranks.wait(300) == [1]
    end = ranks.document("end")
    assert end["where"] == "spawns.py:35 in work"
    assert end["chain"][-1]["exception"] == "ValueError: boom"


def verdict_of(ranks: Ranks, exit_code: int) -> Verdict:
    """As the supervisor judges it: the launcher was asked for one rank."""
    known = {"steps": 3, "stop_reason": None, "capture": True}
    return judge(RunPaths(ranks.folder), ranks=1, exit_code=exit_code, **known)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 2])
def test_the_verdict_names_the_spawned_rank_that_raised(tmp_path: Path, rank: int) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", "3", "--fail-at", "3", "--fail-rank", str(rank))
    assert ranks.wait(300) == [1]
    verdict = verdict_of(ranks, 1)
    assert (verdict.outcome, verdict.failed_rank) == ("failed", rank)
    assert verdict.message.startswith(f"Rank {rank} failed: ValueError: boom (spawns.py:35 in work")
    assert f"logs/rank-{rank}.log" in verdict.message
    assert "ValueError: boom" in ranks.log(rank)
    traceback = ranks.document("end", rank)["traceback"]
    assert traceback.startswith("Traceback")
    assert "ProcessRaised" not in traceback


@pytest.mark.slow
@pytest.mark.full
def test_a_killed_process_is_a_failure_though_its_parent_exits_with_0(tmp_path: Path) -> None:
    arguments = ("--world", "1", "--kill-at", "3", "--ignore-exit-codes")
    ranks = Ranks(tmp_path, "spawns.py", *arguments)
    assert ranks.wait(300) == [0]
    verdict = verdict_of(ranks, 0)
    assert (verdict.outcome, verdict.failed_rank) == ("failed", 0)
    assert verdict.message.startswith("Rank 0 was killed by SIGKILL (9)")


@pytest.mark.slow
def test_the_verdict_names_the_spawned_rank_that_was_killed(tmp_path: Path) -> None:
    """It leaves no record, and what the others raise is the loss of their peer."""
    ranks = Ranks(tmp_path, "spawns.py", "--world", "2", "--kill-at", "3", "--fail-rank", "1")
    assert ranks.wait(300) == [1]
    verdict = verdict_of(ranks, 1)
    assert (verdict.failed_rank, verdict.finding and verdict.finding.kind) == (1, "rank-killed")
    assert verdict.message.startswith("Rank 1 was killed by SIGKILL (9")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("method", ["torchrun", "subprocess"])
def test_a_killed_rank_of_a_command_is_named(tmp_path: Path, method: str) -> None:
    arguments = ("--kill-at", "3", "--fail-rank", "1", "--method", method)
    ranks = Ranks(tmp_path, "spawns.py", *arguments)
    assert ranks.wait(300) == [1]
    verdict = verdict_of(ranks, 1)
    assert (verdict.failed_rank, verdict.finding and verdict.finding.kind) == (1, "rank-killed")
    assert verdict.message.startswith("Rank 1 was killed by SIGKILL (9")
    assert ranks.document("start", 1)["spawned"]


@pytest.mark.slow
@pytest.mark.full
def test_a_script_that_ignores_how_its_processes_ended_has_not_succeeded(tmp_path: Path) -> None:
    arguments = ("--world", "2", "--fail-at", "3", "--fail-rank", "1", "--ignore-exit-codes")
    ranks = Ranks(tmp_path, "spawns.py", *arguments)
    assert ranks.wait(300) == [0]
    verdict = verdict_of(ranks, 0)
    assert (verdict.outcome, verdict.failed_rank) == ("failed", 1)
    assert verdict.message.startswith("Rank 1 failed: ValueError: boom")


@pytest.mark.full
def test_a_run_tells_of_the_spawned_rank_that_failed(start: Callable[..., wb.Run]) -> None:
    """Its own record, verdict, exit.json, log and report."""
    arguments = ("--world", "2", "--fail-at", "3", "--fail-rank", "1")
    run = start("spawns.py", arguments, strategy="single")
    assert run.wait(120) == "failed"
    metrics = run.directory / "metrics"
    own, first = (json.loads((metrics / f"rank-{rank}.end.json").read_text()) for rank in (1, 0))
    assert (own["ok"], own["exception"]) == (False, "ValueError: boom")
    assert own["where"] == "spawns.py:35 in work"
    assert not first["ok"]
    end = json.loads((run.directory / "exit.json").read_text())
    assert end["failed_rank"] == 1
    assert end["message"].startswith("Rank 1 failed: ValueError: boom (spawns.py:35 in work")
    assert "logs/rank-1.log" in end["message"]
    assert end["traceback"].startswith("Traceback")
    assert "ProcessRaised" not in end["traceback"]
    assert end["traceback"].rstrip().endswith("ValueError: boom")
    assert "ValueError: boom" in run.logs(1)
    assert "<h2>Rank 1, end of log</h2>" in (run.directory / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.full
def test_a_training_in_forks_is_said_to_be_unobserved(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "spawns.py", "--world", "1", "--method", "fork")
    assert ranks.wait(300) == [0]
    known = {"steps": 0, "exit_code": 0, "stop_reason": None, "capture": True}
    verdict = judge(RunPaths(tmp_path), ranks=1, **known)
    assert verdict.outcome == "succeeded"
    assert "not observed" in verdict.message
    (tmp_path / "metrics" / "unobserved").unlink()
    assert judge(RunPaths(tmp_path), ranks=1, **known).outcome == "no-steps"


MEETS_ON_A_PORT = """
import importlib
import os
import sys
import torch.distributed as dist

mp = importlib.import_module("torch." + "multiprocessing")  # so that it is not recognised

def work(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
    dist.init_process_group("gloo", rank=rank, world_size=world)

if __name__ == "__main__":
    if sys.argv[1] == "mp.spawn":
        mp.spawn(work, args=(2,), nprocs=2)
    started = [mp.get_context(sys.argv[1]).Process(target=work, args=(rank, 2)) for rank in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.full) for name in ("fork", "spawn", "mp.spawn")],
)
def test_groups_that_each_launched_process_spawns_are_named(
    tmp_path: Path, start: Callable[..., wb.Run], method: str
) -> None:
    """Every one of them is a client of the rendezvous, so none is formed."""
    script = tmp_path / "groups.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script.write_text(MEETS_ON_A_PORT.format(port=free.getsockname()[1]))
    run = start(str(script), (method,), processes=2)
    until(lambda: any(one.kind == "spawned-groups" for one in run.findings()), 120, "a finding")
    (finding,) = (one for one in run.findings() if one.kind == "spawned-groups")
    assert "started 2 that have waited" in finding.evidence
    run.stop(now=True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_note_says_that_a_process_waits_for_a_group_only_while_it_does(
    tmp_path: Path, *, fails: bool
) -> None:
    """One that has formed it is an actor or a worker: what it does is not the run's training."""
    (tmp_path / "metrics").mkdir()
    seen: list[str] = []

    def create() -> str:
        seen.extend(one.name for one in RunPaths(tmp_path).waiting)
        if fails:
            raise RuntimeError("the port is taken")
        return "formed"

    module = SimpleNamespace(init_process_group=create)
    spawned.watch_group(str(tmp_path), 7)["torch.distributed.distributed_c10d"](module)
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        assert module.init_process_group() == "formed"
    assert seen == [f"waits-7-{os.getpid()}"]
    assert not list(RunPaths(tmp_path).waiting)


MP = "import torch.multiprocessing as mp\n"


@pytest.mark.parametrize(
    ("source", "starter"),
    [
        (f"{MP}mp.spawn(f, nprocs=2)", "torch.multiprocessing"),
        ("import torch\ntorch.multiprocessing.spawn(f, nprocs=2)", "torch.multiprocessing"),
        ("from torch.multiprocessing import spawn\nspawn(f, nprocs=2)", "torch.multiprocessing"),
        ("from torch import multiprocessing as m\nm.start_processes(f)", "torch.multiprocessing"),
        (f"{MP}mp.Process(target=f)", None),
        (f"{MP}init_process_group()\nmp.Process(target=f)", "torch.multiprocessing"),
        (f"{MP}environ['RANK'] = '0'\nmp.spawn(f)", "torch.multiprocessing"),
        ("import subprocess\nsubprocess.spawn(f)", None),
        ("from accelerate import notebook_launcher as go\ngo(f)", "accelerate's notebook_launcher"),
        ("import accelerate\naccelerate.notebook_launcher(f)", "accelerate's notebook_launcher"),
        ("from ray.train.torch import TorchTrainer\nTorchTrainer(f).fit()", "Ray Train"),
        ("import os\nos.system(f'torchrun --nproc_per_node {n} train.py')", "torchrun"),
        ("import subprocess\nsubprocess.run(['accelerate', 'launch', x])", "accelerate launch"),
        (
            "from subprocess import run\ncmd = [py, '-m', 'torch.distributed.run', x]\nrun(cmd)",
            "torchrun",
        ),
        ("'torchrun train.py'\nimport os\nos.system('nvidia-smi')", None),
        ("import os\nprint('torchrun train.py')\nos.system(x)", None),
    ],
)
def test_a_script_that_starts_its_ranks_is_launched_as_one_process(
    tmp_path: Path, source: str, starter: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    every: list[dict[str, Any]] = [{}, {"processes": 3}, {"strategy": "fsdp"}]
    for asked in every:
        request = wb.request(script, cpu=True, store=tmp_path / "runs", **asked)
        told = [one for one in request.warnings if "starts its ranks itself" in one]
        if starter is None:
            assert not told
            assert request.processes == asked.get("processes", 2)
        else:
            assert f"({starter}), so it is launched as one process" in told[0]
            assert ("not as 3" in told[0]) == ("processes" in asked)
            assert (request.processes, request.strategy.name) == (1, "single")


@pytest.mark.parametrize(
    "source",
    [
        f"{MP}if 'RANK' not in environ:\n    mp.spawn(f)",
        "import lightning as L\nL.Trainer(devices=2).fit(model)",
        "from pytorch_lightning import Trainer\nTrainer(devices=2).fit(model)",
    ],
)
def test_one_that_follows_a_launcher_has_as_many_as_asked(tmp_path: Path, source: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert wb.request(script, cpu=True, store=tmp_path).processes == 1
    several = wb.request(script, cpu=True, store=tmp_path, processes=2)
    assert several.processes == 2
    assert not [one for one in several.warnings if "starts its ranks" in one]
