"""Runs over several machines: two agents on one loopback, and two machines with a cable between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.engines.netns import TwoMachines, why_not, workbench
from workbench.describe import Strategy
from workbench.engines.commands import plain_commands
from workbench.engines.job import EngineJob
from workbench.launching.multinode.node_spec import marker_of
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.full]
TINY = ("--size", "1", "--micro-batch", "2", "--seq-len", "32")
ENDLESS = (*TINY, "--steps", "100000", "--checkpoint-every", "20")


def join(run: wb.Run, agents: list[subprocess.Popen[bytes]], rank: int = 1) -> Path:
    """Start node `rank`'s agent on this machine."""
    log = run.directory / f"agent-{len(agents)}.txt"
    with log.open("ab") as output:
        command = workbench("node", str(run.directory), "--rank", str(rank))
        agents.append(subprocess.Popen(command, stdout=output, stderr=output))
    return log


def node_document(run: wb.Run, rank: int) -> dict[str, object]:
    """What node `rank` told."""
    return read_json(RunPaths(run.directory).node(rank)) or {}


def kinds(run: wb.Run) -> set[str]:
    """Kinds of the findings that stand or stood."""
    return {one.kind for one in run.findings()}


def launch(store: Path, arguments: tuple[str, ...] = ENDLESS, **options: object) -> wb.Run:
    """Node 0 on the loopback."""
    with_address = {"nodes": 2, "address": "127.0.0.1", "processes": 1, "cpu": True, **options}
    return wb.launch("gpt", list(arguments), store=store, **with_address)


