"""Memory, shared memory, disk and swap of every machine of a run; findings name the machine."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.diagnose.sample import Replay, kinds, sample
from tests.engines.netns import workbench
from workbench.describe import cgroups
from workbench.diagnose.facts import NodeFacts, RankFacts
from workbench.diagnose.offline import diagnose_offline
from workbench.observe import host
from workbench.store import processes
from workbench.store.files import append_line
from workbench.store.findings import Finding
from workbench.store.run_record import RunRecord

GIB = 1 << 30
WELL: dict[str, Any] = {
    "memory_total_bytes": 100 * GIB,
    "disk_total_bytes": 1000 * GIB,
    "shared_memory_used_bytes": 0,
    "shared_memory_total_bytes": 8 * GIB,
}
Change = Callable[[int], dict[str, Any]]


def watched(
    folder: Path, changes: dict[int, Change], nodes: int = 4, **facts: Any
) -> list[Finding]:
    """Findings of two ranks a machine after 90 seconds in which `changes` happen to some."""
    replay = Replay(folder, nodes=nodes, processes=2 * nodes)
    replay.facts = {
        "nodes": [NodeFacts(node=node, ranks="", host=f"gpu-{node}") for node in range(nodes)],
        **facts,
    }
    found: list[Finding] = []
    for second in range(90):
        for node in range(nodes - 1, -1, -1):
            changed = changes.get(node, lambda _second: {})(second)
            line = sample(1000.0 + second, **WELL | changed)
            if node:
                replay.diagnoser.sample(line, node)
            else:
                found = replay.samples([line])
    return [finding for finding in found if finding.cleared_at is None]


def used(share: float) -> Change:
    return lambda _second: {"memory_used_bytes": int(share * 100) * GIB}


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("host-memory", used(0.99), "99 GiB of 100 GiB host memory on node 2 (gpu-2) are used"),
        (
            "host-memory",
            lambda second: {"memory_used_bytes": (50 + second // 2) * GIB},
            "on node 2 (gpu-2) are used (91%), full in",
        ),
        (
            "shared-memory",
            lambda _second: {"shared_memory_used_bytes": int(7.6 * GIB)},
            "of /dev/shm on node 2 (gpu-2) are used",
        ),
        (
            "disk",
            lambda second: {"disk_free_bytes": (200 - second) * GIB // 4},
            "on node 2 (gpu-2), full in",
        ),
        (
            "cpu-limit",
            lambda second: {"cpu_refused_share": 0.55 if second % 4 else None},
            "container on node 2 (gpu-2) refused 55% of the processor time",
        ),
    ],
    ids=["memory", "growing-memory", "shared-memory", "disk", "cpu-limit"],
)
def test_one_machine_of_four_is_named(tmp_path: Path, kind: str, change: Change, says: str) -> None:
    (found,) = watched(tmp_path, {2: change})
    assert (found.kind, found.node, found.rank) == (kind, 2, None)
    assert says in found.evidence


def test_the_rank_with_the_most_memory_is_one_of_that_machine(tmp_path: Path) -> None:
    ranks = {rank: RankFacts(rss_bytes=(10 if rank == 1 else rank) * GIB) for rank in range(8)}
    (found,) = watched(tmp_path, {2: used(0.99)}, ranks=ranks)
    assert "; rank 5 has the most, 5 GiB." in found.evidence


def test_several_machines_are_one_finding_the_worst_first(tmp_path: Path) -> None:
    changes = {1: used(0.96), 2: used(0.99), 3: used(0.97), 4: used(0.98)}
    (found,) = watched(tmp_path, changes, nodes=5)
    assert (found.node, found.severity) == (None, "error")
    places = [found.evidence.index(f"node {node} (") for node in (2, 4, 3)]
    assert places == sorted(places)
    assert found.evidence.endswith("; and 1 more machine.")


def test_a_disk_that_all_machines_share_is_told_once(tmp_path: Path) -> None:
    def fills(second: int) -> dict[str, Any]:
        return {"disk_free_bytes": (200 - second) * GIB // 4}

    (found,) = watched(tmp_path, dict.fromkeys(range(4), fills))
    assert (found.kind, found.node) == ("disk", None)
    assert "node" not in found.evidence


def cache(free: float) -> list[dict[str, Any]]:
    """The disk of Hugging Face's cache, which is not the run's."""
    return [{"path": "/root/hub", "free_bytes": int(free * GIB), "total_bytes": 20 * GIB}]


def test_another_disk_that_fills_is_named_with_its_folder(tmp_path: Path) -> None:
    (found,) = watched(tmp_path, {2: lambda second: {"other_disks": cache(12 - second / 10)}})
    assert (found.kind, found.node) == ("disk", 2)
    assert "3.6 GiB are free on the disk of /root/hub on node 2 (gpu-2), full in" in found.evidence


def test_two_full_disks_of_one_machine_are_one_finding(tmp_path: Path) -> None:
    full = {"other_disks": cache(0.125), "disk_free_bytes": GIB // 2}
    (found,) = watched(tmp_path, {1: lambda _second: full})
    assert (found.node, found.severity) == (1, "error")
    first, second = found.evidence.split("; ")
    assert first.startswith("128 MiB are free on the disk of /root/hub on node 1")
    assert second.startswith(f"512 MiB are free on the disk of {tmp_path} on node 1")


def test_a_disk_that_all_machines_share_hides_no_other(tmp_path: Path) -> None:
    own = {"disk_free_bytes": GIB // 2}
    changes: dict[int, Change] = {node: lambda _second: own for node in range(4)}
    changes[3] = lambda _second: own | {"other_disks": cache(0.125)}
    (found,) = watched(tmp_path, changes)
    assert found.node is None
    assert "/root/hub on node 3" in found.evidence
    assert f"512 MiB are free on the disk of {tmp_path}." in found.evidence


@pytest.mark.parametrize("odd", [5, [5], ["a"], [{"path": "/a"}], [{"free_bytes": None}], {"a": 1}])
def test_other_disks_that_make_no_sense_are_left_out(tmp_path: Path, odd: object) -> None:
    assert watched(tmp_path, {0: lambda _second: {"other_disks": odd}}) == []


def test_healthy_machines_of_unequal_size_are_silent(tmp_path: Path) -> None:
    small = {"memory_total_bytes": 32 * GIB, "memory_used_bytes": 20 * GIB}
    large = {"memory_total_bytes": 2000 * GIB, "memory_used_bytes": 900 * GIB}
    assert watched(tmp_path, {1: lambda _second: small, 3: lambda _second: large}) == []


def test_swapped_ranks_of_any_machine(tmp_path: Path) -> None:
    swapped = {2: 3 * GIB, 3: 2 * GIB, 7: 2 * GIB}
    ranks = {
        rank: RankFacts(rss_bytes=4 * GIB, swapped_bytes=swapped.get(rank, 0)) for rank in range(8)
    }
    found = watched(tmp_path, {}, ranks=ranks)
    told = {(one.kind, one.rank, one.node) for one in found if one.kind == "swap"}
    assert told == {("swap", 2, 1), ("swap", 7, 3)}
    assert "of rank 2 on node 1 (gpu-1) are swapped out" in " ".join(one.evidence for one in found)


def test_a_recorded_run_of_two_machines(tmp_path: Path) -> None:
    replay = Replay(tmp_path, nodes=2, processes=2)
    replay.paths.nodes.mkdir()
    for second in range(90):
        for node, share in ((0, 0.2), (1, 0.99)):
            line = sample(1000.0 + second, **WELL | used(share)(second))
            append_line(replay.paths.node_system(node), json.dumps(line).encode())
        for rank in range(2):
            step = {"step": second + 1, "time": 1000.0 + second, "loss": 3.0, "step_seconds": 1.0}
            append_line(replay.paths.rank_metrics(rank), json.dumps(step).encode())
    found = [one for one in diagnose_offline(replay.paths) if one.kind == "host-memory"]
    assert [(one.node, one.cleared_at) for one in found] == [(1, None)]
    assert "on node 1 are used (99%)" in found[0].evidence


@pytest.mark.parametrize("job", ["", "system.slice/job_7"])  # a container; a job of Slurm
@pytest.mark.parametrize("step", ["", "step_0"])  # without a limit of its own
def test_what_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, step: str
) -> None:
    """Of a limit of 32 GiB, 30 are used, 20 of them by cached files: a third, and no finding."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"0::/{job}/{step}\n")
    group = tmp_path / job
    (group / step).mkdir(parents=True, exist_ok=True)
    (group / step / "memory.max").write_text("max\n")
    (group / "memory.max").write_text(f"{32 * GIB}\n")
    (group / "memory.current").write_text(f"{30 * GIB}\n")
    (group / "memory.stat").write_text(
        f"anon {10 * GIB}\nfile {20 * GIB}\ninactive_file {15 * GIB}\nactive_file {5 * GIB}\n"
    )
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    monkeypatch.setattr(host.psutil, "virtual_memory", lambda: _Memory)
    line = host.HostSampler(tmp_path, RunRecord(device="cuda")).sample(())
    assert (line["memory_used_bytes"], line.get("memory_total_bytes")) == (10 * GIB, 32 * GIB)
    found = Replay(tmp_path).samples([dict(line) | {"time": 1000.0 + n} for n in range(20)])
    assert kinds(found) == []


