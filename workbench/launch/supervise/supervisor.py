"""The detached process beside a run: starts the launcher, watches, writes, stops, and ends last.

A fork of `workbench.launch.supervise.watcher` in a session of its own; it loads no torch and holds
no pipe of the training. What to start comes through the watcher's standard input: run.json has no
secrets.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.launch.log import guarded, log
from workbench.launch.prepare import launcher_process
from workbench.launch.prepare.launcher_process import Launcher, inherited, shown_gpus
from workbench.launch.resume.attempts import Attempts
from workbench.launch.stop_ladder import StopLadder, end_leftovers, stop_message
from workbench.launch.supervise.protection import WatcherLink, lower_oom_score, set_oom_score
from workbench.launch.supervise.sidecars import Helpers
from workbench.launch.supervise.stop_request import StopWish
from workbench.launch.warm.template import COLD_RANKS
from workbench.observe.rank_count import rank_count
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_file, read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc

if TYPE_CHECKING:
    from workbench.diagnose.facts import RankFacts
    from workbench.launch.supervise.nodes import Machines

TICK_SECONDS = 0.33
VIEW_SECONDS = 1.0
WORLD_CHECK_SECONDS = 5.0
MAX_PORT_RETRIES = 2
_REASON_BYTES = 4096


class Supervisor:
    """One run's watch. `start` or `adopt`, then `watch` until it has ended."""

    def __init__(self, paths: RunPaths, run: dict[str, Any]) -> None:
        self.paths = paths
        self.run = run
        self.recovery = Recovery.read(run.get("recovery"))
        self.attempts = Attempts(paths)
        self.helpers = Helpers(paths, run, self.recovery)
        first = next(iter(self.attempts.lines), None)
        self.started_at = time.time() if first is None else float(first["time"])
        self.port: int | None = None
        self._restarts_before = 0  # made under the supervisor that this one takes over from
        self._child: Launcher | None = None
        self.order: dict[str, Any] | None = None  # what was started, secrets and all
        self.order_before: dict[str, Any] | None = None  # by the supervisor before this one
        self._oom_score = lower_oom_score()
        self.helpers.oom_score = self._oom_score
        self._watcher = WatcherLink(paths)
        self._me = processes.identify(os.getpid())
        self.wish = StopWish(paths.control, self.recovery.preemption)
        self.machines = _machines(self)  # None: this one alone
        self._view_due = 0.0
        self._forget_attempt()

    def _forget_attempt(self) -> None:
        self.ranks: dict[int, ProcessDoc] = {}
        self.vanished: dict[int, float] = {}
        nodes = int(self.run.get("nodes") or 1)
        self.ladder = StopLadder(self.paths, self.members, nodes=nodes)
        self.launcher: ProcessDoc | None = None
        self.message: str | None = None
        self.world_size: int | None = None
        self.warm = False

    @property
    def _cold_ranks(self) -> Path:
        return self.paths.control / COLD_RANKS

    def _look_for_cold_ranks(self) -> None:
        """A warm launcher whose ranks would not be the same starts them cold, and leaves why."""
        if not self.warm:
            return
        with contextlib.suppress(OSError, ValueError):
            why = read_file(self._cold_ranks, _REASON_BYTES).decode()
            self.warm, self.message = False, f"The ranks were started cold: {why}."
            log(self.message)

    def members(self) -> list[ProcessDoc]:
        """The living processes of the run, those included that have dropped its marker.

        They descend from this supervisor, or came to its watcher when an earlier one was killed.
        """
        watcher = self._watcher.parent
        parents = [os.getpid()] if watcher is None else [os.getpid(), watcher]
        return processes.members(
            self.run["marker"], parents, besides={*self.helpers.pids, os.getpid()}
        )

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, self.attempts.number - 1)

    def start(self, order: dict[str, Any]) -> None:
        """Start the launcher as ordered; see `workbench.launch.start.launch_spec`."""
        self.order = order
        resume: dict[str, Any] = order.get("resume") or {}
        first_step = int(resume.get("step", 0))
        self._forget_attempt()
        self._child = None
        if self.machines is not None:
            placed = self.machines.gathered(order, first_step)
            if placed is None:
                return
            order = placed
        checkpoint, why = resume.get("checkpoint"), resume.get("why")
        other = resume.get("arguments") if resume.get("told") else None
        self.attempts.begin(first_step=first_step, checkpoint=checkpoint, why=why, arguments=other)
        if self.machines is not None:
            self.machines.go()
        environment = {**inherited(), **order["environment"], **resume.get("environment", {})}
        environment |= {  # never a record's: it may have been moved, or come from elsewhere
            processes.MARKER: self.run["marker"],
            "WORKBENCH_RUN_DIR": str(self.paths.directory),
            "WORKBENCH_FIRST_STEP": str(first_step),
        }
        if order.get("warm"):  # a warm server may still be importing
            self._cold_ranks.unlink(missing_ok=True)
            self.write_state("starting")
        self._child = launcher_process.start(
            [*order["launcher"], *resume.get("arguments", order["arguments"])],
            folder=order["working_directory"],
            environment=shown_gpus(
                environment,
                device=self.run["device"],
                ranks=int(self.run["processes"]),
                script=Path(self.run["script"]),
            ),
            output=self.paths.launcher_log,
            warm=order.get("warm"),
        )
        self.warm = self._child.warm
        if self._child.why_cold is not None:
            self.message = f"Started cold: {self._child.why_cold}."
            log(self.message)
        set_oom_score(self._child.pid, self._oom_score)
        self.launcher = processes.identify(self._child.pid)
        self.write_state("starting")

    def adopt(self, order: dict[str, Any] | None = None) -> None:
        """Go on watching a run whose supervisor died; `order`: what that one was to start."""
        self.order_before = order
        state = read_json(self.paths.state) or {}
        marker = self.run["marker"]  # whatever does not bear it is a stranger
        launcher = state.get("launcher")
        self.launcher = launcher if processes.is_marked(launcher, marker) else None
        self.ranks = {
            int(rank): process
            for rank, process in state.get("ranks", {}).items()
            if processes.is_marked(process, marker)
        }
        self.warm = bool(state.get("warm"))
        self.started_at = float(state.get("started_at", self.run["created_at"]))
        self._restarts_before = self.restarts
        if self._watcher.parent is not None:
            self.helpers.adopt_children_of(self._watcher.parent)
        if state.get("phase") == "stopping" and not (self.paths.control / "preempt").exists():
            (self.paths.control / "stop").touch()
        log("adopted the run")

    def watch(self) -> None:
        """Loop until the run has ended for good, then tell how it went."""
        # Imported when the launcher is under way: they load estimates, checkpoints and rules.
        from workbench.launch.supervise.monitor import Watch  # noqa: PLC0415
        from workbench.launch.supervise.restart import Comeback  # noqa: PLC0415

        comeback = Comeback(self.paths, self.run, self.recovery, self._restarts_before)
        self.wish.listen()
        self.helpers.start()
        while True:
            watch = Watch(self.paths, self.run, self.attempts, begins=self.order is not None)
            self.write_state(watch.phase(self))
            watch.catch_up()  # an old step count would announce a stop step that lies behind
            exit_code = self._loop(watch, comeback)
            left = self._end_leftovers(exit_code)
            verdict = comeback.judge_hang(watch) or watch.judge(self, exit_code)
            if self.machines is not None:
                verdict = self.machines.judge(verdict)
            order = comeback.order(self, watch, verdict, exit_code)
            if order is None:
                break
            watch.close(verdict)
            if not guarded("the next attempt", functools.partial(self.start, order)):
                comeback.gave_up("No restart: the launcher could not be started.")
                break
        self.wish.stop_listening()
        watch.finish(self, exit_code, comeback.last_word(self, verdict), left)
        self.helpers.end()

    def _end_leftovers(self, exit_code: int | None) -> int:
        """No rank may take the end of its launcher for a notice of pre-emption."""
        guarded("terminating", (self.paths.control / "terminating").touch)
        left = len(end_leftovers(self.members, self.helpers.pids))
        if self._child is not None:
            self._child.close()
        return left if self.machines is None else left + self.machines.end(exit_code)

    def _loop(self, watch: Any, comeback: Any) -> int | None:
        while True:
            ended, exit_code = self._launcher_ended()
            if ended:
                if exit_code and not self.ladder.active and self._retry_port(watch):
                    continue
                if exit_code:
                    self.take_requests(watch)  # asked for while it was ending
                return exit_code
            self.take_requests(watch)
            self._find_ranks()
            self.ladder.tick(self.launcher, watch.steps, watch.step_seconds)
            now = time.monotonic()
            if now >= self._view_due:
                self._view_due = now + VIEW_SECONDS
                watch.look(self)
                self._keep_watcher()
                comeback.end_what_hangs(self, watch)
                if self.machines is not None:
                    self.machines.look(watch)
                self.write_state(watch.phase(self))
            time.sleep(TICK_SECONDS)

    def _keep_watcher(self) -> None:
        started = self._watcher.check(self.order or self.order_before)
        if started is not None:
            self.helpers.pids.add(started)  # no part of the training

    def _launcher_ended(self) -> tuple[bool, int | None]:
        if self._child is not None:
            return self._child.ended()
        if processes.is_alive(self.launcher):
            return False, None
        return True, self._exit_code_of_adopted()

    def _exit_code_of_adopted(self) -> int | None:
        """As the watcher collected it; None where the launcher was not its child."""
        if self.launcher is None:
            return None
        path = self.paths.control / f"exit-code-{self.launcher['pid']}"
        try:
            return int(read_file(path, 20))
        except (OSError, ValueError):
            return None

    def take_requests(self, watch: Any) -> None:
        """Start or hurry the stop that somebody asked for: a client, SIGTERM, or a notice."""
        reason = self.wish.reason
        if reason is None:
            return
        first = not self.ladder.active
        if first:
            watch.read()
        stuck = watch.standstill  # no step will come at which all ranks could stop
        agree = self.run["capture"] and not stuck and not self.spawned  # on a step to stop at
        now = (self.paths.control / "stop-now").exists()
        self.ladder.request(
            now=now and self.ladder.stage in {None, "graceful"},
            steps=watch.steps if agree and watch.stepping else 0,
            step_seconds=watch.step_seconds,
            reason=reason,
            within=self.recovery.grace if reason == "preempted" else None,
        )
        if first:
            self.message = stop_message(self.ladder.stop_at, self.wish.notice, stuck)
            log(self.message)

    def _find_ranks(self) -> None:
        self._look_for_cold_ranks()
        for rank in range(int(self.run["processes"])):
            if rank not in self.ranks:
                start = read_json(self.paths.rank_start(rank))
                if start is not None:
                    self.ranks[rank] = start["process"]
        for rank, process in self.ranks.items():
            here = self.machines is None or self.machines.is_here(rank)
            alive = processes.is_alive(process) if here else self.rank_facts(rank, process).alive
            if rank not in self.vanished and not alive:
                self.vanished[rank] = time.time()

    @property
    def spawned(self) -> bool:
        """Whether a process that the script itself started is recorded as its rank."""
        return bool((read_json(self.paths.rank_start(0)) or {}).get("spawned"))

    def follow_spawned(self) -> None:
        """The processes that train are looked at in the place of the one that waits for them."""
        if int(self.run["processes"]) == 1 and 0 in self.ranks:
            start = read_json(self.paths.rank_start(0)) or {}
            if start.get("spawned") and isinstance(start.get("process"), dict):
                self.ranks[0] = start["process"]
            for rank in range(1, rank_count(self.paths, self.run)):
                self.ranks[rank] = (read_json(self.paths.rank_start(rank)) or start)["process"]

    def rank_facts(self, rank: int, process: ProcessDoc) -> RankFacts:
        """What is known of a rank, on whatever machine it runs."""
        from workbench.diagnose.facts import rank_facts  # noqa: PLC0415  (after the launcher)

        if self.machines is None or self.machines.is_here(rank):
            return rank_facts(self.paths, rank, process)
        return self.machines.rank_facts(rank, process)

    def check_world(self, seconds_since_first_step: float | None) -> None:
        """Compare the ranks asked for with the process group's size; say so when they differ.

        The ranks tell it as soon as their group is formed. Ranks without one are known to train
        alone only a while after the first step.
        """
        if self.world_size is not None:
            return
        starts = [read_json(self.paths.rank_start(rank)) for rank in self.ranks]
        sizes = [start.get("group_world_size") for start in starts if start]
        known = [size for size in sizes if isinstance(size, int)]
        if any(start and start.get("spawned") for start in starts):  # as many as it wants
            self.world_size = max(known, default=None)
            return
        asked = int(self.run["processes"])
        late = (seconds_since_first_step or 0) > WORLD_CHECK_SECONDS
        if (known and max(known) == asked) or (asked == 1 and starts and not known):
            self.world_size = asked
        elif len(known) == asked or late:
            self.world_size = max(known, default=1)
            if self.world_size != asked:
                self.message = (
                    f"{asked} processes were asked for, but the script formed a group of "
                    f"{self.world_size}: {len(self.ranks)} independent trainings may be running. "
                    "Check that the script uses Accelerator() or init_process_group()."
                )
                log(self.message)

    def _retry_port(self, watch: Any) -> bool:
        from workbench.launch.start.launch_spec import on_another_port  # noqa: PLC0415  (seldom needed)
        from workbench.launch.supervise.outcome import address_was_taken  # noqa: PLC0415

        watch.read()
        if self.order is None or watch.stepping or self.restarts >= MAX_PORT_RETRIES:
            return False
        if not address_was_taken(self.paths, int(self.run["processes"])):
            return False
        self._end_leftovers(1)
        why = "The rendezvous port was taken; started again on a free one."
        self.attempts.end(last_step=watch.steps, message=why)
        self.start(on_another_port(self.order, why))
        self.message = why
        return True

    def write_state(self, phase: str) -> None:
        """Heartbeat. A disk that refuses is tried again with the next one."""
        document = {
            "schema": SCHEMA_VERSION,
            "phase": phase,
            "message": self.message,
            "supervisor": self._me,
            "launcher": self.launcher,
            "ranks": {str(rank): process for rank, process in self.ranks.items()},
            "heartbeat": round(time.time(), 3),
            "started_at": self.started_at,
            "port": self.port,
            "restarts": self.restarts,
            "warm": self.warm,
            "attempt": self.attempts.number,
            "world_size_asked": self.run["processes"],
            "world_size_seen": self.world_size,
        }
        guarded("state.json", lambda: write_json_atomic(self.paths.state, document))


def _machines(supervisor: Supervisor) -> Machines | None:
    if int(supervisor.run.get("nodes") or 1) < 2:
        return None
    from workbench.launch.supervise.nodes import Machines  # noqa: PLC0415  (one machine does without)

    return Machines(supervisor)
