"""The detached process beside a run: starts the launcher, watches, writes, stops, and ends last.

A fork of `supervise.watcher` in a session of its own; it loads no torch and holds no pipe of the
training. What to start comes through the watcher's standard input: run.json has no secrets.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.launching.capture.launcher_folder import remove_left
from workbench.launching.log import guarded, log
from workbench.launching.prepare import launcher_process
from workbench.launching.prepare.launcher_process import Launcher, inherited, with_visible_gpus
from workbench.launching.prepare.placement import recorded_for_ranks
from workbench.launching.steered import steered_environment
from workbench.launching.stop_ladder import end_leftovers, stop_message
from workbench.launching.supervise.launcher_log import hide_command
from workbench.launching.supervise.protection import set_oom_score
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.rollback_environment import rollback_environment
from workbench.launching.supervise.run_state import RunState
from workbench.launching.warm.template import COLD_RANKS
from workbench.store import processes
from workbench.store.files import read_file, read_json

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec
    from workbench.launching.supervise.monitor import RunMonitor
    from workbench.launching.supervise.nodes import RunNodes
    from workbench.launching.supervise.restart import RestartController

TICK_SECONDS = 0.33
VIEW_SECONDS = 1.0
MAX_PORT_RETRIES = 2
_REASON_BYTES = 4096


class Supervisor:
    """Supervises one run. `start` or `adopt`, then `watch` until it has ended."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.nodes = self._several_nodes()  # None: this one alone
        self.ranks = RankProcesses(self.state, self.nodes)
        self._monitor: RunMonitor | None = None  # of the present attempt
        self._restarts_before = 0  # made under the supervisor that this one takes over from
        self._port_retries = 0  # of the present attempt
        self._child: Launcher | None = None
        self._unstarted = ""  # why the launcher of the present attempt could not be started
        self._view_due = 0.0

    def _several_nodes(self) -> RunNodes | None:
        if self.state.run.nodes < 2:
            return None
        from workbench.launching.supervise.nodes import RunNodes  # noqa: PLC0415  (one node does without)

        return RunNodes(self.state, self._write_view)

    def _write_view(self, phase: str) -> None:
        """While other nodes are waited for, which takes time and money, too."""
        if self._monitor is not None:
            self._monitor.write_view(phase)
            self.state.stop_because(self._monitor.stop_reason)

    def start(self, spec: LaunchSpec) -> None:
        """Start the launcher of `spec`; see `workbench.launching.start.launch_spec`."""
        state = self.state
        state.spec = spec
        resume = spec["resume"]
        first_step = 0 if resume is None else resume["step"]
        state.begin_attempt()
        self._child, self._unstarted = None, ""
        if self.nodes is not None:
            placed = self.nodes.gathered(spec, first_step)
            if placed is None:
                return
            spec = placed
        state.attempts.begin(
            first_step=first_step,
            checkpoint=resume and resume["checkpoint"],
            why=resume and resume["why"],
            arguments=spec["arguments"] if resume and resume.get("told") else None,
            rollback=resume.get("rollback") if resume else None,
            unset=resume.get("unset", ()) if resume else (),
        )
        if self.nodes is not None:
            self.nodes.peers.go()
        if spec["warm"]:  # a warm server may still be importing
            self._cold_ranks.unlink(missing_ok=True)
            state.write("starting")
        try:
            self._child = self._launch(spec, first_step)
        except OSError as error:  # no such program or folder, or no room for a process
            self._unstarted = f"The launcher could not be started: {error}."
            return
        state.warm = self._child.warm
        if self._child.why_cold is not None:
            state.message = f"Started cold: {self._child.why_cold}."
            log(state.message)
        set_oom_score(self._child.pid, state.oom_score)
        state.launcher = processes.identify(self._child.pid)
        state.write("starting")

    def _launch(self, spec: LaunchSpec, first_step: int) -> Launcher:
        run, paths = self.state.run, self.state.paths
        resume = spec["resume"]
        arguments = (resume or {}).get("arguments", spec["arguments"])
        more = (resume or {}).get("environment", {})
        environment = {**inherited(), **spec["environment"], **more}
        environment |= {  # never a record's: it may have been moved, or come from elsewhere
            processes.MARKER: run.marker,
            "WORKBENCH_RUN_DIR": str(paths.directory),
            "WORKBENCH_FIRST_STEP": str(first_step),
            **rollback_environment(self.state.attempts.lines, first_step),
            **steered_environment(paths, first_step),
        }
        return launcher_process.start(
            [*spec["launcher"], *recorded_for_ranks(run, arguments)],
            folder=spec["working_directory"],
            environment=with_visible_gpus(
                environment,
                device=run.device,
                ranks=self.state.world_size_asked,
                script=Path(run.script),
            ),
            output=paths.launcher_log,
            warm=spec["warm"],
        )

    def adopt(self, spec: LaunchSpec | None = None) -> None:
        """Supervise a run whose supervisor died; `spec`: what that one was to start."""
        state = self.state
        state.spec_before = spec
        before = read_json(state.paths.state) or {}
        # a process without the marker is not the run's
        marked = functools.partial(
            processes.is_marked, marker=state.run.marker, directory=state.paths.directory
        )
        launcher = before.get("launcher")
        state.launcher = launcher if marked(launcher) else None
        state.ranks = {
            int(rank): process
            for rank, process in before.get("ranks", {}).items()
            if marked(process)
        }
        state.warm = bool(before.get("warm"))
        state.started_at = float(before.get("started_at", state.run.created_at))
        from workbench.launching.supervise.restart import restarts_made  # noqa: PLC0415  (seldom needed)

        self._restarts_before = restarts_made(state.attempts.lines)
        if state.watcher.parent is not None:
            state.sidecars.adopt_children_of(state.watcher.parent)
        control = state.paths.control
        if before.get("phase") == "stopping" and not (control / "preempt").exists():
            (control / "stop").touch()
        log("adopted the run")

    def watch(self) -> None:
        """Loop until the run has ended for good, then write how it ended."""
        # Imported when the launcher is under way: they load estimates, checkpoints and rules.
        from workbench.launching.supervise.monitor import RunMonitor  # noqa: PLC0415
        from workbench.launching.supervise.restart import RestartController  # noqa: PLC0415

        state = self.state
        restarts = RestartController(state, self._restarts_before)
        state.stop_request.listen()
        state.sidecars.start()
        while True:
            monitor = RunMonitor(state, self.ranks, begins=state.spec is not None)
            self._monitor = monitor
            state.write(monitor.phase)
            monitor.catch_up()  # an old step count would announce a stop step that lies behind
            self._port_retries = 0
            exit_code = self._loop(monitor, restarts)
            left = self._end_leftovers(exit_code)
            verdict = restarts.judge_ended(monitor) or monitor.judge(exit_code)
            if self._unstarted:
                verdict = replace(verdict, outcome="failed", message=self._unstarted)
            if self.nodes is not None:
                verdict = self.nodes.judge(verdict, monitor.steps)
            spec = restarts.next_spec(monitor, verdict, exit_code)
            if spec is None:
                break
            monitor.close(verdict)
            if not guarded("the next attempt", functools.partial(self.start, spec)):
                restarts.give_up("No restart: the launcher could not be started.")
                break
        state.stop_request.stop_listening()
        monitor.finish(exit_code, restarts.final_verdict(verdict), left)
        state.sidecars.end()

    def _end_leftovers(self, exit_code: int | None) -> int:
        """No rank may take the end of its launcher for a notice of pre-emption."""
        state = self.state
        guarded("terminating", (state.paths.control / "terminating").touch)
        left = len(end_leftovers(state.members, state.sidecars.pids))
        if self._child is not None:
            self._child.close()
        left += 0 if self.nodes is None else self.nodes.end(exit_code)
        guarded("launchers' folders", lambda: remove_left(str(state.paths.directory)))
        guarded("launcher.log", lambda: hide_command(state.paths.launcher_log))
        return left

    def _loop(self, monitor: RunMonitor, restarts: RestartController) -> int | None:
        state = self.state
        while True:
            ended, exit_code = self._launcher_ended()
            if ended:
                if exit_code and not state.ladder.active and self._retry_port(monitor):
                    continue
                if exit_code:
                    self.take_requests(monitor)  # made while it was ending
                return exit_code
            self.take_requests(monitor)
            self._look_for_cold_ranks()
            self.ranks.find()
            self._climb(monitor)
            now = time.monotonic()
            if now >= self._view_due:
                self._view_due = now + VIEW_SECONDS
                monitor.look()
                self._keep_watcher()
                restarts.end_if_hung(monitor)
                restarts.end_if_unstable(monitor)
                state.stop_because(monitor.stop_reason)
                state.sidecars.bring_back(now)
                if self.nodes is not None:
                    self.nodes.look(monitor.steps)
                state.write(monitor.phase)
            time.sleep(TICK_SECONDS)

    def _climb(self, monitor: RunMonitor) -> None:
        """The next rung of a stop, when it is due."""
        state = self.state
        state.ladder.tick(
            state.launcher,
            monitor.steps,
            monitor.step_seconds,
            stands=monitor.standstill is not None,
            worked_at=monitor.diagnoser.hangs.worked_at,
        )
        if state.ladder.note is not None and state.ladder.note != state.message:
            state.message = state.ladder.note
            log(state.message)

    @property
    def _cold_ranks(self) -> Path:
        return self.state.paths.control / COLD_RANKS

    def _look_for_cold_ranks(self) -> None:
        """A warm launcher whose ranks would not be the same starts them cold, and leaves why."""
        state = self.state
        if not state.warm:
            return
        with contextlib.suppress(OSError, ValueError):
            why = read_file(self._cold_ranks, _REASON_BYTES).decode()
            state.warm, state.message = False, f"The ranks were started cold: {why}."
            log(state.message)

    def _keep_watcher(self) -> None:
        started = self.state.watcher.check(self.state.spec or self.state.spec_before)
        if started is not None:
            self.state.sidecars.pids.add(started)

    def _launcher_ended(self) -> tuple[bool, int | None]:
        if self._child is not None:
            return self._child.ended()
        if processes.is_alive(self.state.launcher):
            return False, None
        return True, self._exit_code_of_adopted()

    def _exit_code_of_adopted(self) -> int | None:
        """As the watcher collected it; None where the launcher was not its child."""
        if self.state.launcher is None:
            return None
        path = self.state.paths.control / f"exit-code-{self.state.launcher['pid']}"
        try:
            return int(read_file(path, 20))
        except (OSError, ValueError):
            return None

    def take_requests(self, monitor: RunMonitor) -> None:
        """Start or hurry a requested stop: by a client, SIGTERM, or a notice."""
        state = self.state
        reason = state.stop_request.reason
        if reason is None:
            return
        first = not state.ladder.active
        if first:
            monitor.read()
        hang = monitor.standstill  # no step will come at which all ranks could stop
        agree = state.run.capture and not hang and not self.ranks.spawned  # on a step to stop at
        now = (state.paths.control / "stop-now").exists()
        state.ladder.request(
            now=now and state.ladder.stage in {None, "graceful"},
            steps=monitor.steps if agree and monitor.stepping else 0,
            step_seconds=monitor.step_seconds,
            since_step=monitor.since_step,
            reason=reason,
            within=state.recovery.grace if reason == "preempted" else None,
        )
        if first:
            state.message = stop_message(state.ladder.stop_at, state.stop_request.notice, hang)
            log(state.message)

    def _retry_port(self, monitor: RunMonitor) -> bool:
        from workbench.launching.start.launch_spec import on_another_port  # noqa: PLC0415
        from workbench.launching.supervise.outcome import address_was_taken  # noqa: PLC0415
        from workbench.store.starts import PORT_TAKEN  # noqa: PLC0415  (seldom needed)

        state = self.state
        monitor.read()
        if state.spec is None or monitor.stepping or self._port_retries >= MAX_PORT_RETRIES:
            return False
        if not address_was_taken(state.paths, state.world_size_asked):
            return False
        self._port_retries += 1
        self._end_leftovers(1)
        state.attempts.end(last_step=monitor.steps, message=PORT_TAKEN)
        self.start(on_another_port(state.spec, PORT_TAKEN))
        state.message = PORT_TAKEN
        return True
