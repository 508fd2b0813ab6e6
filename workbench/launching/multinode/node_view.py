"""Ranks on several machines: what each machine writes of its own, and what the others last read."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.diagnose.facts import SILENT_SECONDS, NodeFacts, RankFacts, rank_facts
from workbench.observe.gpu_errors import read_errors
from workbench.observe.pulse import Pulse
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeRank
from workbench.store.run_record import RunRecord
from workbench.store.schema import ProcessDoc


def ranks_of(node: int, run: RunRecord) -> range:
    """The global ranks of one machine: equal shares, node 0's first."""
    each = run.processes // run.nodes
    return range(node * each, (node + 1) * each)


def rank_reports(paths: RunPaths, ranks: range) -> dict[str, NodeRank]:
    """What only this machine can see of its ranks, for the others."""
    reports: dict[str, NodeRank] = {}
    for rank in ranks:
        start = read_json(paths.rank_start(rank)) or {}
        process: ProcessDoc | None = start.get("process")
        if process is None or process["boot_id"] != processes.boot_id():
            continue
        reports[str(rank)] = _document(rank_facts(paths, rank, process), process)
    return reports


def _document(facts: RankFacts, process: ProcessDoc) -> NodeRank:
    pulse = facts.pulse
    document = NodeRank(
        process=process,
        alive=facts.alive,
        process_state=facts.process_state,
        rss_bytes=facts.rss_bytes,
        swapped_bytes=facts.swapped_bytes,
        own_bytes=facts.own_bytes,
        cpu_seconds=facts.cpu_seconds,
    )
    if pulse is not None:
        document |= NodeRank(
            beats=pulse.beats,
            steps=pulse.steps,
            phase=pulse.phase,
            age_seconds=round(pulse.age_seconds(time.monotonic()), 3),
        )
    return document


def reported_facts(
    paths: RunPaths, rank: int, process: ProcessDoc | None, report: NodeRank | None, age: float
) -> RankFacts:
    """The facts of a rank on another machine, which reported it `age` seconds ago."""
    ended = paths.rank_end(rank).exists()
    if report is None or process is None or report.get("process") != process:
        return RankFacts(process=process, alive=process is not None and not ended, ended=ended)
    names = ("process_state", "rss_bytes", "swapped_bytes", "own_bytes", "cpu_seconds")
    figures = {name: report.get(name) for name in names}
    return RankFacts(
        process=process,
        alive=bool(report.get("alive")),
        pulse=_pulse(report, age),
        ended=ended,
        **figures,  # pyright: ignore[reportArgumentType]
    )


def _pulse(report: NodeRank, age: float) -> Pulse | None:
    """Its pulse on this machine's clocks."""
    beats, steps = report.get("beats"), report.get("steps")
    phase, since = report.get("phase"), report.get("age_seconds")
    if beats is None or steps is None or phase is None or since is None:
        return None
    return Pulse(
        beats=beats,
        steps=steps,
        phase=phase,
        time=time.time() - since - age,
        monotonic=time.monotonic() - since - age,
    )


@dataclass(slots=True)
class MachineReport:
    """One machine, as last heard."""

    document: dict[str, Any]
    """`node_schema.NodeDoc`."""
    changed_at: float
    """When it last told anything new, by this machine's monotonic clock."""
    agent: ProcessDoc | None = None
    """Its agent at the start of the attempt."""
    ended_at: float | None = None
    """When its launcher was first seen to have ended early."""
    heard: bool = False
    """Whether it told anything new since this supervisor looks; a file alone may be of a dead."""

    @property
    def silent_seconds(self) -> float:
        """Since it told anything new."""
        return time.monotonic() - self.changed_at


class NodeView:
    """Reads ``nodes/node-N.json`` of all machines but this one."""

    def __init__(self, paths: RunPaths, run: RunRecord) -> None:
        self.count = run.nodes
        self.seen: dict[int, MachineReport] = {}
        self.mute: set[int] = set()
        """Machines that were told to end the attempt and have not answered."""
        self._paths = paths
        self._run = run

    def look(self) -> None:
        """Read what they told since the last look."""
        for node in range(1, self.count):
            document = read_json(self._paths.node(node))
            if document is None:
                continue
            seen = self.seen.get(node)
            if seen is None:
                self.seen[node] = MachineReport(document, time.monotonic(), document.get("agent"))
            elif _beat(document) != _beat(seen.document):
                seen.document, seen.changed_at, seen.heard = document, time.monotonic(), True
                self.mute.discard(node)

    def begin(self) -> None:
        """An attempt begins: every node that is there now must stay."""
        self.mute = set()
        for seen in self.seen.values():
            seen.agent, seen.ended_at = seen.document.get("agent"), None

    def is_ready(self, node: int, attempt: int) -> bool:
        """Whether a machine waits for that attempt to start, and reaches node 0."""
        seen = self.seen.get(node)
        if seen is None or not seen.heard or seen.silent_seconds > SILENT_SECONDS:
            return False
        return seen.document.get("phase") == "ready" and seen.document.get("attempt") == attempt

    def has_ended(self, node: int, attempt: int) -> bool:
        """Whether nothing of that attempt is at work there, as far as it reported."""
        seen = self.seen.get(node)
        if seen is None or seen.document.get("attempt") != attempt:
            return True
        return seen.document.get("phase") in {"ended", "left", "refused", "waiting"}

    def notices(self) -> list[int]:
        """Machines that are about to be taken away, by their own word."""
        return [n for n, node in self.seen.items() if node.heard and node.document.get("preempt")]

    def processes_left(self) -> int:
        """Processes that the machines could not end."""
        return sum(int(node.document.get("processes_left") or 0) for node in self.seen.values())

    def facts(self, *, training: bool) -> tuple[NodeFacts, ...]:
        """Each machine at this moment; `training`: whether an attempt is under way."""
        return tuple(self._facts(node, training=training) for node in range(self.count))

    def _facts(self, node: int, *, training: bool) -> NodeFacts:
        ranks = ranks_of(node, self._run)
        text = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        seen = self.seen.get(node)
        if node == 0:
            return NodeFacts(node=0, ranks=text, host=socket.gethostname(), phase="running")
        if seen is None:
            return NodeFacts(node=node, ranks=text)
        report = seen.document
        since, at = report.get("unreachable_since"), report.get("heartbeat")
        another = seen.agent is not None and report.get("agent") != seen.agent
        return NodeFacts(
            node=node,
            ranks=text,
            host=report.get("host"),
            address=report.get("address"),
            phase=report.get("phase"),
            exit_code=report.get("exit_code"),
            silent_seconds=seen.silent_seconds,
            unreachable_seconds=None if since is None or at is None else max(0.0, at - since),
            anew=training and another and report.get("phase") != "running",
            gpus={
                gpu["index"]: str(gpu.get("name") or "")
                for gpu in report.get("gpus") or ()
                if "index" in gpu
            },
            gpu_errors=tuple(read_errors(report.get("gpu_errors") or ())),
            mute=node in self.mute,
            message=report.get("message"),
        )

    def rank_facts(self, rank: int, process: ProcessDoc | None) -> RankFacts:
        """What its machine reported of a rank."""
        seen = self.seen.get(rank // len(ranks_of(0, self._run)))
        report = None if seen is None else seen.document.get("ranks", {}).get(str(rank))
        age = 0.0 if seen is None else seen.silent_seconds
        return reported_facts(self._paths, rank, process, report, age)


def _beat(document: Mapping[str, Any]) -> tuple[Any, Any]:
    return document.get("beat"), document.get("agent")
