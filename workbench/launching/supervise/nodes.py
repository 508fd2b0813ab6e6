"""A run over several nodes as its supervisor sees it; `multinode` has what passes between them."""

from __future__ import annotations

import signal
from collections.abc import Callable

from workbench.diagnose import nodes as rules
from workbench.diagnose.failure import explain, is_echo
from workbench.launching.multinode.node_view import ranks_of
from workbench.launching.multinode.peers import Peers
from workbench.launching.start.launch_spec import LaunchSpec
from workbench.launching.supervise.outcome import Verdict, verdict_of
from workbench.launching.supervise.run_state import RunState
from workbench.store import processes
from workbench.store.record import read_end

_KNOWS_BETTER = {"rank-killed", "killed-for-memory", "out-of-memory"}
"""Kinds of findings that name a rank's own end, not the echo of a lost peer."""


class RunNodes:
    """What a supervisor of several nodes does beyond one of a single node."""

    def __init__(self, state: RunState, write_view: Callable[[str], None]) -> None:
        """`write_view`: replaces view.json, once there is something to show."""
        self._state = state
        self._write_view = write_view
        self.peers = Peers(state.paths, state.run)

    def gathered(self, spec: LaunchSpec, first_step: int) -> LaunchSpec | None:
        """Wait until all nodes are there; the spec for this one, None if it is not to be.

        Raises:
            OSError: the run directory cannot be written, or there is no free port.
        """
        state = self._state
        state.attempts.take_over()
        state.stop_request.listen()
        attempt = state.attempts.number + 1
        placed = self.peers.gather(spec, attempt, first_step)
        if self.peers.wait(self._beat, lambda: state.stop_request.reason is not None):
            state.message = None
            return placed
        reason = state.stop_request.reason
        if reason is not None:
            state.ladder.request(now=True, steps=0, step_seconds=None, reason=reason)
        return None

    def _beat(self, message: str | None) -> None:
        """Time passes at the other nodes: the heartbeat and the view continue."""
        self._read_notices()
        self._state.message = message or self._state.message
        phase = "starting" if message else "stopping" if self._state.ladder.active else "running"
        self._write_view(phase)
        self._state.write(phase)

    def _read_notices(self) -> None:
        """One node that goes away is reason enough for all to save."""
        for name in self.peers.notices():
            self._state.stop_request.take_notice(f"{name} had a notice of pre-emption")

    def look(self, steps: int) -> None:
        """Once a second: no attempt continues without one of its nodes. `steps`: done so far."""
        state = self._state
        self.peers.look(steps)
        self.peers.announce(state.launcher)
        self.peers.stop_at(state.ladder.stop_at)
        self._read_notices()
        restarts = state.recovery.restarts > 0
        if state.ladder.active or not self.peers.must_end(restarts=restarts):
            return
        for process in state.members():
            processes.send_signal(process, signal.SIGKILL)

    def is_here(self, rank: int) -> bool:
        """Whether a rank is one of this node's own; containers of one host share its boot."""
        return rank in ranks_of(0, self._state.run)

    def end(self, exit_code: int | None) -> int:
        """Have the others end the attempt too; how many processes they could not end."""
        patient = exit_code == 0 or self._state.ladder.active
        return self.peers.end(patient=patient, beat=lambda: self._beat(None))

    def judge(self, verdict: Verdict, steps: int) -> Verdict:
        """The verdict on an attempt; a node's fault is not reported as that of some rank."""
        if verdict.outcome not in {"failed", "interrupted"}:
            return verdict
        finding = self.peers.ending
        paths = self._state.paths
        ends = {rank: read_end(paths, rank) for rank in range(self._state.world_size_asked)}
        if finding is None:
            kind = verdict.finding and verdict.finding.kind
            echo = kind not in _KNOWS_BETTER and is_echo(ends)
            finding = self.peers.culprit() if echo else None
        elif finding.kind == rules.FAILED and not is_echo(ends):
            # The launcher ended because a rank of its did: that one's words tell why, and whether
            # another attempt can end otherwise. Code 1: our own launcher was killed by us.
            finding = explain(paths, ends, 1, steps)
        return verdict if finding is None else verdict_of(finding)
