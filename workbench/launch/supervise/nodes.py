"""A supervisor's dealings with the other machines of its run; `nodes` has what passes between."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.diagnose import nodes as rules
from workbench.diagnose.facts import NodeFacts, RankFacts
from workbench.diagnose.failure import explain, is_echo
from workbench.launch.multinode.node_ranks import ranks_of
from workbench.launch.multinode.peers import Nodes
from workbench.launch.supervise.outcome import Verdict, verdict_of
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.schema import ProcessDoc

if TYPE_CHECKING:
    from workbench.launch.supervise.monitor import Watch
    from workbench.launch.supervise.supervisor import Supervisor

_KNOWS_BETTER = {"rank-killed", "killed-for-memory", "out-of-memory"}
"""Kinds of findings that name a rank's own end, not the echo of a lost peer."""


class Machines:
    """What a supervisor of several machines does beyond one of a single machine."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._nodes = Nodes(supervisor.paths, supervisor.run)
        self._watch: Watch | None = None

    def gathered(self, order: Mapping[str, Any], first_step: int) -> dict[str, Any] | None:
        """Wait until all machines are there; the order for this one, None if it is not to be.

        Raises:
            OSError: the run directory cannot be written, or there is no free port.
        """
        supervisor = self._supervisor
        supervisor.attempts.take_over()
        supervisor.wish.listen()
        attempt = supervisor.attempts.number + 1
        placed = self._nodes.gather(order, attempt, first_step)
        if self._nodes.wait(self._beat, lambda: supervisor.wish.reason is not None):
            supervisor.message = None
            return placed
        reason = supervisor.wish.reason
        if reason is not None:
            supervisor.ladder.request(now=True, steps=0, step_seconds=None, reason=reason)
        return None

    def go(self) -> None:
        """Have the others start their launchers."""
        self._nodes.go()

    def _beat(self, message: str | None) -> None:
        """Time passes at the other machines: the heartbeat and the view go on."""
        supervisor = self._supervisor
        self._hear_notices()
        supervisor.message = message or supervisor.message
        if self._watch is not None:
            self._watch.write_view(supervisor)
        supervisor.write_state("starting" if message else "running")

    def _hear_notices(self) -> None:
        """One machine that goes away is reason enough for all to save."""
        for name in self._nodes.notices():
            self._supervisor.wish.take_notice(f"{name} had a notice of pre-emption")

    def look(self, watch: Watch) -> None:
        """Once a second: without one of its machines an attempt cannot go on."""
        supervisor, self._watch = self._supervisor, watch
        self._nodes.look(watch.steps)
        self._nodes.tell(supervisor.launcher)
        self._nodes.stop_at(supervisor.ladder.stop_at)
        self._hear_notices()
        restarts = supervisor.recovery.restarts > 0
        if supervisor.ladder.active or not self._nodes.must_end(restarts=restarts):
            return
        for process in supervisor.members():
            processes.send_signal(process, signal.SIGKILL)

    def facts(self) -> tuple[NodeFacts, ...]:
        """Each machine at this moment."""
        return self._nodes.facts()

    def is_here(self, rank: int) -> bool:
        """Whether a rank is one of this machine's own; containers of one host share its boot."""
        return rank in ranks_of(0, self._supervisor.run)

    def rank_facts(self, rank: int, process: ProcessDoc) -> RankFacts:
        """What another machine told of a rank."""
        return self._nodes.rank_facts(rank, process)

    def end(self, exit_code: int | None) -> int:
        """Have the others end the attempt too; how many processes they could not end."""
        patient = exit_code == 0 or self._supervisor.ladder.active
        return self._nodes.end(patient=patient, beat=lambda: self._beat(None))

    def judge(self, verdict: Verdict) -> Verdict:
        """The verdict on an attempt; a machine's fault is not told as that of an arbitrary rank."""
        if verdict.outcome not in {"failed", "interrupted"}:
            return verdict
        found = self._nodes.ending
        paths, ranks = self._supervisor.paths, int(self._supervisor.run["processes"])
        ends = {rank: read_json(paths.rank_end(rank)) for rank in range(ranks)}
        if found is None:
            kind = (verdict.finding or {}).get("kind")
            found = self._nodes.culprit() if kind not in _KNOWS_BETTER and is_echo(ends) else None
        elif found.kind == rules.FAILED and not is_echo(ends):
            # The launcher ended because a rank of its did: that one's words tell why, and whether
            # another attempt can end otherwise. Code 1: our own launcher was killed by us.
            found = explain(paths, ends, 1, 0 if self._watch is None else self._watch.steps)
        return verdict if found is None else verdict_of(found)