class _Memory:
    """Of the container's host: most of it belongs to others."""

    total, available = 1000 * GIB, 400 * GIB


def test_processes_that_come_and_go_take_nothing_from_the_rate_of_the_others(
    tmp_path: Path,
) -> None:
    """Neither what one had used before it was listed counts, nor is it taken off at its end."""
    own, sampler = processes.identify(os.getpid()), host.HostSampler(tmp_path, RunRecord())
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as worker:
        assert own is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        other = processes.identify(worker.pid)
        assert other is not None
        sampler.sample([other])
        listed = sampler.sample([own, other])
        worker.kill()
    assert (listed.get("run_cpu_percent") or 0.0) < 100 * (os.cpu_count() or 1)
    until_used = time.process_time() + 0.05
    while time.process_time() < until_used:
        pass
    assert (sampler.sample([own, other]).get("run_cpu_percent") or 0.0) > 0


@pytest.mark.parametrize("error", [FileNotFoundError("/proc/net/dev"), PermissionError("it")])
def test_counters_that_cannot_be_read_are_unknown_and_cost_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(host.psutil, "net_io_counters", refuse)
    sampler = host.HostSampler(tmp_path, RunRecord())
    sampler.sample(())
    line = sampler.sample(())
    assert line.get("net_bytes_per_second") is None
    assert line.get("memory_used_bytes")


