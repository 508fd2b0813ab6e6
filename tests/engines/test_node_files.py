"""What passes between the machines of a run, as files alone: no launcher is started."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import workbench as wb
from tests.conftest import allowed, until
from workbench.cli.started import node_commands
from workbench.diagnose import nodes as rules
from workbench.diagnose.facts import NodeFacts
from workbench.launching import lead_node
from workbench.launching.lead_node import lead
from workbench.launching.multinode.agent import NodeAgent
from workbench.launching.multinode.node_spec import marker_of
from workbench.launching.multinode.node_view import NodeView
from workbench.launching.multinode.peers import WAIT_VARIABLE, Peers
from workbench.launching.resume import resume as resume_module
from workbench.launching.resume import starting_point
from workbench.launching.resume.resume import at_work, has_continued, resume
from workbench.launching.resume.run_options import options_of
from workbench.launching.start.launch_spec import check_not_redacted
from workbench.launching.start.start import prepare
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.reattach import may_adopt
from workbench.launching.supervise.restart import RestartController
from workbench.launching.supervise.run_state import RunState
from workbench.launching.supervise.supervisor import Supervisor
from workbench.recover.limits import sentence
from workbench.recover.policy import Recovery
from workbench.recover.restarts import Restarts
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.run_record import RunRecord

ADDRESS = "127.0.0.1"


def run_of(**changes: Any) -> dict[str, Any]:
    """run.json of two machines with a rank each."""
    return {
        "run": "two",
        "name": "two",
        "marker": "m" * 32,
        "created_at": time.time(),
        "processes": 2,
        "nodes": 2,
        "address": ADDRESS,
        "device": "cpu",
        "capture": True,
        "engine": None,
        "recipe": None,
        "script": "train.py",
        "arguments": [],
        "environment": {},
        "trackers": [],
        "recovery": None,
        **changes,
    }


def directory(root: Path, run: dict[str, Any]) -> RunPaths:
    """A run directory that no one has started in yet."""
    paths = RunPaths(root / run["run"])
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    paths.nodes.mkdir(exist_ok=True)
    write_json_atomic(paths.run, run)
    return paths


def order_of(*arguments: str) -> dict[str, Any]:
    """What a supervisor is told to start, at any free port."""
    launcher = ["accelerate", "launch", "--main_process_ip", ADDRESS, "--main_process_port", "0"]
    launcher += ["--num_machines", "2", "--machine_rank", "0", "train.py"]
    return {
        "launcher": launcher,
        "arguments": list(arguments),
        "environment": {},
        "working_directory": "/",
        "warm": None,
        "resume": None,
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    """Node 1's agent, which is moved by hand."""
    run = run_of()
    one = NodeAgent(directory(tmp_path, run), RunRecord.of(run), 1, lambda _: None)
    yield one
    one._reachability.end()


@pytest.fixture
def node_0(agent: NodeAgent) -> Iterator[Callable[[], Peers]]:
    """What a new supervisor on node 0 knows of the machines."""
    made: list[Peers] = []

    def make() -> Peers:
        made.append(Peers(agent.paths, agent.run))
        return made[-1]

    yield make
    for one in made:
        one._beacon.put_out()


def obey(agent: NodeAgent) -> str:
    """One look of the agent at the order."""
    agent._obey(read_json(agent.paths.node_order) or {})
    return agent._phase


def test_a_machine_joins_again_after_an_attempt_that_never_began(
    agent: NodeAgent, node_0: Callable[[], Peers]
) -> None:
    before = node_0()
    before.gather(order_of(), 1, 0)
    until(lambda: obey(agent) == "ready", 20)
    before._write("end")  # the other one did not come in time
    assert obey(agent) == "ended"
    node_0().gather(order_of(), 1, 0)
    until(lambda: obey(agent) == "ready", 20)


class Sleeper:
    """A process that sleeps, with a run's marker."""

    def __init__(self, marker: str) -> None:
        self.process = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: marker})
        self.document = processes.identify(self.process.pid)


