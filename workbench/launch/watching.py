"""What the supervisor sees and writes: metrics, samples, view, and the end of the run."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from typing import TYPE_CHECKING, Any

from workbench.launch.capture.recorder import LineWriter
from workbench.launch.journal import guarded, log
from workbench.launch.outcome import judge
from workbench.observe.gpu import GpuSampler
from workbench.observe.host import PAGE_BYTES, HostSampler
from workbench.observe.view import ViewBuilder, encode
from workbench.store import processes
from workbench.store.files import read_json, write_bytes_atomic, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc

if TYPE_CHECKING:
    from workbench.launch.supervisor import Supervisor

_MARKED_EVERY_SECONDS = 5.0
_EXIT_RETRY_SECONDS = 60.0


class Watch:
    """The measuring half of a supervisor."""

    def __init__(self, paths: RunPaths, run: dict[str, Any]) -> None:
        self._paths = paths
        self._builder = ViewBuilder(paths, run)
        self._gpus = GpuSampler() if run["device"] == "cuda" else None  # never raises
        self._host = HostSampler(paths.directory)
        self._system = LineWriter(str(paths.system))
        self._marker: str = run["marker"]
        self._marked: list[ProcessDoc] = []
        self._marked_due = 0.0
        self._sample_due = 0.0

    @property
    def steps(self) -> int:
        """The furthest step any rank reported."""
        return max((rank.step for rank in self._builder.stream.ranks.values()), default=0)

    @property
    def step_seconds(self) -> float | None:
        """Median duration of the recent steps."""
        return self._builder.recent.median

    def read(self) -> None:
        """Take in new metric lines."""
        self._builder.read()

    def phase(self, supervisor: Supervisor) -> str:
        """The phase the run is in."""
        if supervisor.ladder.active:
            return "stopping"
        return "running" if self.steps or len(supervisor.ranks) > 0 else "starting"

    def catch_up(self) -> None:
        """Take in all that was written before we came."""
        self._builder.read()
        while not self._builder.stream.at_end:
            self._builder.read()

    def look(self, supervisor: Supervisor) -> None:
        """Sample and write the view. No defect in here may take the stop ladder down with it."""
        try:
            self.sample(supervisor)
            self.write_view(supervisor)
        except Exception:  # noqa: BLE001
            log(f"watching failed, going on:\n{traceback.format_exc()}")

    def sample(self, supervisor: Supervisor) -> None:
        """Read metrics and hardware; samples thin out as the run grows long."""
        self._builder.read()
        first = self._builder.first_step_at
        supervisor.check_world(None if first is None else time.time() - first)
        now = time.monotonic()
        if now >= self._marked_due:
            self._marked = processes.members(self._marker, os.getpid())
            self._marked_due = now + (_MARKED_EVERY_SECONDS if supervisor.ranks else 1.0)
        if now < self._sample_due:
            return
        elapsed = time.time() - supervisor.started_at
        self._sample_due = now + (0.9 if elapsed < 600 else 1.9 if elapsed < 3600 else 4.9)
        line = self._host.sample(self._marked)
        if self._gpus is not None:
            line["gpus"] = [sample.document() for sample in self._gpus.sample()]
        self._builder.add_sample(line)
        self._system.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def write_view(self, supervisor: Supervisor, end: dict[str, Any] | None = None) -> None:
        """Replace view.json."""
        document = self._builder.snapshot(
            {
                "phase": "ended" if end else self.phase(supervisor),
                "outcome": end["outcome"] if end else None,
                "message": end["message"] if end else supervisor.message,
                "started_at": supervisor.started_at,
                "ended_at": end["ended_at"] if end else None,
                "world_size": supervisor.world_size,
                "restarts": supervisor.restarts,
                "findings": [end["finding"]] if end and end["finding"] else [],
                "ranks": self._rank_documents(supervisor),
            }
        )
        guarded("view.json", lambda: write_bytes_atomic(self._paths.view, encode(document)))

    def _rank_documents(self, supervisor: Supervisor) -> dict[int, dict[str, Any]]:
        documents: dict[int, dict[str, Any]] = {}
        for rank, process in supervisor.ranks.items():
            fields = processes.stat_fields(process["pid"])
            alive = rank not in supervisor.vanished
            end = None if alive else read_json(self._paths.rank_end(rank))
            documents[rank] = {
                "pid": process["pid"],
                "alive": alive,
                "rss_bytes": int(fields[21]) * PAGE_BYTES if alive and fields else None,
                "ended": None
                if alive
                else (end or {}).get("exception") or ("ok" if end else "lost"),
            }
        return documents

    def finish(self, supervisor: Supervisor, exit_code: int | None, left: int) -> None:
        """Drain, judge, write view and report, and exit.json last."""
        self._builder.read(final=True)
        for rank in supervisor.ranks:
            supervisor.vanished.setdefault(rank, time.time())
        verdict = judge(
            self._paths,
            ranks=int(supervisor.run["processes"]),
            steps=self.steps,
            exit_code=exit_code,
            stop_reason=supervisor.ladder.reason if supervisor.ladder.active else None,
            capture=bool(supervisor.run["capture"]),
        )
        self._settle_world(supervisor)
        message = verdict.message
        if supervisor.message and supervisor.world_size not in {None, supervisor.run["processes"]}:
            message = f"{message} {supervisor.message}"
        end: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "outcome": verdict.outcome,
            "exit_code": exit_code,
            "failed_rank": verdict.failed_rank,
            "message": message,
            "finding": verdict.finding,
            "processes_left": left,
            "gpu_memory_left_bytes": self._gpu_memory_left(supervisor),
            "ended_at": round(time.time(), 3),
        }
        log(f"{verdict.outcome}: {message}")
        with contextlib.suppress(OSError):
            (self._paths.control / "reserve").unlink()
        supervisor.write_state("ended")
        self.write_view(supervisor, end)
        self._write_report(end)
        deadline = time.monotonic() + _EXIT_RETRY_SECONDS
        while not guarded("exit.json", lambda: write_json_atomic(self._paths.exit, end, indent=2)):
            if time.monotonic() > deadline:
                return
            time.sleep(2)

    def _settle_world(self, supervisor: Supervisor) -> None:
        """A run too short for the running check is judged at its end."""
        if self.steps:
            supervisor.check_world(1e9)

    def _gpu_memory_left(self, supervisor: Supervisor) -> int | None:
        if self._gpus is None:
            return None
        pids = {process["pid"] for process in [*supervisor.ranks.values(), *self._marked]}
        return self._gpus.memory_of(pids)

    def _write_report(self, end: dict[str, Any]) -> None:
        try:
            from workbench.observe.report import write_report  # noqa: PLC0415  (needed once)

            write_report(self._paths, end)
        except Exception as error:  # noqa: BLE001  (a report must not cost the run its exit.json)
            log(f"report.html failed: {error!r}")
