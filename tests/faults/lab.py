"""A training that breaks on request (recipes/fault_lab.py), and how tests look at a run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workbench as wb
from tests.conftest import rank_pid, until
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.starts import read_attempts

LAB = Path(wb.__file__).parent / "recipes" / "fault_lab.py"
PATIENCE = 90.0


class Lab:
    """One run of the lab and what is done to it."""

    def __init__(self, store: Path, *arguments: str, restarts: int = 0, **options: Any) -> None:
        recovery = options.pop("recovery", Recovery(restarts=restarts, backoff_seconds=0.5))
        words = ["--steps", "100000", "--step-ms", "20", "--checkpoint-every", "20", *arguments]
        options = {"warm": True, **options}
        self.run = wb.launch(
            LAB, words, cpu=True, processes=2, store=store, recovery=recovery, **options
        )

    def state(self) -> dict[str, Any]:
        return read_json(self.run.directory / "state.json") or {}

    @property
    def steps(self) -> int:
        view = self.run.view()  # that of the attempt before may still lie there
        return view["steps"] if view["attempt"] == self.attempt else 0

    @property
    def attempt(self) -> int:
        return int(self.state().get("attempt") or 0)

    def begun(self, steps: int = 25) -> Lab:
        """Wait for the first steps (and one checkpoint)."""
        until(lambda: self.steps >= steps or not self.run.status.live, PATIENCE, "the first steps")
        assert self.run.status.live, (self.run.status, self.run.logs(tail=20))
        return self

    def inject(self, fault: str, rank: int = 1, **more: Any) -> float:
        """Ask a rank to break; returns the moment."""
        text = json.dumps({"fault": fault, "rank": rank, **more})
        path = self.run.directory / "control" / "fault.json"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)
        return time.monotonic()

    def signal(self, who: str | int, number: int = signal.SIGKILL) -> float:
        """Signal the supervisor, the launcher, or a rank; returns the moment."""
        here = self.run.directory
        os.kill(rank_pid(here, who) if isinstance(who, int) else self.state()[who]["pid"], number)
        return time.monotonic()

    def ended(self, since: float, seconds: float = PATIENCE) -> float:
        """Seconds from `since` to the end of the run."""
        until(lambda: not self.run.status.live, seconds, "the end of the run")
        return time.monotonic() - since

    def finding(self, *kinds: str, since: float, seconds: float = PATIENCE) -> dict[str, Any]:
        """The first finding of one of `kinds`, with ``seconds`` since then."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            told = self.run.view()["findings"]
            found[:] = [one for one in told if one["kind"] in kinds]
            return bool(found)

        until(look, seconds, f"a finding of {kinds}; {self.run.view()['findings']}")
        return {**found[0], "seconds": time.monotonic() - since}

    def back(self, since: float, attempt: int = 2) -> float:
        """Seconds from `since` to the first new step of the next attempt."""
        until(lambda: self.attempt >= attempt, PATIENCE, "the next attempt")
        at = self.attempts("start")[-1]["first_step"]
        until(lambda: self.steps > at or not self.run.status.live, PATIENCE, "new steps")
        assert self.run.status.live, self.run.status
        return time.monotonic() - since

    def attempts(self, event: str) -> list[dict[str, Any]]:
        """The attempts' starts or ends."""
        lines = read_attempts(RunPaths(self.run.directory))
        return [line for line in lines if line["event"] == event]

    def left(self) -> list[Any]:
        """Living processes of the run."""
        return processes.find_marked(self.run.document["marker"])

    def unbroken(self) -> bool:
        """Whether every step is in the record, once."""
        return [row["step"] for row in self.run.metrics(0)] == list(
            range(1, len(self.run.metrics(0)) + 1)
        )


def lost_steps(run: wb.Run) -> list[int]:
    """Steps that each restart had to make again."""
    attempts = read_attempts(RunPaths(run.directory))
    ends = {line["attempt"]: line["last_step"] for line in attempts if line["event"] == "end"}
    starts = [line for line in attempts if line["event"] == "start"]
    return [
        ends[line["attempt"] - 1] - line["first_step"] for line in starts if line["attempt"] > 1
    ]


def when(condition: Callable[[], object], since: float, seconds: float, what: str) -> float:
    """Seconds from `since` until the condition holds."""
    until(condition, seconds, what)
    return time.monotonic() - since
