"""The detached process beside a run: starts the launcher, watches, writes, stops, and ends last.

Started by `workbench.launch.run` in a session of its own; it loads no torch and holds no pipe of
the training. It learns what to start from its standard input, because run.json has no secrets.

    python -m workbench.launch.supervisor RUN_DIRECTORY [--adopt]
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workbench.launch.journal import guarded, log
from workbench.launch.stopping import StopLadder, end_leftovers
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc

TICK_SECONDS = 0.33
VIEW_SECONDS = 1.0
WORLD_CHECK_SECONDS = 5.0
MAX_PORT_RETRIES = 2
_RESERVE_BYTES = 200_000  # kept on disk so that the end can be told even when it is full
_PR_SET_CHILD_SUBREAPER = 36
# What another launcher around us (Slurm, Kubeflow, a run of ours) says of its own ranks.
_FOREIGN = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "WORKBENCH_RANK_PID", "TORCHELASTIC_RUN_ID"),
}


class Supervisor:
    """One run's watch. `start` or `adopt`, then `watch` until it has ended."""

    def __init__(self, paths: RunPaths, run: dict[str, Any]) -> None:
        self.paths = paths
        self.run = run
        self.ranks: dict[int, ProcessDoc] = {}
        self.vanished: dict[int, float] = {}
        self.ladder = StopLadder(paths, run["marker"])
        self.launcher: ProcessDoc | None = None
        self.message: str | None = None
        self.started_at = time.time()
        self.restarts = 0
        self.world_size: int | None = None
        self.port: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._order: dict[str, Any] | None = None
        self._me = processes.identify(os.getpid())
        self._term = False
        self._view_due = 0.0

    def start(self, order: dict[str, Any]) -> None:
        """Start the launcher as ordered: {"command", "environment", "working_directory"}."""
        self._order = order
        inherited = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
        environment = {**inherited, **order["environment"]}
        with self.paths.launcher_log.open("ab") as log:
            self._child = subprocess.Popen(  # the training's output goes to files, never a pipe
                order["command"],
                cwd=order["working_directory"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launcher = processes.identify(self._child.pid)
        self.write_state("starting")

    def adopt(self) -> None:
        """Go on watching a run whose supervisor died."""
        state = read_json(self.paths.state) or {}
        self.launcher = state.get("launcher")
        self.ranks = {int(rank): process for rank, process in state.get("ranks", {}).items()}
        self.started_at = float(state.get("started_at", self.run["created_at"]))
        self.restarts = int(state.get("restarts", 0))
        if state.get("phase") == "stopping":
            (self.paths.control / "stop").touch()
        log("adopted the run")

    def watch(self) -> None:
        """Loop until the launcher has ended, then tell how it went."""
        from workbench.launch.watching import Watch  # noqa: PLC0415  (after the launcher is under way)

        signal.signal(signal.SIGTERM, self._on_sigterm)
        watch = Watch(self.paths, self.run)
        self.write_state(watch.phase(self))
        if self._order is None:
            watch.catch_up()  # an old step count would announce a stop step that lies behind
        exit_code = self._loop(watch)
        left = end_leftovers(self.run["marker"], os.getpid())
        watch.finish(self, exit_code, len(left))

    def _loop(self, watch: Any) -> int | None:
        while True:
            ended, exit_code = self._launcher_ended()
            if ended:
                if exit_code and not self.ladder.active and self._retry_port(watch):
                    continue
                if exit_code:
                    self._take_requests(watch)  # asked for while it was ending
                return exit_code
            self._take_requests(watch)
            self._find_ranks()
            self.ladder.tick(self.launcher, watch.steps, watch.step_seconds)
            now = time.monotonic()
            if now >= self._view_due:
                self._view_due = now + VIEW_SECONDS
                watch.look(self)
                self.write_state(watch.phase(self))
            time.sleep(TICK_SECONDS)

    def _launcher_ended(self) -> tuple[bool, int | None]:
        if self._child is not None:
            code = self._child.poll()
            return code is not None, code
        return not processes.is_alive(self.launcher), None

    def _take_requests(self, watch: Any) -> None:
        now = (self.paths.control / "stop-now").exists()
        if now or self._term or (self.paths.control / "stop").exists():
            reason = "preempted" if self._term else "stopped"
            first = not self.ladder.active
            if first:
                watch.read()
            self.ladder.request(
                now=now and self.ladder.stage in {None, "graceful"},
                steps=watch.steps if self.run["capture"] else 0,
                step_seconds=watch.step_seconds,
                reason=reason,
            )
            if first:
                at = self.ladder.stop_at
                self.message = f"Stopping at step {at}." if at else "Stopping."
                log(self.message)

    def _on_sigterm(self, *_: object) -> None:
        self._term = True

    def _find_ranks(self) -> None:
        for rank in range(int(self.run["processes"])):
            if rank not in self.ranks:
                start = read_json(self.paths.rank_start(rank))
                if start is not None:
                    self.ranks[rank] = start["process"]
        for rank, process in self.ranks.items():
            if rank not in self.vanished and not processes.is_alive(process):
                self.vanished[rank] = time.time()

    def check_world(self, seconds_since_first_step: float | None) -> None:
        """Compare the ranks asked for with the process group's size; say so when they differ."""
        if self.world_size is not None or seconds_since_first_step is None:
            return
        starts = [read_json(self.paths.rank_start(rank)) for rank in self.ranks]
        sizes = [start.get("group_world_size") for start in starts if start]
        known = [size for size in sizes if isinstance(size, int)]
        asked = int(self.run["processes"])
        if known and max(known) == asked:
            self.world_size = asked
        elif seconds_since_first_step > WORLD_CHECK_SECONDS:
            self.world_size = max(known, default=1)
            if self.world_size != asked:
                self.message = (
                    f"{asked} processes were asked for, but the script formed a group of "
                    f"{self.world_size}: {len(self.ranks)} independent trainings may be running. "
                    "Check that the script uses Accelerator() or init_process_group()."
                )
                log(self.message)

    def _retry_port(self, watch: Any) -> bool:
        from workbench.launch.outcome import address_was_taken  # noqa: PLC0415

        watch.read()
        if self._order is None or watch.steps or self.restarts >= MAX_PORT_RETRIES:
            return False
        if not address_was_taken(self.paths, int(self.run["processes"])):
            return False
        end_leftovers(self.run["marker"], os.getpid())
        self.restarts += 1
        self.message = "The rendezvous port was taken; started again on a free one."
        log(self.message)
        command = list(self._order["command"])
        command[command.index("--main_process_port") + 1] = "0"
        for path in self.paths.metrics.iterdir():
            path.unlink()
        for path in self.paths.logs.glob("*.log"):
            if path != self.paths.supervisor_log:
                path.replace(path.with_suffix(f".attempt-{self.restarts}"))
        self.ranks, self.vanished = {}, {}
        self.start({**self._order, "command": command})
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
            "world_size_asked": self.run["processes"],
            "world_size_seen": self.world_size,
        }
        guarded("state.json", lambda: write_json_atomic(self.paths.state, document))


def take_lock(paths: RunPaths) -> int | None:
    """Become the run's only supervisor; None when there is one. The kernel frees it when we die."""
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def main() -> None:
    """Entry point of the detached process."""
    paths = RunPaths(Path(sys.argv[1]))
    adopting = "--adopt" in sys.argv[2:]
    order: dict[str, Any] = {} if adopting else json.loads(sys.stdin.buffer.read())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned ranks come to us
    lock = take_lock(paths)
    run = read_json(paths.run)
    if lock is None or run is None:
        log("another supervisor has this run" if lock is None else "run.json cannot be read")
        return
    if paths.exit.exists():
        log("the run has ended")
        return
    supervisor = Supervisor(paths, run)
    guarded("reserve", lambda: (paths.control / "reserve").write_bytes(b"\0" * _RESERVE_BYTES))
    if adopting:
        supervisor.adopt()
    else:
        supervisor.start(order)
    supervisor.watch()
    os.close(lock)


if __name__ == "__main__":
    main()
