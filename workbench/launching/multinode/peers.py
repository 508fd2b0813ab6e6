"""The other nodes of a run: called together, watched, told to end.

All of it goes through files in the run directory, which lies on storage that the machines share. A
machine is judged by what its agent tells, and by whether that changes; never by a process number of
another machine, nor by its clock.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from workbench.diagnose import nodes as rules
from workbench.diagnose.facts import SILENT_SECONDS, NodeFacts, RankFacts
from workbench.launching.log import guarded, log
from workbench.launching.multinode.agent import PATIENCE_SECONDS
from workbench.launching.multinode.node_spec import interfaces
from workbench.launching.multinode.node_view import MachineReport, NodeView
from workbench.launching.multinode.reachability import Beacon
from workbench.launching.prepare.placement import Placement
from workbench.launching.start.launch_spec import LaunchSpec
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeDoc
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc
from workbench.store.secrets import redact_arguments

WAIT_VARIABLE = "WORKBENCH_NODE_WAIT_SECONDS"
"""Environment of the supervisor: how long machines are waited for, in seconds."""
_WAIT_SECONDS = 900.0  # for all machines to come
_RETURN_SECONDS = 1800.0  # for one that was lost to come back
_END_SECONDS = PATIENCE_SECONDS + 15.0
_LOST_WITH_RESTARTS = 12.0  # a cable that is put back within that costs nothing
_LOST_WITHOUT = 600.0  # no one starts it again, so it may as well come back by itself
_FAILED_SECONDS = 30.0  # the other ranks notice by themselves, and say it better
_TICK_SECONDS = 0.3
_LAST_PORT = 65_535


class Peers:
    """The other nodes of one run."""

    def __init__(self, paths: RunPaths, run: RunRecord) -> None:
        self.ending: Finding | None = None
        """Why the present attempt was ended; None = not because of a machine."""
        self._paths = paths
        self._run = run
        self._view = NodeView(paths, run)
        self._beacon = Beacon()
        self._order: dict[str, Any] = dict(read_json(paths.node_order) or {})
        self._gathered_at = time.monotonic()
        self._patience = _WAIT_SECONDS
        self._lost_at: float | None = None
        self._step = self._beat = 0
        guarded("nodes", lambda: paths.nodes.mkdir(exist_ok=True))

    @property
    def _attempt(self) -> int:
        return int(self._order.get("attempt") or 0)

    @property
    def _training(self) -> bool:
        return self._order.get("phase") == "go"

    @property
    def _other_nodes(self) -> range:
        return range(1, self._view.count)

    def gather(self, spec: LaunchSpec, attempt: int, first_step: int) -> LaunchSpec:
        """Call all machines to `attempt`; returns the spec as node 0's launcher is to take it.

        Raises:
            OSError: no port is free, or the run directory cannot be written.
        """
        resume, launcher = spec["resume"] or {}, spec["launcher"]
        address = launcher[launcher.index("--main_process_ip") + 1]
        first = int(launcher[launcher.index("--main_process_port") + 1])
        # Each attempt has its own port: what is left of the one before cannot disturb it.
        attempt_port = first + attempt - 1
        port = self._beacon.light(
            address, [attempt_port] if first and attempt_port <= _LAST_PORT else []
        )
        usual = _WAIT_SECONDS if attempt == 1 else _RETURN_SECONDS
        self._patience = float(os.environ.get(WAIT_VARIABLE) or usual)
        self._gathered_at, self._lost_at, self.ending = time.monotonic(), None, None
        self._order = {
            "schema": SCHEMA_VERSION,
            "attempt": attempt,
            "phase": "gather",
            "patient": False,
            "address": address,
            "port": port,
            "first_step": first_step,
            "stop_at": None,
            "arguments": redact_arguments(resume.get("arguments", spec["arguments"])),
            "environment": dict(resume.get("environment", {})),
        }
        write_json_atomic(self._paths.node_order, self._order)
        where = Placement(nodes=self._view.count, node_rank=0, address=address, port=port)
        environment = {**spec["environment"], **interfaces(self._run, address)}
        return {**spec, "launcher": where.of(launcher), "environment": environment}

    def wait(self, beat: Callable[[str], None], stopped: Callable[[], bool]) -> bool:
        """Wait until all are there; False when it is not to be.

        `beat` is called with what is waited for, about once a second.
        """
        beat_due = 0.0
        while not all(self._view.is_ready(node, self._attempt) for node in self._other_nodes):
            waited = time.monotonic() - self._gathered_at
            if waited > self._patience:
                command = rules.node_command(self._paths.directory, self._first())
                self.ending = rules.missing(self.facts(), waited, command, self._step)
            if self.ending is not None or stopped():
                self._beacon.put_out()
                self._write("end")
                return False
            if time.monotonic() >= beat_due:
                beat_due = time.monotonic() + 1.0
                self.announce(None)
                beat(self._waiting(self._patience - waited))
            self._view.look()
            self._beacon.tend()
            time.sleep(_TICK_SECONDS)
        return True

    def go(self) -> None:
        """All are there, and what the attempt before left is put away: start."""
        self._beacon.put_out()
        self._view.begin()
        self._write("go")

    def _first(self) -> int:
        ready = (node for node in self._other_nodes if not self._view.is_ready(node, self._attempt))
        return next(ready, 1)

    def _waiting(self, left: float) -> str:
        """The sentence while machines are waited for."""
        node, until = self._first(), f"at most {left:.0f} s"
        facts = self.facts()[node]
        if facts.phase is None or facts.silent_seconds > SILENT_SECONDS:
            command = rules.node_command(self._paths.directory, node)
            return f"Waiting for node {node} of {self._view.count}, {until}. Type there: {command}"
        if facts.unreachable_seconds is None:
            return f"{facts.name} is getting ready."
        at = f"{self._order['address']} port {self._order['port']}"
        return f"Waiting for {facts.name}: it does not reach {at}, {until}."

    def look(self, steps: int) -> None:
        """Read what the machines told; once a second."""
        self._step = steps
        self._view.look()

    def notices(self) -> list[str]:
        """Names of the machines that are about to be taken away, by their own word."""
        facts = self.facts()
        return [facts[node].name for node in self._view.notices()]

    def stop_at(self, step: int | None) -> None:
        """Tell the agents at which step to stop.

        Network storage may hide a new file for a minute from a reader that looked for it too
        early; this one is there already and is read again each time.
        """
        if self._training and step is not None and step != self._order.get("stop_at"):
            self._order["stop_at"] = step
            self._write("go")

    def hardware(self) -> Iterator[tuple[int, NodeDoc]]:
        """What each other node reported of its hardware."""
        for node, seen in self._view.seen.items():
            if seen.heard:
                yield node, cast("NodeDoc", seen.document)

    def facts(self) -> tuple[NodeFacts, ...]:
        """Each machine at this moment."""
        return self._view.facts(training=self._training)

    def rank_facts(self, rank: int, process: ProcessDoc | None) -> RankFacts:
        """What its machine reported of a rank."""
        return self._view.rank_facts(rank, process)

    def must_end(self, *, restarts: bool) -> bool:
        """Whether the present attempt cannot continue because of a machine; `ending` says why."""
        if self.ending is not None or not self._training:
            return False
        facts, now = self.facts(), time.monotonic()
        lost = rules.lost(facts, self._step, self._paths.directory)
        self._lost_at = None if lost is None else self._lost_at or now
        patience = _LOST_WITH_RESTARTS if restarts else _LOST_WITHOUT
        anew = any(fact.anew for fact in facts)
        over = anew or (self._lost_at is not None and now - self._lost_at > patience)
        self.ending = lost if over else self._failed()
        if self.ending is not None:
            log(f"ending the attempt: {self.ending.cause}")
        return self.ending is not None

    def _failed(self) -> Finding | None:
        """A machine whose launcher ended by itself while the others train on, or seem to."""
        for facts in self.facts()[1:]:
            seen = self._view.seen.get(facts.node)
            if seen is None or not self._ended_early(facts, seen):
                continue
            seen.ended_at = seen.ended_at or time.monotonic()
            if facts.phase == "refused" or time.monotonic() - seen.ended_at > _FAILED_SECONDS:
                return rules.failed(facts, self._step)
        return None

    def _ended_early(self, facts: NodeFacts, seen: MachineReport) -> bool:
        if seen.document.get("attempt") != self._attempt:
            return False
        ended = facts.phase in {"ended", "left"} and facts.exit_code != 0
        return ended or facts.phase == "refused"

    def end(self, *, patient: bool, beat: Callable[[], None]) -> int:
        """Have all machines end the attempt; returns how many processes they could not end.

        Those that do not answer are left to themselves: a machine that is cut off ends its ranks
        when it hears of it.
        """
        if not self._training:
            return 0
        self._order["patient"] = patient
        self._write("end")
        deadline = time.monotonic() + _END_SECONDS
        while (unanswered := self._unanswered()) and time.monotonic() < deadline:
            beat()
            time.sleep(_TICK_SECONDS)
        self._view.mute = set(unanswered)
        for node in unanswered:
            log(f"node {node} did not say that it ended the attempt")
        return self._view.processes_left()

    def _unanswered(self) -> list[int]:
        self._view.look()
        return [node for node in self._other_nodes if not self._view.has_ended(node, self._attempt)]

    def culprit(self) -> Finding | None:
        """The machine because of which an attempt failed whose ranks know none of their own."""
        facts = self.facts()
        killed = [fact for fact in facts[1:] if (fact.exit_code or 0) < 0]
        if killed and not any(fact.lost for fact in facts):
            return rules.failed(killed[0], self._step)
        return rules.lost(facts, self._step, self._paths.directory)

    def announce(self, launcher: ProcessDoc | None) -> None:
        """Node 0's own file, so that all machines stand in one place."""
        self._beat += 1
        document: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "node": 0,
            "host": socket.gethostname(),
            "address": self._order.get("address"),
            "boot_id": processes.boot_id(),
            "agent": processes.identify(os.getpid()),
            "beat": self._beat,
            "heartbeat": round(time.time(), 3),
            "phase": "waiting" if launcher is None else "running",
            "attempt": self._attempt,
            "launcher": launcher,
            "exit_code": None,
            "processes_left": 0,
            "preempt": False,
            "unreachable_since": None,
            "message": None,
            "ranks": {},
        }
        guarded("nodes/node-0.json", lambda: write_json_atomic(self._paths.node(0), document))

    def _write(self, phase: str) -> None:
        self._order["phase"] = phase
        guarded("nodes/order.json", lambda: write_json_atomic(self._paths.node_order, self._order))
