"""Ended runs as the supervisor leaves them: metric lines, and the view built from them by itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from workbench.observe.view import ViewBuilder
from workbench.observe.view_json import encode
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

BEGAN = 1.7e9


def make_run(root: Path, run: str, *, steps: int = 200, ranks: int = 2, **about: Any) -> RunPaths:
    """A finished run; its loss falls from 5 towards `floor` with the time constant `slow` steps.

    `about`: floor, slow, step_seconds, outcome, age (seconds that it began later), view (False: it
    was never made), and whatever else run.json shall have.
    """
    floor, slow = about.pop("floor", 2.0), about.pop("slow", 50)
    seconds, outcome = about.pop("step_seconds", 0.5), about.pop("outcome", "succeeded")
    began = BEGAN + about.pop("age", 0)
    with_view = about.pop("view", True)
    paths = RunPaths(root / run)
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    document = run_document(run, ranks, began) | about
    paths.run.write_text(json.dumps(document))
    for rank in range(ranks):
        with paths.rank_metrics(rank).open("w") as file:
            for step in range(1, steps + 1):
                loss = floor + (5 - floor) * math.exp(-step / slow) + 0.01 * (rank - 0.5)
                file.write(metric_line(step, began + step * seconds, loss, seconds))
    ended = began + steps * seconds
    exit_document = {"outcome": outcome, "exit_code": 0, "message": "Done.", "ended_at": ended}
    state = {"phase": "ended", "started_at": began, "restarts": 0, "world_size_seen": ranks}
    if with_view:
        paths.view.write_bytes(build_view(paths, document, steps * seconds, outcome, ended))
    paths.state.write_text(json.dumps(state))
    paths.exit.write_text(json.dumps(exit_document))
    return paths


def run_document(run: str, ranks: int, began: float) -> dict[str, Any]:
    """What run.json of such a run says."""
    return {
        "schema": 1,
        "run": run,
        "name": f"the {run}",
        "marker": f"made-{run}",
        "created_at": began,
        "workbench_version": "0.1.0",
        "script": "train.py",
        "recipe": None,
        "arguments": ["--lr", "3e-4"],
        "layout_arguments": [],
        "strategy": {"name": "ddp", "dp_replicate": ranks},
        "strategy_name": "ddp",
        "processes": ranks,
        "device": "cpu",
        "capture": True,
        "cluster": {"name": "host", "gpus": [], "cpu_cores": 2},
        "tokens_per_step": 1024,
        "usd_per_hour": 7.2,
    }


def metric_line(step: int, at: float, loss: float, seconds: float) -> str:
    """As the capture hook writes it."""
    return (
        f'{{"step":{step},"time":{at:.6f},"step_seconds":{seconds},"backward_at":{at - 0.1:.6f},'
        f'"loss":{loss:.6f},"lr":0.0003,"grad_norm":1.25,"data_seconds":0.001,'
        f'"memory_bytes":71234567}}\n'
    )


def build_view(
    paths: RunPaths, run: dict[str, Any], elapsed: float, outcome: str, ended: float
) -> bytes:
    """The last view that the supervisor would have written."""
    builder = ViewBuilder(paths, RunRecord.of(run))
    builder.read()
    while not builder.stream.at_end:
        builder.read()
    builder.read(final=True)
    now = {
        "phase": "ended",
        "outcome": outcome,
        "message": "Done.",
        "ended_at": ended,
        "elapsed_seconds": elapsed,
        "world_size": run["processes"],
        "restarts": 0,
        "attempt": 1,
        "attempts": [],
        "checkpoints": [],
        "findings": [],
        "started_at": run["created_at"],
        "ranks": {},
    }
    return encode(builder.snapshot(now))
