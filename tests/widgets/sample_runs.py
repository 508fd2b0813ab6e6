"""Run directories as the engine writes them (store/schema.py), made up: for faces without runs.

`python tests/widgets/sample_runs.py STORE NAME --steps 400 --grow 20` keeps one growing for 20 s.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

from workbench.store.processes import identify

ROWS_MAX = 300


def write_json(path: Path, content: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    partial.replace(path)


def _thin(columns: dict[str, list[Any]], stride: int) -> dict[str, list[Any]]:
    """Means per `stride` rows, with the extremes the schema asks for."""
    rows = range(0, len(columns["step"]), stride)
    thinned = {
        name: [sum(values[at : at + stride]) / len(values[at : at + stride]) for at in rows]
        for name, values in columns.items()
    }
    for name in ("step", "time"):
        thinned[name] = [columns[name][min(at + stride, len(columns[name])) - 1] for at in rows]
    thinned["loss_min"] = [min(columns["loss"][at : at + stride]) for at in rows]
    thinned["loss_max"] = [max(columns["loss"][at : at + stride]) for at in rows]
    thinned["grad_norm_max"] = [max(columns["grad_norm"][at : at + stride]) for at in rows]
    thinned["step_seconds_max"] = [max(columns["step_seconds"][at : at + stride]) for at in rows]
    return thinned


def _columns(steps: int, total: int, step_seconds: float, started: float) -> dict[str, list[Any]]:
    noise = random.Random(7)
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("step", "time", "loss", "lr", "grad_norm", "step_seconds", "tokens_per_second")
    }
    now = started + 2.0
    for step in range(1, steps + 1):
        seconds = step_seconds * (1 + 0.12 * abs(noise.gauss(0, 1)))
        now += seconds
        warm = min(1.0, step / (0.05 * total + 1))
        columns["step"].append(step)
        columns["time"].append(now)
        columns["loss"].append(2.05 + 3.4 * math.exp(-step / (0.2 * total)) + noise.gauss(0, 0.07))
        columns["lr"].append(
            6e-4 * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / total)))
        )
        columns["grad_norm"].append(0.45 + 2 / math.sqrt(step) + abs(noise.gauss(0, 0.12)))
        columns["step_seconds"].append(seconds)
        columns["tokens_per_second"].append(8192 / seconds)
    return columns


def _readings(
    seconds: int, started: float, gpus: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    noise = random.Random(3)
    time_axis = [started + second for second in range(0, max(seconds, 1), max(1, seconds // 120))]
    warm = [1 - math.exp(-(at - started) / 8) for at in time_axis]
    devices = [
        {
            "id": f"gpu{index}",
            "name": "NVIDIA H100 80GB HBM3",
            "memory_total_bytes": 85_520_809_984,
            "power_limit_w": 700.0,
            "series": {
                "time": time_axis,
                "util": [min(100, 94 * one + noise.gauss(0, 3)) for one in warm],
                "memory_bytes": [int(61e9 * one + index * 4e8) for one in warm],
                "temperature_c": [36 + 28 * one + index + noise.gauss(0, 0.5) for one in warm],
                "power_w": [110 + 520 * one + noise.gauss(0, 12) for one in warm],
            },
        }
        for index in range(gpus)
    ]
    host = {
        "name": "workstation",
        "cores": 2,
        "memory_total_bytes": 16_000_000_000,
        "series": {
            "time": time_axis,
            "cpu_percent": [min(100, 91 * one + 6 + noise.gauss(0, 2)) for one in warm],
            "memory_used_bytes": [int(3.1e9 + 1.1e9 * one) for one in warm],
            "run_rss_bytes": [int(0.2e9 + 0.95e9 * one) for one in warm],
            "run_cpu_percent": [178 * one + noise.gauss(0, 3) for one in warm],
            "disk_free_bytes": [120_000_000_000 for _ in time_axis],
        },
    }
    return devices, host


class SampleRun:
    """One run directory whose step can be moved forward."""

    def __init__(self, store: Path, run: str, **about: Any) -> None:
        self.id = run
        self.directory = store / run
        self.name = about.get("name", run)
        self.gpus = about.get("gpus", 0)
        self.total = about.get("total", 400)
        self.step_seconds = about.get("step_seconds", 0.2)
        self.processes = about.get("processes", 2)
        self.usd_per_hour = about.get("usd_per_hour")
        self.log_lines: list[str] = about.get("log_lines", [])
        self.started = about.get("started", time.time())
        self.seq = 0
        self.stops: list[bool] = []
        for folder in ("logs", "control", "metrics", "config"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        write_json(self.directory / "run.json", self._run_doc())

    def _run_doc(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "run": self.id,
            "name": self.name,
            "strategy_name": "ddp",
            "processes": self.processes,
            "device": "cuda" if self.gpus else "cpu",
            "steps_total": self.total,
            "created_at": self.started,
        }

    def request_stop(self, *, now: bool = False) -> None:
        self.stops.append(now)
        (self.directory / "control" / ("stop-now" if now else "stop")).touch()

    def write(
        self, steps: int, *, phase: str = "running", outcome: str | None = None, **more: Any
    ) -> None:
        """Write view.json, the logs and, at the end, exit.json."""
        self.seq += 1
        columns = _columns(steps, self.total, self.step_seconds, self.started)
        stride = max(1, -(-steps // ROWS_MAX))
        elapsed = (columns["time"][-1] - self.started) if steps else 1.0
        devices, host = _readings(int(elapsed) + 1, self.started, self.gpus)
        self._write_logs(columns)
        ended = phase == "ended"
        view = {
            **self._figures(columns, elapsed),
            "phase": phase,
            "outcome": outcome,
            "ended_at": time.time() if ended else None,
            "stride": stride,
            "series": _thin(columns, stride) if steps else {},
            "devices": devices,
            "host": host,
            "ranks": [self._rank(rank, columns, ended=ended) for rank in range(self.processes)],
        }
        view.update(more)
        write_json(self.directory / "view.json", view)
        state = {"phase": phase, "supervisor": identify(os.getpid()), "heartbeat": time.time()}
        write_json(self.directory / "state.json", state)
        if ended:
            write_json(
                self.directory / "exit.json",
                {
                    "outcome": outcome,
                    "exit_code": 0,
                    "message": more.get("message") or "The run ended; no process of it is left.",
                    "processes_left": 0,
                    "ended_at": time.time(),
                },
            )

    def _figures(self, columns: dict[str, list[Any]], elapsed: float) -> dict[str, Any]:
        steps = len(columns["step"])
        price = self.usd_per_hour
        return {
            "schema": 1,
            "seq": self.seq,
            "written_at": time.time(),
            "run": self.id,
            "name": self.name,
            "message": None,
            "strategy": "ddp",
            "processes": self.processes,
            "world_size": self.processes,
            "device": "cuda" if self.gpus else "cpu",
            "started_at": self.started,
            "first_step_at": columns["time"][0] if steps else None,
            "elapsed_seconds": elapsed,
            "eta_seconds": (self.total - steps) * self.step_seconds if steps else None,
            "steps": steps,
            "steps_total": self.total,
            "loss_first": columns["loss"][0] if steps else None,
            "loss_last": columns["loss"][-1] if steps else None,
            "nonfinite_step": None,
            "step_seconds_median": self.step_seconds if steps else None,
            "tokens_per_second": columns["tokens_per_second"][-1] if steps else None,
            "usd_per_hour": price,
            "usd_so_far": price * elapsed / 3600 if price else None,
            "predicted": {"memory": {"total_bytes": 67_300_000_000 if self.gpus else 610_000_000}},
            "peak_memory_bytes": [600_000_000] * self.processes,
            "restarts": 0,
            "lines_skipped": 0,
            "findings": [],
        }

    def _rank(self, rank: int, columns: dict[str, list[Any]], *, ended: bool) -> dict[str, Any]:
        steps = len(columns["step"])
        return {
            "rank": rank,
            "pid": 4000 + rank,
            "step": steps,
            "loss": columns["loss"][-1] + 0.01 * rank if steps else None,
            "late_seconds": 0.0008 * rank if steps else None,
            "peak_memory_bytes": 58_300_000_000 if self.gpus else 583_000_000 + rank * 2_100_000,
            "rss_bytes": 600_000_000,
            "alive": not ended,
            "ended": None,
            "log_tail": self._lines(columns, rank)[-20:],
        }

    def _lines(self, columns: dict[str, list[Any]], rank: int) -> list[str]:
        lines = [f"[rank {rank}] 2 processes, gloo, 10.7 M parameters", *self.log_lines]
        for step, loss in zip(columns["step"], columns["loss"], strict=True):
            if step % 10 == 0:
                lines.append(
                    f"\x1b[32mstep {step:>5}\x1b[0m  loss {loss:.4f}  lr 6.0e-04  41.0 k tokens/s"
                )
        return lines

    def _write_logs(self, columns: dict[str, list[Any]]) -> None:
        for rank in range(self.processes):
            text = "\n".join(self._lines(columns, rank)) + "\n"
            (self.directory / "logs" / f"rank-{rank}.log").write_text(text, encoding="utf-8")
        (self.directory / "logs" / "launcher.log").write_text(
            "accelerate launch …\n", encoding="utf-8"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--grow", type=float, default=0, help="seconds to go on growing")
    given = parser.parse_args()
    run = SampleRun(given.store, given.run, gpus=given.gpus, processes=given.gpus or 2)
    steps, until = given.steps, time.time() + given.grow
    run.write(steps)
    while time.time() < until and not os.listdir(run.directory / "control"):
        time.sleep(0.5)
        steps += 5
        run.write(steps)


if __name__ == "__main__":
    main()
