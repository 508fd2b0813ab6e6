"""GPUs of several machines: each has a simulated driver of its own, and the rules look on node 0."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.cpu_budget import over_budget
from tests.diagnose.sample import STEP, Replay, gpu, kinds, row, run_document, sample
from tests.pod.place import Placed
from workbench.describe.detection import detect_host
from workbench.diagnose.facts import NodeFacts
from workbench.diagnose.offline import diagnose_offline
from workbench.launching.multinode.agent import NodeAgent
from workbench.launching.supervise import run_state
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.nodes import RunNodes
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.run_state import RunState
from workbench.observe.gpu import PatientGpuSampler
from workbench.rehearsing.driver.pod import Pod
from workbench.store.files import append_line
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

Put = Callable[[Pod], Placed]
EACH = 8
SECONDS = range(0, 200, 4)
LOST_AT = 120


def busy(count: int = EACH) -> Pod:
    return Pod("h100-sxm", count).busy(0, range(count))


def readings(put: Put, pod: Pod) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A machine as its launch or agent reads it: what it has, and its samples."""
    placed = put(pod)
    cluster, sampler = asdict(detect_host()), PatientGpuSampler()
    lines: list[dict[str, Any]] = []
    for second in SECONDS:
        placed.second = second
        gpus = [one.document() for one in sampler.sample()]
        lines.append(sample(1010.0 + second, gpus=gpus))
    return cluster, lines


def recorded(folder: Path, put: Put, pods: Mapping[int, Pod], nodes: int) -> RunPaths:
    """The directory of a run whose machines tell what `pods` show; the others are well."""
    cluster, well = readings(put, busy())
    told = {node: readings(put, pod)[1] for node, pod in pods.items()}
    ranks = nodes * EACH
    changed = {"device": "cuda", "cluster": cluster, "nodes": nodes, "processes": ranks}
    paths = Replay(folder, **changed).paths
    paths.nodes.mkdir()
    for node in range(nodes):
        lines = (json.dumps(line) for line in told.get(node, well))
        paths.node_system(node).write_text("\n".join(lines) + "\n")
    for rank in range(ranks):
        for step in range(1, round(200 / STEP), 40):
            at = 1010.0 + step * STEP
            line = {"step": step, "time": at, "loss": 3.0 - step / 9999, "step_seconds": STEP}
            line |= {"backward_at": at - 0.06}
            append_line(paths.rank_metrics(rank), json.dumps(line).encode())
    return paths


def standing(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.cleared_at is None]


