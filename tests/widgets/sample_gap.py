"""Runs as predicted and measured, made up: what `prediction_error.comparison.compare` is given, and what it gives."""

from __future__ import annotations

from typing import Any

from workbench.observe.prediction_error.comparison import compare
from workbench.observe.prediction_error.steady_steps import Steady
from workbench.store.run_record import RunRecord

GB = 10**9
TIME = {
    "step_seconds": 1.0,
    "range": {"low_seconds": 0.92, "high_seconds": 1.1},
    "parts": {
        "matmul": 0.45,
        "memory-bound operations": 0.3,
        "optimizer": 0.05,
        "exposed communication: gradients": 0.18,
        "input wait": 0.02,
    },
    "tokens_per_step": 8192,
    "tokens_per_second": 8192.0,
    "mfu": 0.4,
    "source": "measured here on 2026-11-20",
    "host_key": "cpu-x-2-cores-abcdef",
}
MEMORY = {"total_bytes": 10 * GB, "allocated_bytes": 8 * GB, "on_card_bytes": 10 * GB}
RUN: dict[str, Any] = {
    "run": "sample",
    "created_at": 1.0,
    "device": "cpu",
    "processes": 2,
    "strategy_name": "ddp",
    "strategy": {"pp": 1},
    "workload": {"accumulate": 1, "model": {"layers": 4, "hidden": 256}, "seq_len": 128},
    "predicted": {"memory": MEMORY, "time": TIME},
    "usd_per_hour": 36.0,
}
STEADY = Steady(
    steps=200,
    step_seconds=1.01,
    tokens=8192,
    input_seconds=0.02,
    slowest_seconds=0.0,
    forward_seconds=0.25,
    backward_seconds=0.74,
)
SLOW_INPUT = Steady(
    steps=200,
    step_seconds=1.31,
    tokens=8192,
    input_seconds=0.3,
    slowest_seconds=0.01,
    forward_seconds=0.26,
    backward_seconds=0.74,
)
VIEW: dict[str, Any] = {
    "phase": "ended",
    "steps": 210,
    "elapsed_seconds": 300.0,
    "usd_so_far": 3.0,
    "peak_memory_bytes": [10_100_000_000, 9_900_000_000, None],
}


def comparison(steady: Steady = SLOW_INPUT, **view: Any) -> dict[str, Any]:
    """A `schema.ComparisonDoc`."""
    return compare(RunRecord.of(RUN), {**VIEW, **view}, steady).document()
