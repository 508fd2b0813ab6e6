"""What the supervisor adds to view.json when a run has troubles, made up: for faces without runs."""

from __future__ import annotations

import time
from typing import Any

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><b>bold</b>"


def finding(kind: str, severity: str = "warning", **more: Any) -> dict[str, Any]:
    """A `workbench.store.findings.Finding` document."""
    return {
        "kind": kind,
        "severity": severity,
        "rank": 1,
        "step": 118,
        "evidence": "rank 1 entered backward 29 ms after the first in 18 of the last 20 steps, "
        "at a median step of 92 ms",
        "cause": "Rank 1 is slower than the others, which wait for it in every step.",
        "next": "Look at what else runs on its GPU or cores: compare clocks and temperature.",
        "confidence": 0.9,
        "seen_at": time.time() - 40,
        "cleared_at": None,
        **more,
    }


def hang(**more: Any) -> dict[str, Any]:
    known = {
        "cause": "Rank 1 has not entered backward of step 121; rank 0 waits for it.",
        "evidence": "no step for 21.4 s at a median of 0.09 s; rank 1 sleeps at train.py:74 in wait",
        "next": "See the stack of rank 1 in metrics/rank-1.stack; then stop the run.",
        "step": 121,
        "confidence": 0.95,
    }
    return finding("hang", "error", **{**known, **more})


def timeline(late: float = 0.029, steps: int = 20, ranks: int = 2) -> dict[str, Any]:
    """Rank 1 is `late`; the first step of all is together."""
    numbers = list(range(100, 100 + steps))
    return {
        "step": numbers,
        "ranks": [
            {
                "rank": rank,
                "entered": [
                    (late * (0.9 + 0.02 * (step % 10)) if rank == 1 else 0.0004 * rank)
                    for step in numbers
                ],
                "ended": [late + 0.041 + 0.002 * (step % 3) for step in numbers],
                "data": [0.0061 if rank == 0 else 0.0002 for _ in numbers],
            }
            for rank in range(ranks)
        ],
    }


def checkpoint(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "name": f"step-{step:08d}",
        "path": f"/store/run/checkpoints/step-{step:08d}",
        "bytes": 1_288_490_188,
        "saved_at": time.time() - 10 * (200 - step),
        "kind": "recipe",
        "sealed": True,
        "problem": None,
        **more,
    }


CHECKPOINTS = [
    checkpoint(120, sealed=False),
    checkpoint(100),
    checkpoint(80, problem="model.safetensors has 1,000 of 428,113 bytes", sealed=True),
    checkpoint(60, bytes=None, saved_at=None, kind=None),
]
ATTEMPTS = [
    {"attempt": 1, "event": "start", "time": 100.0, "first_step": 0, "checkpoint": None},
    {"attempt": 1, "event": "end", "time": 190.0, "last_step": 71, "message": "Rank 1 was killed"},
    {
        "attempt": 2,
        "event": "start",
        "time": 200.0,
        "first_step": 60,
        "checkpoint": "step-00000060",
        "why": "rank 1 was killed by SIGKILL (9), restart 1 of 2",
    },
]
TROUBLES: dict[str, Any] = {
    "findings": [
        hang(),
        finding("straggler"),
        finding(
            "input-bound",
            "note",
            cleared_at=time.time() - 5,
            cause="The ranks waited for data.",
            evidence="38 % of the step until step 60",
            rank=None,
            next="Give the loader more workers.",
        ),
    ],
    "timeline": timeline(),
    "checkpoints": CHECKPOINTS,
    "attempt": 2,
    "attempts": ATTEMPTS,
    "restarts": 1,
}
