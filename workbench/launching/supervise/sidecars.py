"""Processes that a supervisor keeps beside a run: trackers, mirror, messages, hooks.

They are no part of the training: the stop ladder passes them over, and what becomes of them is a
line in a log, never the run's outcome.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.launching.log import guarded, log
from workbench.launching.resume.attempts import ON_END
from workbench.launching.supervise.protection import set_oom_score
from workbench.notifying import chosen
from workbench.notifying import follow_command as follow_messages
from workbench.observe.trackers import follow_command
from workbench.recover.policy import Recovery
from workbench.storage.mirror_state import await_last_copy, mirror_command
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.run_record import RunRecord
from workbench.store.starts import attempts_of

_MARK = "WORKBENCH_RUN"  # in place of the run's marker
_AGAIN_SECONDS = 60.0  # between two starts of one that is killed
_FLUSH_SECONDS = 60.0  # one that has not told the end by then is left to itself


@dataclass(slots=True)
class _Follower:
    """A process that follows the run to its end."""

    title: str
    command: Sequence[str]
    log: str
    process: subprocess.Popen[bytes] | None
    due: float = 0.0  # when it may be started again, in monotonic seconds


class Sidecars:
    """Starts them and waits for trackers and messages at the end."""

    def __init__(
        self,
        paths: RunPaths,
        run: RunRecord,
        recovery: Recovery,
        oom_score: int | None = None,
    ) -> None:
        """`oom_score`: of what is started here; None: this process's own."""
        self.pids: set[int] = set()
        self._oom_score = oom_score
        self._paths = paths
        self._run = run
        self._recovery = recovery
        self._followers: list[_Follower] = []
        self._idle_seen = False

    def start(self) -> None:
        """Start the trackers that the run was launched with, and what sends its messages."""
        for name in self._run.trackers:
            command = follow_command(self._paths, name)
            self._follow(f"tracker {name}", command, f"tracker-{name}.log")
        if self._run.mirror:
            self._follow("mirror", mirror_command(self._paths, self._run.mirror), "mirror.log")
        try:
            # A measurement's own runs are no news: who started it waits for its answer.
            targets = [] if self._run.part_of else chosen(self._run.notify)
        except WorkbenchError as error:  # a target was removed since, or its file is damaged
            targets = []
            log(f"no messages: {error}")
        if targets:
            self._follow("messages", follow_messages(self._paths, targets), "notify.log")

    def _follow(self, title: str, command: Sequence[str], name: str) -> None:
        follower = _Follower(title, command, name, self._spawn(title, command, name))
        self._followers.append(follower)

    def bring_back(self, now: float) -> None:
        """Start those again that were killed; called often, `now` in monotonic seconds."""
        for follower in self._followers:
            code = None if follower.process is None else follower.process.poll()
            if code is not None and code < 0 and now >= follower.due:
                follower.due = now + _AGAIN_SECONDS
                log(f"{follower.title} was ended by signal {-code}")
                again = self._spawn(follower.title, follower.command, follower.log)
                follower.process = again or follower.process

    def adopt_children_of(self, watcher: int) -> None:
        """Know those again that an earlier supervisor started: its death made them `watcher`'s."""
        for process in processes.descendants(watcher, excluded={os.getpid()}):
            if processes.has_variable(process["pid"], _MARK, self._paths.directory.name):
                self.pids.add(process["pid"])

    def idle(self) -> None:
        """The machine has been idle for so long: start what was asked for then, once."""
        if not self._idle_seen:
            self._idle_seen = True
            self._hook("on_idle", self._recovery.on_idle)

    def end(self) -> None:
        """The run has ended and exit.json is written: wait for the rest, not for long."""
        for process in filter(None, (follower.process for follower in self._followers)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_FLUSH_SECONDS)

    def last_hook(self) -> None:
        """Start it, once: it may stop the machine, so the mirror's last copy comes before it.

        Call it without the run's lock: who resumes the run meanwhile has its last hook.
        """
        mark = self._paths.control / ON_END
        ended, starts = self._paths.exit.exists(), attempts_of(self._paths)

        def resumed() -> bool:
            gone = ended and not self._paths.exit.exists()
            return gone or attempts_of(self._paths) != starts

        if self._recovery.on_end and not await_last_copy(self._paths, resumed):
            log("on_end does not wait for the mirror any longer: it hangs")
        if self._recovery.on_end and resumed():
            log("on_end is left to the attempt after it")
            return
        if not mark.exists():
            guarded("on_end", mark.touch)
            self._hook("on_end", self._recovery.on_end)

    def _hook(self, name: str, command: Sequence[str]) -> None:
        if not command:
            return
        if self._recovery.hooks_dry_run:
            log(f"{name} would start now (dry run): {shlex.join(command)}")
            return
        self._spawn(name, command, "hooks.log")

    def _spawn(
        self, title: str, command: Sequence[str], name: str
    ) -> subprocess.Popen[bytes] | None:
        environment = {key: value for key, value in os.environ.items() if key != MARKER}
        environment[_MARK] = self._paths.directory.name
        folder = Path(self._run.working_directory)
        started: list[subprocess.Popen[bytes]] = []

        def spawn() -> None:
            with (self._paths.logs / name).open("ab") as output:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=folder if folder.is_dir() else self._paths.directory,
                    env=environment,
                )
            if self._oom_score is not None:
                set_oom_score(process.pid, self._oom_score)
            started.append(process)
            self.pids.add(process.pid)
            log(f"{title}: started {shlex.join(command)} as process {process.pid}")

        guarded(title, spawn)
        return started[0] if started else None
