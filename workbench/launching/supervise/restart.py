"""Whether a run that failed or hangs is restarted automatically, and from where."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hang.work import Work, work_of
from workbench.diagnose.progress import has_left
from workbench.errors import UsageError
from workbench.launching.log import log
from workbench.launching.resume.starting_point import start_by_itself
from workbench.launching.start.launch_spec import LaunchSpec, from_checkpoint
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.outcome import Verdict, after_steps
from workbench.launching.supervise.rollback import Rollbacks, since_by_hand
from workbench.launching.supervise.run_state import RunState
from workbench.recover.restarts import Failure, Restarts
from workbench.store import processes
from workbench.store.findings import CERTAIN_HANGS, EXIT_HANG, HANGS, Finding, is_for_good
from workbench.store.rank_records import RankEnd
from workbench.store.record import read_end
from workbench.store.starts import PORT_TAKEN

IDLE_SECONDS = 120.0  # in a deadlock, or where no rank is late
BUSY_SECONDS = 900.0  # as NCCL's own watchdog has it: one that waits for a GPU spins meanwhile
_BUSY_SHARE = 0.1  # of one core


class HangTimeout:
    """How long a run may stand still before it is ended as hung: follows one standing finding.

    An evaluation or a sort of a large table stands at one line for minutes, as a hang does, and a
    long backward pass beside a peer that waits in another collective looks like a deadlock. What
    the ranks and the programs that they started do meanwhile tells them apart: they compute, read
    and write, or wait for a disk. Of one that is late and does nothing no one can tell: it may wait
    for a network, and is given as long.
    """

    def __init__(self) -> None:
        self._key: tuple[str, int | None] | None = None
        self._since = 0.0
        self._cpu: dict[int, float] = {}
        self._work: dict[int, Work] = {}

    def expired(self, hang: Finding, ranks: Mapping[int, RankFacts], now: float) -> bool:
        """Whether it has stood long enough; called once a second, `now` in monotonic seconds."""
        if hang.key != self._key:
            self._key, self._since = hang.key, now
            self._cpu = {rank: facts.cpu_seconds or 0.0 for rank, facts in ranks.items()}
            self._work = {rank: work_of(facts.process) for rank, facts in ranks.items()}
        if hang.kind in CERTAIN_HANGS:
            return True
        stood = now - self._since
        if stood < (IDLE_SECONDS if is_for_good(hang) else BUSY_SECONDS):
            return False
        suspects = [rank for rank in ranks if rank == hang.rank and hang.kind != "deadlock"]
        at_work = any(self._works(rank, ranks[rank], stood) for rank in suspects or ranks)
        return not at_work or stood >= BUSY_SECONDS

    def reset(self) -> None:
        """Nothing stands still now."""
        self._key = None

    def _works(self, rank: int, facts: RankFacts, seconds: float) -> bool:
        used = (facts.cpu_seconds or 0.0) - self._cpu.get(rank, 0.0)
        if facts.process_state == "D" or used > _BUSY_SHARE * seconds:
            return True
        work, before = work_of(facts.process), self._work.get(rank, Work())
        return work.goes_on(before) or work.children_go_on(before, seconds)


def restarts_made(attempts: Iterable[Mapping[str, Any]]) -> int:
    """Automatic restarts since a person last started the run.

    Rollbacks are counted apart, and a start on another port is none. `attempts`: the lines of
    attempts.jsonl.
    """
    starts = since_by_hand(attempts)[1:]
    return sum("rollback" not in line and line.get("why") != PORT_TAKEN for line in starts)


_TICK_SECONDS = 0.2


class RestartController:
    """One run's restarts. Call `next_spec` after each attempt, and `end_if_hung` once a second."""

    def __init__(self, state: RunState, done: int = 0) -> None:
        """`done`: restarts that were made under the supervisor before."""
        self._state = state
        self._recovery = state.recovery
        self._restarts = Restarts(state.recovery)
        self._restarts.done = done
        self._hang: Finding | None = None
        self._timeout = HangTimeout()
        self._rollbacks = Rollbacks(state)
        self._why = ""

    def next_spec(
        self, monitor: RunMonitor, verdict: Verdict, exit_code: int | None
    ) -> LaunchSpec | None:
        """What to start now; None when the run has ended for good. `exit_code`: the launcher's."""
        try:
            return self._next_spec(monitor, verdict, exit_code)
        except Exception:  # noqa: BLE001  (the run's end must be told, and its last hook started)
            log(f"deciding on a restart failed:\n{traceback.format_exc()}")
            self.give_up("No restart: deciding on one failed, see logs/supervisor.log.")
            return None

    def give_up(self, why: str) -> None:
        """There is no other attempt, for a reason that `next_spec` did not know."""
        self._why = why

    def _next_spec(
        self, monitor: RunMonitor, verdict: Verdict, exit_code: int | None
    ) -> LaunchSpec | None:
        state = self._state
        if self._rollbacks.instability is not None and not state.ladder.active:
            spec = self._rollbacks.spec()
            if spec is not None:
                state.attempts.end(last_step=monitor.steps, message=verdict.message)
                return spec
        hang, self._hang = self._hang, None
        self._timeout.reset()
        if self._state.ladder.active or verdict.outcome not in {"failed", "interrupted"}:
            return None
        if not self._recovery.restarts:
            return None
        base = state.base_spec()
        checkpoint, passed = start_by_itself(
            state.paths, state.run, base["arguments"], partial(self._write_starting, monitor)
        )
        for sentence in passed:
            log(sentence)
        step = None if checkpoint is None else checkpoint.step
        failure = self._failure(monitor, verdict, step)
        decision = self._restarts.decide(
            replace(failure, hang=hang is not None, exit_code=failure.exit_code or exit_code)
        )
        self._why = decision.why
        log(decision.why)
        if not decision.restart:
            return None
        why = " ".join([verdict.message.rstrip("."), *passed])
        try:
            spec = from_checkpoint(base, state.run, checkpoint, why)
        except UsageError as error:
            self._why = f"No restart: {error}"
            return None
        self._state.attempts.end(last_step=monitor.steps, message=verdict.message)
        self._state.message = f"{verdict.message} {decision.why}"
        return spec if self._wait(monitor, decision.wait_seconds) else None

    def _write_starting(self, monitor: RunMonitor) -> None:
        monitor.write_view("starting")
        self._state.write("starting")

    def final_verdict(self, verdict: Verdict) -> Verdict:
        """The verdict on the whole run, with why it was not started again."""
        if verdict.outcome in {"failed", "interrupted"} and self._state.stop_request.reason:
            reason = self._state.stop_request.reason
            message = f"{reason.capitalize()} before it was started again. {verdict.message}"
            return replace(verdict, outcome=reason, message=message)
        if verdict.outcome in {"failed", "interrupted"} and self._recovery.restarts and self._why:
            return replace(verdict, message=f"{verdict.message} {self._why}")
        return verdict

    def end_if_hung(self, monitor: RunMonitor) -> None:
        """End the processes of an attempt that stands still, if that may be."""
        if self._state.ladder.active or self._hang is not None:
            return
        standing = [finding for finding in monitor.findings if finding.cleared_at is None]
        hang = next((finding for finding in standing if finding.kind in HANGS), None)
        if hang is not None and not (self._recovery.restarts and self._recovery.restart_on_hang):
            hang = None
        if hang is None:
            hang = next((finding for finding in standing if finding.kind == EXIT_HANG), None)
            hang = hang if hang is not None and self._all_trained(monitor) else None
        if hang is None:
            self._timeout.reset()
            return
        if not self._timeout.expired(hang, monitor.ranks, time.monotonic()):
            return
        self._hang = hang
        log(f"ending the attempt: {hang.cause}")
        self._kill()

    def end_if_unstable(self, monitor: RunMonitor) -> None:
        """End the processes of an attempt whose loss is gone, if the run may go back by itself.

        At once: what they hold is given up, and a checkpoint of it could replace a good one.
        """
        if self._state.ladder.active or self._hang is not None:
            return
        if self._rollbacks.begin(monitor.unstable, monitor.steps):
            log("ending the attempt, to go back")
            self._kill()

    def _kill(self) -> None:
        for process in self._state.members():
            processes.send_signal(process, signal.SIGKILL)

    def judge_ended(self, monitor: RunMonitor) -> Verdict | None:
        """The verdict on an attempt that was ended by this controller; None if it was not."""
        unstable = self._rollbacks.instability
        if unstable is not None:
            finding = unstable.finding
            message = f"Ended after step {monitor.steps}: {finding.evidence}"
            return Verdict(outcome="failed", message=message, finding=finding)
        hang = self._hang
        if hang is None:
            return None
        if hang.kind == EXIT_HANG:
            message = f"{after_steps(monitor.steps)}. {hang.cause} It was ended."
            return Verdict(outcome="succeeded", message=message, finding=hang)
        message = f"{hang.cause} ({hang.evidence}). {hang.next}"
        return Verdict(outcome="failed", message=message, failed_rank=hang.rank, finding=hang)

    def _all_trained(self, monitor: RunMonitor) -> bool:
        """Whether no rank has work left: each has ended well, or left its group and stands."""

        def trained(rank: int) -> bool:
            end, facts = read_end(self._state.paths, rank), monitor.ranks.get(rank)
            if end is not None or facts is None:
                return end is not None and end.ok
            return rank in monitor.diagnoser.exits.stuck or (has_left(facts) and not facts.alive)

        return all(map(trained, monitor.ranks.keys() | range(self._state.world_size_asked)))

    def _failure(self, monitor: RunMonitor, verdict: Verdict, step: int | None) -> Failure:
        rank = verdict.failed_rank
        end = RankEnd()
        if rank is not None:  # one that left no word was killed
            end = read_end(self._state.paths, rank) or RankEnd(exit_code=-signal.SIGKILL)
        kind = verdict.finding and verdict.finding.kind
        return Failure(
            message=verdict.message,
            last_step=monitor.steps,
            first_step=monitor.first_step,
            checkpoint_step=step,
            exception=end.exception,
            where=end.where,
            exit_code=end.exit_code,
            out_of_memory=kind == "killed-for-memory",
        )

    def _wait(self, monitor: RunMonitor, seconds: float) -> bool:
        """Let time pass before the next attempt; False when a stop is requested meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._state.stop_request.reason:
                return False
            monitor.write_view("starting")
            self._state.write("starting")
            time.sleep(_TICK_SECONDS)
        return not self._state.stop_request.reason
