"""Keeps finished runs as test data: ``python -m tests.diagnose.record OUT RUN_DIRECTORY…``."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from workbench.store.files import read_json
from workbench.store.layout import RunPaths

_RUN = (
    *("run", "processes", "device", "created_at", "strategy", "strategy_name", "cluster"),
    *("recovery", "usd_per_hour", "steps_total"),
)


def record(directory: Path) -> dict[str, str]:
    """The files of a run that the rules read, by their names in its directory."""
    paths = RunPaths(directory)
    run = read_json(paths.run) or {}
    kept = {"run.json": json.dumps({key: run[key] for key in _RUN if key in run})}
    kept["exit.json"] = json.dumps({"outcome": (read_json(paths.exit) or {}).get("outcome")})
    kept["system.jsonl"] = paths.system.read_text()
    if paths.arrivals.exists():
        kept["arrivals.jsonl"] = paths.arrivals.read_text()
    for rank in range(run["processes"]):
        start = read_json(paths.rank_start(rank)) or {}
        told = {
            key: start[key]
            for key in ("samplers", "unused_parameters", "group_world_size")
            if key in start
        }
        kept[f"metrics/rank-{rank}.start.json"] = json.dumps(told)
        if paths.rank_metrics(rank).exists():
            kept[f"metrics/rank-{rank}.jsonl"] = paths.rank_metrics(rank).read_text()
        if paths.rank_arrivals(rank).exists():
            kept[f"metrics/rank-{rank}.arrivals.json"] = paths.rank_arrivals(rank).read_text()
    return kept


def main() -> None:
    """Write all into one compressed file, the same bytes every time."""
    runs = {Path(folder).name: record(Path(folder)) for folder in sys.argv[2:]}
    data = json.dumps(runs, sort_keys=True).encode()
    Path(sys.argv[1]).write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
