"""`RunState`: what a supervisor knows of its run at this moment, and writes to state.json."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageError
from workbench.launching.log import guarded, log
from workbench.launching.resume.attempts import Attempts
from workbench.launching.stop_ladder import StopLadder
from workbench.launching.supervise.protection import WatcherLink, lower_oom_score
from workbench.launching.supervise.sidecars import Sidecars
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_file, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.printable import printable
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec
    from workbench.recover.preemption import Poller


_WHY_BYTES = 500


class StopRequest:
    """Requests to stop one run. Call `listen` before `reason`, and `stop_listening` at the end."""

    def __init__(self, control: Path, preemption: str | None) -> None:
        """`control`: the run's folder of requests; `preemption`: see `Recovery.preemption`."""
        self._control = control
        self.notice: str | None = None
        """What announced a pre-emption, in words."""
        self._preemption = preemption
        self._poller: Poller | None = None

    def listen(self) -> None:
        """Take SIGTERM for a notice, and look where others come."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._preemption is not None and self._poller is None:
            from workbench.recover.preemption import Poller  # noqa: PLC0415  (an HTTP client)

            try:
                self._poller = Poller(self._preemption, self.take_notice)
            except UsageError as error:  # a record of an earlier version: the run goes on
                log(f"no notices are looked for: {error}")
                return
            self._poller.start()

    def stop_listening(self) -> None:
        """Look for no more notices."""
        if self._poller is not None:
            self._poller.stop()

    @property
    def reason(self) -> str | None:
        """``preempted`` after a notice or SIGTERM, ``stopped`` when a client asked, else None."""
        preempt = self._control / "preempt"
        if self.notice is None and preempt.exists():
            self.notice = "notice of pre-emption"
        if self.notice is not None:
            if not preempt.exists():  # a supervisor that takes over must know
                guarded("preempt", preempt.touch)
            return "preempted"
        stop = (self._control / "stop").exists() or (self._control / "stop-now").exists()
        return "stopped" if stop else None

    @property
    def why(self) -> str:
        """What a client said of its wish to stop; "" = nothing."""
        for name in ("stop", "stop-now"):
            with contextlib.suppress(OSError, ValueError):
                text = printable(read_file(self._control / name, _WHY_BYTES).decode())
                if text:
                    return text
        return ""

    def take_notice(self, text: str) -> None:
        """A pre-emption is announced; the first word of it is kept."""
        self.notice = self.notice or text

    def _on_sigterm(self, *_: object) -> None:
        self.take_notice("pre-empted by SIGTERM")


@dataclass(slots=True, kw_only=True)
class RunState:
    """The parts of a supervisor read and change this; none of them reads another part."""

    paths: RunPaths
    """The run directory."""
    run: RunRecord
    """run.json."""
    recovery: Recovery
    """What may be done for the run while no one looks."""
    attempts: Attempts
    """attempts.jsonl."""
    sidecars: Sidecars
    """Trackers and hooks: not part of the training."""
    stop_request: StopRequest
    """Whether the run is to stop, and why."""
    watcher: WatcherLink
    """The supervisor's parent."""
    oom_score: int
    """Of the training's processes: the kernel ends them before the supervisor."""
    started_at: float
    """Unix seconds of the first attempt."""
    spec: LaunchSpec | None = None
    """What this supervisor started, secrets included."""
    spec_before: LaunchSpec | None = None
    """What the supervisor before this one was to start."""
    ladder: StopLadder = field(init=False)
    """The stop of the present attempt."""
    ranks: dict[int, ProcessDoc] = field(default_factory=dict[int, ProcessDoc])
    """Processes of the ranks that have reported."""
    vanished: dict[int, float] = field(default_factory=dict[int, float])
    """Unix seconds at which a rank was first seen gone."""
    launcher: ProcessDoc | None = None
    """The launcher's process."""
    message: str | None = None
    """One sentence for people."""
    limit: str | None = None
    """What the run was asked for at its launch to stop for, as a sentence."""
    world_size: int | None = None
    """Ranks in the process group that the script formed; None: not known yet."""
    group: str | None = None
    """Why that is another number than was asked for, as a sentence."""
    warm: bool = False
    """Whether launcher and ranks are forks of a warm server."""
    _scan: processes.MemberScan = field(init=False)
    _supervisor: ProcessDoc | None = field(
        default_factory=lambda: processes.identify(os.getpid()), init=False
    )

    def __post_init__(self) -> None:
        """Begin without an attempt."""
        self._scan = processes.MemberScan(self.run.marker, self.paths.directory)
        self.begin_attempt()

    @classmethod
    def of(cls, paths: RunPaths, run: RunRecord) -> RunState:
        """The state of a run as its supervisor begins."""
        recovery, attempts = Recovery.read(run.recovery), Attempts(paths)
        first = next(iter(attempts.lines), None)
        oom_score = lower_oom_score()
        return cls(
            paths=paths,
            run=run,
            recovery=recovery,
            attempts=attempts,
            sidecars=Sidecars(paths, run, recovery, oom_score),
            stop_request=StopRequest(paths.control, recovery.notices_from(run.working_directory)),
            watcher=WatcherLink(paths),
            oom_score=oom_score,
            started_at=time.time() if first is None else float(first["time"]),
        )

    def stop_because(self, reason: str | None) -> None:
        """Ask for a graceful stop for `reason`, a sentence; None = there is none."""
        if reason is None or self.ladder.active or self.stop_request.reason is not None:
            return
        self.limit = reason
        log(reason)
        guarded("stop", (self.paths.control / "stop").touch)

    def begin_attempt(self) -> None:
        """Forget the processes and the stop of the attempt before."""
        self.ranks, self.vanished = {}, {}
        self.ladder = StopLadder(self.paths, self.members, nodes=self.run.nodes)
        self.launcher = self.message = self.world_size = self.group = None
        self.warm = False

    def base_spec(self) -> LaunchSpec:
        """What the next attempt repeats. Raises UsageError: run.json lacks a secret of it."""
        spec = self.spec or self.spec_before
        if spec is not None:
            return spec
        from workbench.launching.resume.resumable import latest_words  # noqa: PLC0415  (seldom needed)
        from workbench.launching.start.launch_spec import recorded_spec  # noqa: PLC0415

        return recorded_spec(self.run, latest_words(self.paths, self.run))

    @property
    def world_size_asked(self) -> int:
        """Ranks that were asked for, on all nodes."""
        return self.run.processes

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, self.attempts.number - 1)

    def members(self) -> list[ProcessDoc]:
        """The living processes of the run, those included that have dropped its marker.

        They descend from this supervisor, or came to its watcher when an earlier one was killed.
        """
        return self._members_by(processes.MemberScan(self.run.marker, self.paths.directory))

    def latest_members(self) -> list[ProcessDoc]:
        """`members`, at little cost: what has become a member without being new comes later."""
        return self._members_by(self._scan)

    def _members_by(self, scan: processes.MemberScan) -> list[ProcessDoc]:
        watcher = self.watcher.parent
        parents = [os.getpid()] if watcher is None else [os.getpid(), watcher]
        return scan.look(parents, excluded={*self.sidecars.pids, os.getpid()})

    def write(self, phase: str) -> None:
        """Heartbeat. A disk that refuses is tried again with the next one."""
        document = {
            "schema": SCHEMA_VERSION,
            "phase": phase,
            "message": self.message,
            "supervisor": self._supervisor,
            "watcher": self.watcher.process(),
            "launcher": self.launcher,
            "ranks": {str(rank): process for rank, process in self.ranks.items()},
            "heartbeat": round(time.time(), 3),
            "started_at": self.started_at,
            "port": None,
            "restarts": self.restarts,
            "warm": self.warm,
            "attempt": self.attempts.number,
            "world_size_asked": self.world_size_asked,
            "world_size_seen": self.world_size,
        }
        guarded("state.json", lambda: write_json_atomic(self.paths.state, document))
