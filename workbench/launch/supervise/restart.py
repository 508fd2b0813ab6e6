"""Whether a run that failed or hangs is started again without anybody asking, and from where."""

from __future__ import annotations

import signal
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.diagnose.finding import EXIT_HANG, HANGS, Finding
from workbench.errors import UsageError
from workbench.launch.log import log
from workbench.launch.start.launch_spec import from_checkpoint, order_again
from workbench.launch.supervise.hang_timeout import Patience
from workbench.launch.supervise.outcome import Verdict
from workbench.recover.checkpoints import Checkpoint, newest_whole
from workbench.recover.policy import Recovery
from workbench.recover.restarts import Failure, Restarts
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

if TYPE_CHECKING:
    from workbench.launch.supervise.monitor import Watch
    from workbench.launch.supervise.supervisor import Supervisor

_TICK_SECONDS = 0.2
_BEAT_SECONDS = 1.0


class Comeback:
    """One run's restarts. `order` is asked after each attempt, `end_what_hangs` all along."""

    def __init__(
        self, paths: RunPaths, run: dict[str, Any], recovery: Recovery, done: int = 0
    ) -> None:
        """`done`: restarts that were made under the supervisor before."""
        self._paths = paths
        self._run = run
        self._recovery = recovery
        self._restarts = Restarts(recovery)
        self._restarts.done = done
        self._hang: Finding | None = None
        self._patience = Patience()
        self._why = ""

    def order(
        self, supervisor: Supervisor, watch: Watch, verdict: Verdict, exit_code: int | None
    ) -> dict[str, Any] | None:
        """What to start now; None when the run has ended for good. `exit_code`: the launcher's."""
        try:
            return self._order(supervisor, watch, verdict, exit_code)
        except Exception:  # noqa: BLE001  (the run's end must be told, and its last hook started)
            log(f"deciding on a restart failed:\n{traceback.format_exc()}")
            self.gave_up("No restart: deciding on one failed, see logs/supervisor.log.")
            return None

    def gave_up(self, why: str) -> None:
        """There is no other attempt, for a reason that `order` did not know."""
        self._why = why

    def _order(
        self, supervisor: Supervisor, watch: Watch, verdict: Verdict, exit_code: int | None
    ) -> dict[str, Any] | None:
        hang, self._hang = self._hang, None
        self._patience.forget()
        if supervisor.ladder.active or verdict.outcome not in {"failed", "interrupted"}:
            return None
        if not self._recovery.restarts:
            return None
        checkpoint, passed = self._newest_whole(supervisor, watch)
        for sentence in passed:
            log(sentence)
        step = None if checkpoint is None else checkpoint.step
        failure = self._failure(watch, verdict, step)
        decision = self._restarts.decide(
            replace(failure, hang=hang is not None, exit_code=failure.exit_code or exit_code)
        )
        self._why = decision.why
        log(decision.why)
        if not decision.restart:
            return None
        why = " ".join([verdict.message.rstrip("."), *passed])
        try:
            base = supervisor.order or supervisor.order_before or order_again(self._run)
            order = from_checkpoint(base, self._run, checkpoint, why)
        except UsageError as error:
            self._why = f"No restart: {error}"
            return None
        supervisor.attempts.end(last_step=watch.steps, message=verdict.message)
        supervisor.message = f"{verdict.message} {decision.why}"
        return order if self._wait(supervisor, watch, decision.wait_seconds) else None

    def _newest_whole(
        self, supervisor: Supervisor, watch: Watch
    ) -> tuple[Checkpoint | None, list[str]]:
        """Every byte is read: on a thread, so that nobody takes the supervisor for dead."""
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
            found = pool.submit(newest_whole, self._paths)
            while not wait([found], timeout=_BEAT_SECONDS).done:
                watch.write_view(supervisor)
                supervisor.write_state("starting")
            return found.result()

    def last_word(self, supervisor: Supervisor, verdict: Verdict) -> Verdict:
        """The verdict on the whole run, with why it was not started again."""
        if verdict.outcome in {"failed", "interrupted"} and supervisor.wish.reason:
            reason = supervisor.wish.reason
            message = f"{reason.capitalize()} before it was started again. {verdict.message}"
            return replace(verdict, outcome=reason, message=message)
        if verdict.outcome in {"failed", "interrupted"} and self._recovery.restarts and self._why:
            return replace(verdict, message=f"{verdict.message} {self._why}")
        return verdict

    def end_what_hangs(self, supervisor: Supervisor, watch: Watch) -> None:
        """End the processes of an attempt that stands still, if that may be."""
        if supervisor.ladder.active or self._hang is not None:
            return
        standing = [one for one in watch.findings if one.cleared_at is None]
        hang = next((one for one in standing if one.kind in HANGS), None)
        if hang is not None and not (self._recovery.restarts and self._recovery.restart_on_hang):
            hang = None
        if hang is None and self._all_trained():
            hang = next((one for one in standing if one.kind == EXIT_HANG), None)
        if hang is None:
            self._patience.forget()
            return
        if not self._patience.over(hang, watch.ranks, time.monotonic()):
            return
        self._hang = hang
        log(f"ending the attempt: {hang.cause}")
        for process in supervisor.members():
            processes.send_signal(process, signal.SIGKILL)

    def judge_hang(self, watch: Watch) -> Verdict | None:
        """The verdict on an attempt that was ended because it hung; None if it was not."""
        hang = self._hang
        if hang is None:
            return None
        if hang.kind == EXIT_HANG:
            message = f"Finished after {watch.steps} steps. {hang.cause} It was ended."
            return Verdict(outcome="succeeded", message=message, finding=hang.document())
        message = f"{hang.cause} ({hang.evidence}). {hang.next}"
        return Verdict(
            outcome="failed", message=message, failed_rank=hang.rank, finding=hang.document()
        )

    def _all_trained(self) -> bool:
        ends = [
            read_json(self._paths.rank_end(rank)) for rank in range(int(self._run["processes"]))
        ]
        return all(end is not None and end.get("ok") for end in ends)

    def _failure(self, watch: Watch, verdict: Verdict, step: int | None) -> Failure:
        rank = verdict.failed_rank
        end: dict[str, Any] = {}
        if rank is not None:  # one that left no word was killed
            end = read_json(self._paths.rank_end(rank)) or {"exit_code": -signal.SIGKILL}
        kind = (verdict.finding or {}).get("kind")
        return Failure(
            message=verdict.message,
            last_step=watch.steps,
            first_step=watch.first_step,
            checkpoint_step=step,
            exception=end.get("exception"),
            where=end.get("where"),
            exit_code=end.get("exit_code"),
            out_of_memory=kind == "killed-for-memory",
        )

    def _wait(self, supervisor: Supervisor, watch: Watch, seconds: float) -> bool:
        """Let time pass before the next attempt; False when somebody asks to stop meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if supervisor.wish.reason:
                return False
            watch.write_view(supervisor)
            supervisor.write_state("starting")
            time.sleep(_TICK_SECONDS)
        return not supervisor.wish.reason