def test_what_ranks_of_one_host_exchange_is_no_network_traffic() -> None:
    before, piece = host._network_bytes(), bytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            for _ in range(64):
                sending = threading.Thread(target=sender.sendall, args=(piece,))
                sending.start()
                received = 0
                while received < len(piece):
                    received += len(receiver.recv(1 << 20))
                sending.join()
    after = host._network_bytes()
    assert before is not None
    assert after is not None
    assert after - before < 64 << 20  # a half: both ends of the loopback device count


def test_a_clock_that_is_set_back_makes_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = host.HostSampler(tmp_path, RunRecord())
    sampler.sample(())
    monkeypatch.setattr(host, "_network_bytes", lambda: 10**15)
    monkeypatch.setattr(host.time, "time", lambda: 1.0)
    time.sleep(0.1)
    net = sampler.sample(()).get("net_bytes_per_second")
    assert net is not None
    assert net < 10**15 / 0.1


SMALL_SHM = (
    "mount -t tmpfs -o size=4m none /dev/shm && head -c 4100000 /dev/zero > /dev/shm/batches; "
    'exec "$@"'
)


@functools.cache
def why_no_mounts() -> str:
    """Why this process cannot mount; "" = it can."""
    try:
        command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unshare is not installed (Debian: apt-get install util-linux)"
    return done.stderr.strip()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(why_no_mounts()), reason=why_no_mounts())
def test_a_real_second_machine_whose_shared_memory_is_full(
    store: Path, agents: list[subprocess.Popen[bytes]]
) -> None:
    """Its agent sees a small /dev/shm of its own, as in a container with Docker's default."""
    arguments = ["--size", "1", "--micro-batch", "2", "--seq-len", "32", "--steps", "100000"]
    run = wb.launch(
        "gpt", arguments, store=store, nodes=2, address="127.0.0.1", processes=1, cpu=True
    )
    joining = workbench("node", str(run.directory), "--rank", "1")
    with (run.directory / "agent.txt").open("ab") as output:
        command = ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh", *joining]
        agents.append(subprocess.Popen(command, stdout=output, stderr=output))
    until(
        lambda: [one for one in run.findings() if one.kind == "shared-memory"],
        240,
        (run.directory / "agent.txt").read_text,
    )
    (found,) = [one for one in run.findings() if one.kind == "shared-memory"]
    assert found.node == 1
    assert "of /dev/shm on node 1 (" in found.evidence
    assert run.stop()["outcome"] == "stopped"