@pytest.mark.parametrize(
    ("node", "pod", "kind", "says"),
    [
        (
            7,
            busy().busy(60, 5, throttle=0x40, temperature=93, clock=1100),
            "thermal-throttling",
            "gpu5 of node 7 was throttled for heat",
        ),
        (3, busy().busy(60, 5, throttle=0x88, clock=1000), "power-throttling", "gpu5 of node 3"),
        (1, busy().busy(0, 5, throttle=0, clock=900), "slow-clock", "gpu5 of node 1 runs at 900"),
        (
            6,
            busy().lost(LOST_AT, 5),
            "gpu-lost",
            "gpu5 of node 6 returned no reading in the last 3",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_one_gpu_of_sixty_four_is_named_with_its_machine(
    tmp_path: Path, put: Put, node: int, pod: Pod, kind: str, says: str
) -> None:
    """A clock that is low from the start is seen beside the peers on other machines alone."""
    (found,) = standing(diagnose_offline(recorded(tmp_path, put, {node: pod}, nodes=8)))
    assert (found.kind, found.node, found.gpu, found.rank) == (kind, node, 5, node * EACH + 5)
    assert says in found.evidence


def test_machines_whose_cards_are_all_slow_or_silent(tmp_path: Path, put: Put) -> None:
    slow = busy().busy(0, range(EACH), throttle=0, clock=900)
    silent = busy().error(LOST_AT, "*", 999)
    paths = recorded(tmp_path, put, {1: silent, 2: slow, 4: silent}, nodes=5)
    found = standing(diagnose_offline(paths))
    assert {one.kind for one in found} == {"gpu-lost", "slow-clock"}
    (lost,) = (one for one in found if one.kind == "gpu-lost")
    assert lost.evidence.startswith("No GPU of node 1 and node 4 returned a reading")
    clocks = {one.rank for one in found if one.kind == "slow-clock"}
    assert clocks == set(range(2 * EACH, 3 * EACH))


def test_healthy_machines_are_silent(tmp_path: Path, put: Put) -> None:
    assert diagnose_offline(recorded(tmp_path, put, {}, nodes=8)) == []


def test_cards_of_another_model_have_peers_of_their_own(tmp_path: Path, put: Put) -> None:
    """What the machines' agents report their cards decides who is beside whom."""
    (_, older), (cluster, newer) = readings(put, a100()), readings(put, busy(4))
    replay = Replay(tmp_path, device="cuda", cluster=cluster, nodes=2, processes=8)
    models = ["NVIDIA A100-SXM4-80GB"] * 4
    node = NodeFacts(node=1, ranks="ranks 4 to 7", gpus=dict(enumerate(models)))
    replay.facts = {"nodes": (NodeFacts(node=0, ranks="ranks 0 to 3"), node)}
    found: list[Finding] = []
    for here, there in zip(newer, older, strict=True):
        replay.diagnoser.sample(there, 1)
        found = replay.samples([here])
    assert kinds(found) == []


def a100() -> Pod:
    return Pod("a100-sxm-80", 4).busy(0, range(4), throttle=0, clock=1000)


def test_nobody_is_idle_while_a_machine_works(tmp_path: Path) -> None:
    recovery = {"idle_minutes": 1}
    run = {"device": "cuda", "nodes": 2, "processes": 2, "recovery": recovery}
    replay = Replay(tmp_path, cluster={"gpus": [{"index": 0}]}, **run)
    replay.rows([row(number, 3.0) for number in range(1, 30)])
    busy_until = 150
    found: list[Finding] = []
    for second in range(300):
        util = 90.0 if second < busy_until else 0.0
        replay.diagnoser.sample(sample(1010.0 + second, gpus=[gpu(0, util=util)]), 1)
        found = replay.samples([sample(1010.0 + second, gpus=[gpu(0, util=0.0)])])
        if second <= busy_until:
            assert "idle-gpus" not in kinds(found)
    assert "idle-gpus" in kinds(found)


def test_a_look_at_a_thousand_cards_takes_less_than_a_second(tmp_path: Path) -> None:
    """All of them too hot, which is the most that there is to say."""
    nodes = 128
    cluster = {"gpus": [{"index": index, "name": "H100"} for index in range(EACH)]}
    replay = Replay(tmp_path, device="cuda", cluster=cluster, nodes=nodes, processes=nodes * EACH)
    took: list[float] = []
    found: list[Finding] = []
    hot = [gpu(index, throttle_reasons=0x40, temperature_c=93.0) for index in range(EACH)]
    for second in range(64):
        begun = time.thread_time()
        for node in range(nodes):
            replay.diagnoser.sample(sample(1010.0 + second, gpus=hot), node)
        if second >= 58:  # a minute is covered with the last ones
            found = replay.look(1010.0 + second)
            took.append(time.thread_time() - begun)
    print(f"a look at {nodes * EACH} GPUs takes {median(took):.3f} s, at most {max(took):.3f} s")
    assert "thermal-throttling" in kinds(found)
    assert not over_budget(median(took), 1.0)


def test_a_supervisor_looks_at_what_the_agents_tell(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Card 0 is this machine's, card 1 that of the other one, whose agent reports it."""
    monkeypatch.setattr(run_state, "lower_oom_score", lambda: 0)
    placed = put(busy(2).lost(20, 1))
    paths = RunPaths(tmp_path)
    paths.make_folders()
    paths.nodes.mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    cluster = asdict(detect_host())
    run = RunRecord.of(run_document(device="cuda", cluster=cluster, nodes=2))
    state = RunState.of(paths, run)
    state.attempts.begin(first_step=0, checkpoint=None, why=None)
    nodes = RunNodes(state, lambda _: None)
    monitor = RunMonitor(state, RankProcesses(state, nodes), begins=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    agent = NodeAgent(paths, run, 1, print)
    for second in (0, 5, 10, 21, 22, 23, 24):
        placed.second = second
        agent._sample_due = 0.0
        agent._report()
        nodes.peers._view.look()
        monitor._sample_hardware()
        monitor.diagnoser._slow_due = 0.0  # the rules over samples look every three seconds
        monitor.diagnose()
    monitor._sealer.stop()
    (found,) = standing(monitor.findings)
    assert (found.kind, found.node, found.gpu, found.rank) == ("gpu-lost", 1, 1, 1)


def test_the_workbench_plans_for_the_pod_that_it_is_opened_on(put: Put, tmp_path: Path) -> None:
    workbench_widgets = pytest.importorskip("workbench_widgets")
    put(Pod("h100-sxm", 8))
    workbench = workbench_widgets.Workbench(store=tmp_path / "runs")
    (planner,) = workbench.open_tab("Plan")
    planner.set(model="llama-3.2-1b", tokens="1B")
    plans = planner.wait()
    assert {(plan.provider, plan.gpu) for plan in plans} == {("own machines", "h100-sxm")}
    assert {plan.gpus for plan in plans} == {1, 8}
    assert planner.detail["launch"]["lacks"] == []
    planner.use()
    assert "The launch form is set to" in planner.handed["says"]
    planner.close()
    workbench.close()
