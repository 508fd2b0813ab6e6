"""Runs on many devices and ranks: samples in the real sampler's schema, through the real view.

There is no GPU here: what NVML would tell is made up, all that is made of it is the product's.
"""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

from tests.widgets.sample_runs import write_json
from workbench.observe.events import StepRow
from workbench.observe.gpu import GpuSample
from workbench.observe.view import ViewBuilder
from workbench.store.files import write_bytes_atomic
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

CARD = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_520_809_984, "power_limit_w": 700.0}
SAMPLES, STEPS = 120, 300


class SampleFleet:
    """A run of `nodes` machines with `each` cards, one rank a card; `each` 0 = `ranks` on CPU."""

    def __init__(self, store: Path, run: str, *, nodes: int = 1, each: int = 8, ranks: int = 0):
        self.id, self.directory = run, store / run
        self.nodes, self.each, self.ranks = nodes, each, ranks or nodes * each
        self.started = time.time() - STEPS
        self.paths = RunPaths(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.paths.make_folders()
        self.paths.nodes.mkdir(exist_ok=True)
        self.noise = random.Random(5)
        self.record: dict[str, Any] = {
            "schema": 1,
            "run": run,
            "name": f"{nodes} nodes of {each} GPUs" if each else f"{self.ranks} CPU ranks",
            "strategy_name": "fsdp",
            "processes": self.ranks,
            "nodes": nodes,
            "device": "cuda" if each else "cpu",
            "steps_total": 1000,
            "created_at": self.started,
            "tokens_per_step": 4096 * self.ranks,
            "cluster": {
                "name": "host-0",
                "gpus": self.cards(),
                "cpu_cores": 8,
                "memory_bytes": 2**36,
            },
        }
        write_json(self.paths.run, self.record)

    def request_stop(self, *, now: bool = False) -> None:
        (self.paths.control / ("stop-now" if now else "stop")).touch()

    def cards(self) -> list[dict[str, Any]]:
        return [{"index": index, **CARD} for index in range(self.each)]

    def sample(self, node: int, at: float) -> Any:
        warm, noise = 1 - math.exp(-(at - self.started) / 20), self.noise
        line: dict[str, Any] = {
            "time": round(at, 3),
            "cpu_percent": 40.0,
            "memory_used_bytes": 2**34,
            "run_rss_bytes": 2**33,
            "run_cpu_percent": 180.0,
            "disk_free_bytes": 2**40,
            "net_bytes_per_second": 0,
            "gpus": [self.card(node, index, warm) for index in range(self.each)],
        }
        if not self.each:
            line["cores"] = [round(min(100, max(0, noise.gauss(88, 9)))) for _ in range(8)]
            line["busiest"] = [
                {"pid": 4000 + rank, "cpu_percent": 97.5 - rank, "rss_bytes": 6 * 10**8}
                for rank in range(self.ranks)
            ]
        return line

    def card(self, node: int, index: int, warm: float) -> dict[str, Any]:
        """Two of them are odd where there are enough: a slow one and a hot one that is throttled."""
        noise, place = self.noise, node * self.each + index
        slow, hot = place == self.ranks * 3 // 4, place == self.ranks // 3
        odd = self.ranks >= 8
        return GpuSample(
            index=index,
            util=round(min(100, (58 if slow and odd else 96) * warm + noise.gauss(0, 1.5))),
            memory_bytes=int(62e9 * warm + place % 7 * 2e8),
            temperature_c=round(36 + (52 if hot and odd else 27) * warm + noise.gauss(0, 1)),
            power_w=round(110 + (300 if slow and odd else 530) * warm + noise.gauss(0, 9), 1),
            sm_clock_mhz=1980.0,
            throttle_reasons=0x40 if hot and odd else 0,
        ).document()

    def write(self, *, silent: int | None = None) -> ViewBuilder:
        """view.json, samples and logs; node `silent` has told nothing."""
        builder = ViewBuilder(self.paths, RunRecord.of(self.record))
        for node in range(self.nodes):
            if node == silent:
                continue
            count = SAMPLES if self.nodes <= 8 or not node else 10
            lines = [self.sample(node, self.started + 2 * at + 40) for at in range(count)]
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            self.paths.node_system(node).write_text(text, encoding="utf-8")
            told: Any = {"host": f"host-{node}", "gpus": self.cards()}
            for line in lines[-8:] if node else lines:
                if node:
                    builder.add_node(node, {**told, "sample": line})
                else:
                    builder.add_sample(line)
        for step in range(1, STEPS + 1):
            builder._take(self.row(step))
        for rank in range(min(self.ranks, 70)):
            self.paths.rank_log(rank).write_text(f"[rank {rank}] step 300 loss 2.41\n" * 30)
        self.publish(builder, STEPS)
        return builder

    def publish(self, builder: ViewBuilder, steps: int) -> None:
        """view.json as it is after so many steps."""
        alive = {"alive": True, "ended": None, "phase": "forward"}
        told = {rank: {"pid": 4000 + rank, **alive} for rank in range(self.ranks)}
        for rank, now in builder.stream.ranks.items():
            now.step, now.loss, now.memory_bytes = steps, 2.4 + rank * 1e-3, 60 * 10**9
            now.late_seconds = 0.031 if rank == self.ranks * 3 // 4 else 0.0004
        moment = {
            "phase": "running",
            "started_at": self.started,
            "ended_at": None,
            "elapsed_seconds": float(steps),
            "world_size": self.ranks,
            "restarts": 0,
            "findings": [],
            "checkpoints": [],
            "ranks": told,
        }
        write_bytes_atomic(self.paths.view, builder.encoded(moment))

    def grow(self, builder: ViewBuilder, steps: int) -> None:
        """One more step and sample of one machine, and a line of each rank's log."""
        line = self.sample(0, self.started + steps)
        with self.paths.system.open("a", encoding="utf-8") as samples:
            samples.write(json.dumps(line, separators=(",", ":")) + "\n")
        builder.add_sample(line)
        builder._take(self.row(steps))
        for rank in range(self.ranks):
            with self.paths.rank_log(rank).open("a", encoding="utf-8") as log:
                log.write(f"[rank {rank}] step {steps} loss {2.2 + 1e-3 * rank:.4f}\n")
        self.publish(builder, steps)

    def row(self, step: int) -> StepRow:
        noise, at = self.noise, self.started + step
        row = StepRow(step, at, self.ranks, step_seconds=0.93, lr=3e-4, grad_norm=0.6)
        row.loss = 2.2 + 3 * math.exp(-step / 90)
        slow = self.ranks * 3 // 4
        for rank in range(self.ranks) if step > STEPS - 30 else ():  # of earlier ones none is shown
            late = abs(noise.gauss(0, 0.0009)) + (0.031 if rank == slow else 0)
            row.backward_at[rank] = at - 0.6 + late
            row.ended_at[rank] = at + abs(noise.gauss(0, 0.002))
            row.losses[rank] = row.loss + noise.gauss(0, 0.05)
        return row