def test_two_agents_on_the_loopback_train_stop_and_leave_nothing(
    store: Path, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """And who cannot join is told why."""
    run = launch(store)
    until(lambda: "Waiting for node 1 of 2" in str(run.status.message), 60)
    assert f"workbench node {run.directory} --rank 1" in str(run.status.message)
    assert "cannot be read" in refused("node", str(tmp_path), "--rank", "1")
    assert "--rank is from 1 to 1" in refused("node", str(run.directory), "--rank", "0")
    join(run, agents)
    until(lambda: node_document(run, 1), 60, "the agent")
    assert "has an agent already" in refused("node", str(run.directory), "--rank", "1")
    until(lambda: run.view()["steps"] >= 25, 120, "25 steps")
    assert run.view()["world_size"] == 2
    assert {row["rank"] for row in run.view()["ranks"]} == {0, 1}
    result = run.stop()
    assert result["outcome"] == "stopped"
    assert result["processes_left"] == 0
    assert agents[0].wait(240) == 0
    assert node_document(run, 1)["phase"] == "left"
    assert not processes.find_marked(marker_of(RunRecord.of(run.document), 1))
    assert run.checkpoints(check=True)[0].problem == ""


def refused(*words: str) -> str:
    done = subprocess.run(workbench(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


def test_a_killed_rank_of_node_1_is_named_and_the_run_goes_on(
    store: Path, agents: list[subprocess.Popen[bytes]]
) -> None:
    run = launch(store, recovery=Recovery(restarts=1, backoff_seconds=0.1))
    join(run, agents)
    until(run.checkpoints, 120, "a checkpoint")
    victim = (read_json(RunPaths(run.directory).rank_start(1)) or {})["process"]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: (read_json(RunPaths(run.directory).state) or {}).get("attempt") == 2, 120)
    until(lambda: run.view()["attempt"] == 2 and run.view()["steps"] > 25, 120, "steps again")
    message = run.view()["attempts"][1]["message"]
    assert message.startswith("Rank 1 was killed by SIGKILL")
    assert run.view()["attempts"][2]["first_step"] >= 20
    assert run.stop()["outcome"] == "stopped"


ALONE = """
import os, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    if os.environ["RANK"] == "1" and step == 3:
        raise FileNotFoundError(2, "No such file or directory", "shard-1")
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
"""


def test_an_error_on_node_1_is_told_and_not_tried_again(
    store: Path, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Rank 0 notices nothing by itself: node 1's launcher has ended, and its rank says why."""
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    options = {"nodes": 2, "address": "127.0.0.1", "processes": 1, "cpu": True}
    run = wb.launch(script, store=store, recovery=Recovery(restarts=3), **options)
    join(run, agents)
    assert run.wait(180) == "failed"
    assert str(run.status.message).startswith("Rank 1 failed: FileNotFoundError"), run.status
    assert run.view()["attempt"] == 1


def test_a_node_that_never_comes_ends_the_run_with_its_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_NODE_WAIT_SECONDS", "3")
    run = launch(store, recovery=Recovery(restarts=3))
    assert run.wait(240) == "failed"
    assert kinds(run) == {"node-missing"}
    assert f"workbench node {run.directory} --rank 1" in str(run.status.message)


def test_a_run_that_waits_for_its_nodes_can_be_stopped(store: Path) -> None:
    run = launch(store)
    until(lambda: "Waiting for node" in str(run.status.message), 60)
    assert run.stop(timeout=240)["outcome"] == "stopped"


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"nodes": 2}, "--address"),
        ({"nodes": 2, "address": "0.0.0.0"}, "every interface"),
        ({"nodes": 2, "address": "a b"}, "not an address"),
        ({"nodes": 0}, "at least 1"),
        ({"address": "10.0.0.1"}, "Add --nodes"),
        ({"nodes": 2, "address": "10.0.0.1", "strategy": "tp3"}, "equal shares"),
    ],
)
def test_wishes_that_cannot_be_are_refused(
    store: Path, wish: dict[str, object], words: str
) -> None:
    with pytest.raises(wb.UsageError, match=words):
        wb.request("gpt", list(TINY), cpu=True, store=store, **wish)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_machine_that_is_cut_off_is_named_and_joins_again(tmp_path: Path) -> None:
    """The cable of node 1 is pulled in mid-run: the finding names it; mended, the run resumes."""
    with TwoMachines(tmp_path) as machines:
        words = ["launch", "gpt", "--nodes", "2", "--nproc", "1", "--cpu", "--restarts", "3"]
        words += ["--address", machines.addresses[0], "--store", str(tmp_path / "runs"), "--json"]
        told = json.loads(machines.on_first(*workbench(*words, "--", *ENDLESS)))
        run = wb.Run(RunPaths(Path(told["dir"])))
        assert told["nodes"] == [f"workbench node {run.directory} --rank 1"]
        machines.start(1, workbench(*told["nodes"][0].split()[1:]), tmp_path / "agent.txt")
        until(lambda: run.view()["steps"] >= 25 and run.checkpoints(), 120, "a checkpoint")
        assert node_document(run, 1)["host"] == "node-one"
        assert all(row["alive"] for row in run.view()["ranks"])
        machines.cut()
        until(lambda: "node-lost" in kinds(run), 60, "the finding")
        before = run.view()["steps"]
        lost = next(one for one in run.findings() if one.kind == "node-lost")
        assert "Node 1 (node-one, 10.213.77.2)" in lost.cause
        assert "has not reached node 0's address since" in lost.evidence
        assert "hang" not in kinds(run)
        until(lambda: "Waiting for Node 1 (node-one" in str(run.status.message), 120, "waiting")
        machines.mend()
        until(lambda: run.view()["attempt"] == 2 and run.view()["steps"] > before, 120, "goes on")
        first_end, second = run.view()["attempts"][1:3]
        assert first_end["message"].startswith("Node 1 (node-one, 10.213.77.2) is disconnected")
        assert 20 <= second["first_step"] <= before
        assert {row["step"] for row in run.metrics()} >= set(range(1, before))
        assert run.stop(timeout=120)["processes_left"] == 0


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_printed_commands_train_on_both_machines(tmp_path: Path) -> None:
    """`plain_commands` needs Accelerate alone: what it prints is pasted into a shell of each."""
    job = EngineJob(
        name="plain",
        script="gpt",
        arguments=(*TINY, "--steps", "5"),
        strategy=Strategy.parse("fsdp", 2),
        nodes=2,
        processes_per_node=1,
        python=sys.executable,
        working_directory=tmp_path,
    )
    with TwoMachines(tmp_path) as machines:
        logs = [tmp_path / f"node-{node}.txt" for node in (0, 1)]
        texts = plain_commands(job, machines.addresses[0], 29_511)
        started = [
            machines.start(node, ["sh", "-c", text], logs[node]) for node, text in enumerate(texts)
        ]
        codes = [process.wait(120) for process in started]
    assert codes == [0, 0], logs[0].read_text()[-2000:] + logs[1].read_text()[-2000:]
    assert "step 5" in logs[0].read_text().lower()
