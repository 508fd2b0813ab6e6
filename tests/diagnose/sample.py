"""Runs made of numbers: rows and samples as the supervisor would read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts
from workbench.observe.events import StepRow
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

STEP = 0.1


def run_document(**changed: Any) -> dict[str, Any]:
    return {
        "run": "sample",
        "processes": 2,
        "device": "cpu",
        "created_at": 1000.0,
        "strategy": {"name": "ddp", "dp_replicate": 2, "pp": 1},
        "cluster": {"name": "here", "gpus": [], "memory_bytes": 100 << 30},
        "recovery": {},
        "predicted": None,
        "workload": None,
        "usd_per_hour": None,
    } | changed


def row(step: int, losses: list[float] | float, **more: Any) -> StepRow:
    """A step of two ranks that enter and end it together."""
    by_rank = dict(enumerate(losses if isinstance(losses, list) else [losses, losses]))
    at = 1000.0 + step * STEP
    made = StepRow(step, at, ranks=len(by_rank), seen_at=at, step_seconds=STEP)
    made.losses = by_rank
    made.loss = sum(by_rank.values()) / len(by_rank)
    made.finite = made.loss == made.loss and abs(made.loss) != float("inf")
    made.backward_at = dict.fromkeys(by_rank, at - 0.6 * STEP)
    made.ended_at = dict.fromkeys(by_rank, at)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def sample(at: float, **changed: Any) -> dict[str, Any]:
    return {
        "time": at,
        "cpu_percent": 50.0,
        "memory_used_bytes": 10 << 30,
        "run_rss_bytes": 1 << 30,
        "run_cpu_percent": 150.0,
        "disk_free_bytes": 100 << 30,
        "net_bytes_per_second": 0.0,
        "gpus": [],
    } | changed


def gpu(index: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "index": index,
        "util": 95.0,
        "memory_bytes": 60 << 30,
        "temperature_c": 60.0,
        "power_w": 600.0,
        "sm_clock_mhz": 1900.0,
        "throttle_reasons": 0,
    } | changed


class Replay:
    """A diagnoser whose clock is the numbers' own."""

    def __init__(self, folder: Path, **run: Any) -> None:
        self.paths = RunPaths(folder)
        self.paths.make_folders()
        document = run_document(**run)
        self.paths.run.write_text(json.dumps(document))
        self.diagnoser = Diagnoser(self.paths, RunRecord.of(document), keep=False)
        self.now = 1000.0
        self.facts: dict[str, Any] = {}

    def rows(self, rows: list[StepRow]) -> list[Finding]:
        """Feed rows and look once a second of their time."""
        found: list[Finding] = []
        for one in rows:
            self.diagnoser.rows([one])
            if one.time >= self.now + 1:
                found = self.look(one.time)
        return self.look(max(self.now, rows[-1].time)) if rows else found

    def samples(self, samples: list[dict[str, Any]]) -> list[Finding]:
        found: list[Finding] = []
        for one in samples:
            self.diagnoser.sample(one)
            found = self.look(one["time"])
        return found

    def look(self, now: float) -> list[Finding]:
        self.now = now
        facts = {
            "phase": "running",
            "started_at": 1000.0,
            "elapsed_seconds": now - 1000.0,
            "world_size": 2,
            "monotonic": now,
            "time": now,
            "ranks": {},  # silent ranks would be a hang: that has tests of its own
        } | self.facts
        return self.diagnoser.look(Facts(**facts))


def kinds(findings: list[Finding]) -> list[str]:
    return [one.kind for one in findings if one.cleared_at is None]