@pytest.fixture
def sleeper() -> Iterator[Callable[[str], Any]]:
    """Marked processes that end with the test."""
    made: list[Sleeper] = []

    def make(marker: str) -> Any:
        made.append(Sleeper(marker))
        until(lambda: processes.is_marked(made[-1].document, marker), 20)
        return made[-1].document

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("boot", ["another", "the same"])
def test_who_looks_from_node_1_starts_no_supervisor(
    tmp_path: Path, sleeper: Callable[[str], Any], boot: str
) -> None:
    """There node 0's launcher does not seem to live; a supervisor would end the run."""
    run = run_of(created_at=time.time() - 999)
    paths = directory(tmp_path, run)
    boot_id = processes.boot_id() if boot == "the same" else boot
    gone = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": boot_id}
    ranks = {"0": gone, "1": sleeper(marker_of(RunRecord.of(run), 1))}
    state = {"supervisor": gone, "launcher": gone, "ranks": ranks, "heartbeat": 0}
    write_json_atomic(paths.state, state)
    assert wb.Run(paths).state == "unsupervised"
    assert not wb.Run(paths).adopt()
    assert not may_adopt(paths)
    assert not paths.supervisor_log.exists()
    if boot == "the same":  # node 0 itself: a rank of its continues
        write_json_atomic(paths.state, {**state, "ranks": {"0": sleeper(run["marker"])}})
        assert may_adopt(paths)
        write_json_atomic(paths.node(0), {"host": "somewhere-else"})
        assert not may_adopt(paths)


def test_one_machine_adopts_what_it_ran(tmp_path: Path, sleeper: Callable[[str], Any]) -> None:
    run = run_of(nodes=1)
    paths = directory(tmp_path, run)
    gone = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": processes.boot_id()}
    write_json_atomic(paths.state, {"supervisor": gone})
    assert not may_adopt(paths)  # nothing of it is at work
    write_json_atomic(paths.state, {"supervisor": gone, "launcher": sleeper(run["marker"])})
    assert may_adopt(paths)
    write_json_atomic(paths.state, {"supervisor": {**gone, "boot_id": "another"}})
    assert not may_adopt(paths)


def test_an_error_of_a_rank_on_node_1_is_told_as_that(tmp_path: Path) -> None:
    """Not as an end of the launcher, which would be tried again and again."""
    run = run_of()
    paths = directory(tmp_path, run)
    supervisor = Supervisor(RunState.of(paths, RunRecord.of(run)))
    machines = supervisor.nodes
    assert machines is not None
    told = NodeFacts(node=1, ranks="rank 1", phase="ended", exit_code=1)
    machines.peers.ending = rules.failed(told, 3)
    killed = Verdict(outcome="failed", message="The launcher was killed by SIGKILL (9)")
    assert machines.judge(killed, 3).message.startswith("The launcher of Node 1 ended with")
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'shard-1'"
    end = {"ok": False, "exit_code": 1, "exception": error, "where": "train.py:9", "time": 5.0}
    write_json_atomic(paths.rank_end(1), end)
    verdict = machines.judge(killed, 3)
    assert verdict.failed_rank == 1
    assert verdict.message.startswith("Rank 1 failed: FileNotFoundError")
    restarting = RunRecord.of({**run, "recovery": {"restarts": 3}})
    restarts = RestartController(RunState.of(paths, restarting))
    monitor = cast("RunMonitor", SimpleNamespace(steps=3, first_step=0))
    failure = restarts._failure(monitor, verdict, None)
    assert failure.exception == error
    assert not Restarts(Recovery(restarts=3)).decide(failure).restart
    echo = {**end, "exception": "RuntimeError: [gloo] Connection closed by peer"}
    write_json_atomic(paths.rank_end(1), echo)
    assert machines.judge(killed, 3).message.startswith("The launcher of Node 1 ended with")


