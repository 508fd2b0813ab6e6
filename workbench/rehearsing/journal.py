"""What a rehearsal writes beside its metrics: state, attempts, events, and how it ended."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, final

from workbench.rehearsing.schedule import Attempt
from workbench.store import processes
from workbench.store.files import append_line, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.run_record import REHEARSED, RunRecord
from workbench.store.schema import SCHEMA_VERSION, ExitDoc, ProcessDoc

NOT_RESUMABLE = "A rehearsal trains nothing, so there is nothing to resume."


@final
@dataclass(slots=True, kw_only=True)
class Journal:
    """Writes the small files of one rehearsal. Times given are seconds of its clock."""

    paths: RunPaths
    run: RunRecord
    attempts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Lines of attempts.jsonl."""
    process: ProcessDoc | None = field(default_factory=lambda: processes.identify(os.getpid()))
    message: str = (
        "Rehearsal: a plan is played on a simulated clock. Nothing is trained, nothing is measured."
    )

    @property
    def began(self) -> float:
        """Unix seconds at which the run's clock began."""
        return self.run.created_at

    def event(self, at: float, event: str, **more: Any) -> None:
        """A line of rehearsal.jsonl."""
        line = {"time": round(self.began + at, 3), "event": event, **more}
        append_line(self.paths.rehearsal, json.dumps(line).encode())

    def begin(self, attempt: Attempt) -> None:
        """An attempt begins."""
        saved = f"step-{attempt.first_step} (rehearsed)" if attempt.first_step else None
        self._attempt(
            attempt,
            "start",
            attempt.begin,
            first_step=attempt.first_step,
            checkpoint=saved,
            why=attempt.why,
            given_up=list[Any](),
        )

    def end(self, attempt: Attempt, at: float, step: int, message: str) -> None:
        """It is over, at its own end or because the rehearsal was stopped."""
        self._attempt(attempt, "end", at, last_step=step, message=message)

    def _attempt(self, attempt: Attempt, event: str, at: float, **more: Any) -> None:
        line = {"attempt": attempt.number, "event": event, "time": round(self.began + at, 3)}
        self.attempts.append({**line, **more})
        append_line(self.paths.attempts, json.dumps(self.attempts[-1]).encode())

    def state(self, phase: str, attempt: int) -> None:
        """state.json, with a heartbeat of the host's clock."""
        write_json_atomic(
            self.paths.state,
            {
                "schema": SCHEMA_VERSION,
                "phase": phase,
                "message": self.message,
                "rehearsal": True,
                "supervisor": self.process,
                "watcher": None,
                "launcher": None,
                "ranks": {},
                "heartbeat": round(time.time(), 3),
                "started_at": self.began,
                "port": None,
                "restarts": max(0, attempt - 1),
                "warm": False,
                "attempt": attempt,
                "world_size_asked": self.run.processes,
                "world_size_seen": self.run.processes,
            },
        )

    def ending(self, outcome: str, message: str, at: float) -> ExitDoc:
        """exit.json, not written yet."""
        return {
            "schema": SCHEMA_VERSION,
            "outcome": outcome,
            "exit_code": None,
            "failed_rank": None,
            "traceback": None,
            "message": f"{REHEARSED.capitalize()}. {message}",
            "why_not_resumable": NOT_RESUMABLE,
            "finding": None,
            "processes_left": 0,
            "gpu_memory_left_bytes": None,
            "ended_at": round(self.began + at, 3),
        }
