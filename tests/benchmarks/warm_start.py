"""From Launch to the first step of two warm CPU ranks, and where the time goes.

    python -m tests.benchmarks.warm_start [--launches 5]

One launch starts the warm server and does not count; the others find it. Each part is the time from
the event before it, as files and the kernel tell of it: the call of `launch` and its return, the
start of the launcher's process, of the ranks' processes, of their scripts, and the end of the first
optimizer step of rank 0. Beside the wall clock stands the processor time that the caller and rank 0
had used by then: on a shared machine the one grows with the load, the other hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import workbench as wb
from workbench.launching.warm import client
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

PROBE = Path(__file__).parent / "train_probe.py"
BOUND_SECONDS = 1.5
PARTS = ("call", "launcher", "ranks", "script", "first step")


def measure(launches: int, steps: int = 10) -> list[dict[str, float]]:
    """Of each launch: seconds by part, ``total``, and ``cpu``, the processor seconds up to then."""
    with tempfile.TemporaryDirectory() as folder:
        before, os.environ[client.FOLDER] = os.environ.get(client.FOLDER), f"{folder}/warm"
        try:
            return [_launch(Path(folder), number, steps) for number in range(launches + 1)][1:]
        finally:
            client.stop_servers()
            os.environ.pop(client.FOLDER)
            if before is not None:
                os.environ[client.FOLDER] = before


def _launch(folder: Path, number: int, steps: int) -> dict[str, float]:
    result = folder / f"result-{number}.json"
    spent, began = os.times(), time.time()
    run = wb.launch(
        PROBE,
        [str(steps), str(result)],
        processes=2,
        cpu=True,
        warm=True,
        store=folder / "runs",
        name=f"probe-{number}",
    )
    called, own = time.time(), os.times()
    paths = RunPaths(run.directory)
    launcher: dict[str, Any] | None = None
    while launcher is None and run.status.live:
        launcher = (read_json(paths.state) or {}).get("launcher")
        time.sleep(0.02)
    assert run.wait(600) == "succeeded", run.status
    state = read_json(paths.state) or {}
    assert state["warm"], state["message"]
    start = read_json(paths.rank_start(0)) or {}
    first = json.loads(result.read_text())
    moments = (
        began,
        called,
        _began(launcher or {}),
        _began(start["process"]),
        start["time"],
        first["first_step_at"],
    )
    parts = {name: moments[at + 1] - moments[at] for at, name in enumerate(PARTS)}
    mine = own.user + own.system - spent.user - spent.system
    return {**parts, "total": moments[-1] - began, "cpu": mine + first["first_step_cpu"]}


def _began(process: dict[str, Any]) -> float:
    """Unix seconds at which a process was started."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + process["start_ticks"] / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    found = measure(parser.parse_args().launches)
    for name in (*PARTS, "total", "cpu"):
        values = [one[name] for one in found]
        print(f"{name:10} {median(values):6.2f} s  (best {min(values):.2f})")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
