"""Stands for a rank of a fast training: so many metric lines a second, for some seconds; no torch."""

import json
import os
import sys
import time
from pathlib import Path

seconds, rate, rank = float(sys.argv[1]), int(sys.argv[2]), os.environ["RANK"]
names = [f"train/metric_{number}" for number in range(int((*sys.argv, 0)[3]))]
logged = Path(os.environ["WORKBENCH_RUN_DIR"]) / "metrics" / f"rank-{rank}.said.jsonl"
path = Path(os.environ["WORKBENCH_RUN_DIR"]) / "metrics" / f"rank-{rank}.jsonl"
began = time.time()
with path.open("a", buffering=1) as file:
    for step in range(1, int(rate * seconds) + 1):
        due = began + step / rate
        time.sleep(max(0.0, due - time.time()))
        line = {
            "step": step,
            "time": time.time(),
            "step_seconds": 1 / rate,
            "backward_at": time.time(),
        }
        line |= {"lr": 3e-4, "memory_bytes": 71234567890, "loss": 2 + 1 / step, "grad_norm": 1.25}
        file.write(json.dumps(line) + "\n")
        if names and rank == "0":
            values = {"time": time.time(), "step": step, "values": dict.fromkeys(names, step / 7)}
            with logged.open("a") as said:
                said.write(json.dumps(values) + "\n")