def test_a_limit_counts_while_a_machine_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was lost is given half an hour to come back; the others cost money meanwhile."""
    run = run_of(recovery={"max_hours": 1.0})
    paths = directory(tmp_path, run)
    began = {"attempt": 1, "event": "start", "time": time.time() - 3700.0, "first_step": 0}
    paths.attempts.write_text(json.dumps(began) + "\n")
    monkeypatch.setenv(WAIT_VARIABLE, "60")
    supervisor = Supervisor(RunState.of(paths, RunRecord.of(run)))
    state, machines = supervisor.state, supervisor.nodes
    monkeypatch.setattr(state.stop_request, "listen", lambda: None)
    supervisor._monitor = RunMonitor(state, supervisor.ranks, begins=False)
    assert machines is not None
    assert machines.gathered(order_of(), 0) is None
    assert (state.limit, state.stop_request.reason) == (sentence("max_hours", 1.0), "stopped")
    assert machines.peers.ending is None, "no machine is to blame"


def test_a_name_that_leads_nowhere_is_refused_before_machines_are_waited_for(store: Path) -> None:
    how: dict[str, Any] = {"cpu": True, "nodes": 2, "processes": 1, "store": store}
    with pytest.raises(wb.UsageError, match=r"node-0\.invalid leads to no address on this"):
        wb.launch("gpt", address="node-0.invalid", **how)
    assert not wb.Store(store).ids()


def test_secret_arguments_are_refused_before_the_run_and_never_written(
    agent: NodeAgent, node_0: Callable[[], Peers], store: Path
) -> None:
    words = ["--steps", "3", "--hub-token", "very-secret-word"]
    with pytest.raises(wb.UsageError, match="environment variable") as refused:
        wb.request("gpt", words, cpu=True, store=store, nodes=2, address=ADDRESS, processes=1)
    assert "very-secret-word" not in str(refused.value)
    assert wb.request("gpt", ["--steps", "3"], cpu=True, store=store, nodes=2, address=ADDRESS)
    node_0().gather(order_of(*words), 1, 0)
    text = agent.paths.node_order.read_text()
    assert "very-secret-word" not in text
    with pytest.raises(wb.UsageError, match="secret among its arguments"):
        check_not_redacted(agent.run, json.loads(text)["arguments"])


def test_the_last_port_is_followed_by_a_free_one(node_0: Callable[[], Peers]) -> None:
    order = order_of()
    at = order["launcher"].index("--main_process_port") + 1
    order["launcher"][at] = "65535"
    words = node_0().gather(cast("Any", order), 2, 0)["launcher"]
    assert 0 < int(words[words.index("--main_process_port") + 1]) <= 65_535


def test_a_lead_that_cannot_begin_ends_the_run_for_all(agent: NodeAgent) -> None:
    paths = agent.paths
    write_json_atomic(paths.run, run_of(engine={"name": "slurm", "job_id": "7"}))
    assert agent._exit_code_if_over() is None
    with pytest.raises(wb.UsageError, match="--address"):
        lead(paths, None, None, lambda _: None)
    status = wb.Run(paths).status
    assert (status.outcome, status.live) == ("failed", False)
    assert "Node 0 could not start the run: Node 0 is found by the others" in str(status.message)
    assert agent._exit_code_if_over() == 0
    before = paths.exit.read_text()
    with pytest.raises(wb.UsageError):
        lead(paths, None, None, lambda _: None)
    assert paths.exit.read_text() == before


def test_a_lead_is_heard_while_it_reads_the_checkpoints(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json_atomic(agent.paths.state, {"heartbeat": 1.0, "attempt": 1, "phase": "running"})
    beats = set[float]()

    def slow(*_: object) -> tuple[None, list[str]]:
        state = agent.paths.state
        until(lambda: beats.add((read_json(state) or {})["heartbeat"]) or len(beats) > 2, 60)
        return None, ["passed"]

    monkeypatch.setattr(starting_point, "_newest_by_itself", slow)
    beat = functools.partial(lead_node._beat, agent.paths)
    found = starting_point.start_by_itself(agent.paths, RunRecord(), (), beat)
    assert found == (None, ["passed"])
    assert (read_json(agent.paths.state) or {})["attempt"] == 1


def two_machines(store: Path, *words: str) -> RunPaths:
    """A run of two machines as its launch writes it, and as it is when it has failed."""
    request = wb.request(
        "gpt",
        ["--steps", "9", *words],
        cpu=True,
        store=store,
        nodes=2,
        address=ADDRESS,
        port=29_877,
    )
    paths, _ = prepare(request)
    write_json_atomic(paths.exit, {"outcome": "failed", "message": "lost", "ended_at": 1.0})
    return paths


def test_a_resumed_run_waits_for_its_machines_and_says_so(store: Path, tmp_path: Path) -> None:
    paths = two_machines(store)
    folder = tmp_path / "step-4"
    folder.mkdir()
    began = time.monotonic()
    resume(paths, str(folder), arguments=["--resume", "{checkpoint}"])
    assert time.monotonic() - began < allowed(30), "an attempt was waited for, not the supervisor"
    run = wb.Run(paths)
    assert run.status.live
    assert node_commands(run) == [f"workbench node {paths.directory} --rank 1"]
    until(lambda: "Waiting for node 1 of 2" in str(run.status.message), 60)
    assert run.stop(timeout=60)["outcome"] == "stopped"


def test_a_supervisor_that_waits_has_taken_up_a_run_of_several_machines(tmp_path: Path) -> None:
    paths = directory(tmp_path, run_of())
    me = processes.identify(os.getpid())
    write_json_atomic(paths.state, {"attempt": 3, "supervisor": None})
    before = at_work(paths)
    assert not has_continued(paths, RunRecord.of(run_of()), before)
    write_json_atomic(paths.state, {"attempt": 3, "supervisor": me})
    assert has_continued(paths, RunRecord.of(run_of()), before)
    assert not has_continued(paths, RunRecord.of(run_of(nodes=1)), before)
    write_json_atomic(paths.state, {"attempt": 4, "supervisor": me})
    assert has_continued(paths, RunRecord.of(run_of(nodes=1)), before)


def test_another_layout_keeps_the_machines(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = two_machines(store)
    begun: list[wb.Request] = []
    monkeypatch.setattr(resume_module, "begin", lambda request, _: begun.append(request))
    words = ["--resume", "{checkpoint}"]
    resume(paths, str(tmp_path), strategy="fsdp", processes=1, arguments=words)
    assert (begun[0].nodes, begun[0].options.address, begun[0].processes) == (2, ADDRESS, 2)
    assert begun[0].command[begun[0].command.index("--main_process_port") + 1] == "29877"
    document = {**(read_json(paths.run) or {}), "engine": {"name": "slurm", "job_id": "7"}}
    write_json_atomic(paths.run, document)
    with pytest.raises(wb.UsageError, match="machines of slurm"):
        resume(paths, str(tmp_path), strategy="fsdp", processes=1, arguments=words)


def test_the_port_of_a_run_is_the_launchers_not_its_scripts(store: Path) -> None:
    paths = two_machines(store)
    document = read_json(paths.run) or {}
    document["command"] = [*document["command"], "--main_process_port", "31000"]
    assert options_of(paths, RunRecord.of(document)).port == 29_877


class Apart:
    """Node 0 and node 1, of whose storage only ``nodes/`` is up to date on the other one."""

    def __init__(self, root: Path) -> None:
        document = run_of()
        self.run = RunRecord.of(document)
        self.supervisor = Supervisor(RunState.of(directory(root / "0", document), self.run))
        self.agent = NodeAgent(directory(root / "1", document), self.run, 1, lambda _: None)
        assert self.supervisor.nodes is not None
        self.machines = self.supervisor.nodes
        self.nodes = self.machines.peers

    def pass_time(self) -> None:
        """One look of each at what the other one told."""
        shutil.copy(self.supervisor.state.paths.node_order, self.agent.paths.node_order)
        obey(self.agent)
        self.agent._report()
        shutil.copy(self.agent.paths.node(1), self.supervisor.state.paths.node(1))
        self.machines.look(10)

    def gather(self) -> None:
        """Node 1 is ready."""
        self.nodes.gather(order_of(), 1, 0)
        self.pass_time()
        until(lambda: obey(self.agent) == "ready", 20)

    def train(self) -> None:
        """An attempt is under way, but for its processes."""
        self.gather()
        self.nodes.go()
        self.agent._phase = "running"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    """Two machines, moved by hand."""
    made = Apart(tmp_path)
    yield made
    made.agent._reachability.end()
    made.nodes._beacon.put_out()


def test_the_step_to_stop_at_reaches_ranks_that_see_no_new_file(apart: Apart) -> None:
    apart.train()
    apart.pass_time()
    stop_at = apart.agent.paths.control / "stop-at"
    assert not stop_at.exists()
    ladder = apart.supervisor.state.ladder
    ladder.request(now=False, steps=10, step_seconds=0.1)
    assert ladder.stop_at is not None
    assert ladder.stop_at >= 10 + 50, "less than five seconds ahead"
    apart.pass_time()
    apart.pass_time()
    assert stop_at.read_text() == str(ladder.stop_at)
    first = ladder.stop_at
    ladder.tick(None, first + 5, 0.1)  # the ranks had passed it: a later one is named
    assert ladder.stop_at > first
    apart.pass_time()
    apart.pass_time()
    assert stop_at.read_text() == str(ladder.stop_at)
    apart.agent._pass_on(first)
    assert stop_at.read_text() == str(ladder.stop_at), "old news must not win"


def test_one_machine_stops_as_soon_as_before(tmp_path: Path) -> None:
    run = run_of(nodes=1)
    ladder = Supervisor(RunState.of(directory(tmp_path, run), RunRecord.of(run))).state.ladder
    ladder.request(now=False, steps=10, step_seconds=0.1)
    assert ladder.stop_at == 10 + 10 + 2


def test_a_notice_on_node_1_reaches_a_supervisor_that_sees_no_new_file(apart: Apart) -> None:
    apart.train()
    apart.pass_time()
    apart.pass_time()
    assert apart.supervisor.state.stop_request.reason is None
    apart.agent._hand_over()
    apart.pass_time()
    assert apart.supervisor.state.stop_request.reason == "preempted"
    assert str(apart.supervisor.state.stop_request.notice).startswith("Node 1 (")
    assert (apart.supervisor.state.paths.control / "preempt").exists()
    later = NodeView(apart.supervisor.state.paths, apart.run)
    later.look()
    assert later.notices() == [], "a file may be of a machine that is long gone"


def test_a_machine_is_ready_only_if_it_is_heard(apart: Apart) -> None:
    """An agent that was killed while it was ready leaves its file."""
    apart.gather()
    apart.pass_time()
    assert apart.nodes._view.is_ready(1, 1)
    anew = NodeView(apart.supervisor.state.paths, apart.run)
    anew.look()
    anew.look()
    assert not anew.is_ready(1, 1)
    apart.agent._report()
    shutil.copy(apart.agent.paths.node(1), apart.supervisor.state.paths.node(1))
    anew.look()
    assert anew.is_ready(1, 1)


def test_ranks_are_here_by_their_number(apart: Apart) -> None:
    """Containers of one host have the same boot, and see one another's processes or do not."""
    assert [apart.machines.is_here(rank) for rank in (0, 1)] == [True, False]
    me = processes.identify(os.getpid())
    assert me is not None
    told = {"process": me, "alive": False}
    write_json_atomic(
        apart.supervisor.state.paths.node(1), {"node": 1, "beat": 1, "ranks": {"1": told}}
    )
    apart.nodes.look(0)
    apart.supervisor.state.ranks = {0: me, 1: me}
    assert apart.supervisor.ranks.facts(0).alive
    assert not apart.supervisor.ranks.facts(1).alive


def test_ranks_here_take_node_0s_end_for_an_end(apart: Apart) -> None:
    apart.train()
    apart.nodes._write("end")
    apart.pass_time()
    assert apart.agent._phase == "ended"
    assert (apart.agent.paths.control / "terminating").exists()
