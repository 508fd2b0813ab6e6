"""What a file of a store may hold when its writer was broken, or wishes its readers ill."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st

from tests.security.payloads import MARKUP, TERMINAL
from workbench.store import schema

_SCALARS = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**40, 10**400, 16_384, 16_385),
    *(0.0, -0.0, 1e-320, 1e308, 1e999, -1e999, float("nan"), 1.5, 4e18, -5.0),
    *("", "0", "-1", "running", "ended", "NaN", "a\x00b", "\ud800", "\udfff\ud800", "../../x"),
    *("x" * 5000, *TERMINAL, *MARKUP, [], {}, [[]], [None], {"": None}),
]
scalars = st.sampled_from(_SCALARS) | st.text(max_size=8) | st.integers() | st.floats()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
# No JSON at all, or more of it than a parser bears.
raw = st.sampled_from(
    [
        *(
            b"",
            b"null",
            b"[]",
            b"{",
            b'{"a":',
            b"\xff\xfe{\x00}\x00",
            b"\xef\xbb\xbf{}",
            b"\0" * 64,
        ),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"x":' + b"9" * 5000 + b"}", b"NaN", b'"\\ud800"'),
        *(
            b'{"a":1,"a":[2],"a":{}}',
            b"\n" * 1000,
            b"{}\n{}\n",
            b'{"x":"' + b"y" * 2_000_000 + b'"}',
        ),
    ]
) | st.binary(max_size=200)


def encoded(value: Any) -> bytes:
    """`value` as Python's json writes it: NaN, huge integers and half surrogates included."""
    return json.dumps(value).encode()


@st.composite
def spoilt(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """`document` with up to three of its values, at any depth, replaced or removed."""
    copy: Any = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = copy
        for _ in range(draw(st.integers(0, 3))):
            inner = list(place.values()) if isinstance(place, dict) else list(place)
            inner = [one for one in inner if isinstance(one, dict | list) and one]
            if not inner:
                break
            place = draw(st.sampled_from(inner))
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if keys:
            key = draw(st.sampled_from(keys))
            if draw(st.integers(0, 6)) or isinstance(place, list):
                place[key] = draw(values)
            else:
                del place[key]
    return copy


RUN: dict[str, Any] = {
    "schema": 1, "run": "r", "name": "r", "marker": "0" * 32, "created_at": 1e9,
    "workbench_version": "0", "script": "/x/train.py", "arguments": ["--lr", "1"], "recipe": None,
    "strategy": {"name": "ddp"}, "strategy_name": "ddp", "processes": 2, "device": "cpu",
    "cluster": {"name": "here", "gpus": [], "cpu_cores": 2, "memory_bytes": 10**9},
    "workload": None, "warnings": [], "command": ["python"], "environment": {"A": "b"},
    "predicted": {
        "memory": {"parts": {"weights": 5}, "total_bytes": 5, "assumptions": ["a"]},
        "time": {"step_seconds": 1.0, "range": {"low_seconds": 0.9, "high_seconds": 1.1},
                 "parts": {"matmul": 1.0}, "tokens_per_step": 8, "tokens_per_second": 8.0,
                 "mfu": 0.4, "source": "catalog", "host_key": "cpu-x",
                 "correction": {"factor": 1.1, "low": 1.0, "high": 1.2, "runs": 3}},
        "usd": 1.0,
    },
    "working_directory": "/x", "capture": True, "steps_total": 10, "seconds_total": None,
    "tokens_per_step": 8, "usd_per_hour": None, "recovery": {"restarts": 1}, "trackers": [],
    "resumed_from": None,
}  # fmt: skip
GONE = {"pid": 2**22 + 5, "start_ticks": 5, "boot_id": "x"}
STATE: dict[str, Any] = {
    "schema": 1, "phase": "running", "message": "m", "supervisor": GONE, "launcher": GONE,
    "ranks": {"0": GONE, "1": GONE}, "heartbeat": 1e9, "started_at": 1e9, "port": 1, "restarts": 0,
    "attempt": 1, "world_size_asked": 2, "world_size_seen": 2,
}  # fmt: skip
FINDING: dict[str, Any] = {
    "kind": "hang", "evidence": "e", "cause": "c", "next": "n", "confidence": 0.5,
    "severity": "error", "rank": 1, "step": 3, "seen_at": 1e9, "cleared_at": None,
}  # fmt: skip
EXIT: dict[str, Any] = {
    "schema": 1, "outcome": "failed", "exit_code": 1, "failed_rank": 1, "message": "m",
    "finding": FINDING, "processes_left": 0, "gpu_memory_left_bytes": None, "ended_at": 1e9,
}  # fmt: skip
_COLUMN = [1.0, None, 3.0]
_TIMES = [1e9, 1e9 + 1, 1e9 + 2]
VIEW: dict[str, Any] = {
    "schema": 1, "seq": 3, "written_at": 1e9, "run": "r", "name": "r", "phase": "running",
    "outcome": None, "message": None, "strategy": "ddp", "processes": 2, "world_size": 2,
    "device": "cpu", "started_at": 1e9, "first_step_at": 1e9, "ended_at": None,
    "elapsed_seconds": 3.0, "eta_seconds": 4.0, "steps": 3, "steps_total": 10, "stride": 1,
    "loss_first": 1.0, "loss_last": 0.5, "nonfinite_step": None, "step_seconds_median": 0.1,
    "tokens_per_second": 80.0, "usd_per_hour": None, "usd_so_far": None,
    "series": {**dict.fromkeys(("loss", "lr", "grad_norm", "step_seconds"), _COLUMN), "step": [1, 2, 3], "time": _TIMES},
    "ranks": [{"rank": 0, "pid": 5, "step": 3, "loss": 1.0, "late_seconds": None,
               "peak_memory_bytes": 5, "rss_bytes": 5, "alive": True, "ended": None,
               "log_tail": ["a"], "phase": "forward", "process_state": "S"}],
    "devices": [{"id": "gpu0", "name": "H100", "memory_total_bytes": 9, "power_limit_w": 7.0,
                 "series": {**dict.fromkeys(("util", "memory_bytes", "temperature_c", "power_w"), _COLUMN), "time": _TIMES}}],
    "host": {"name": "h", "cores": 2, "memory_total_bytes": 9,
             "series": {**dict.fromkeys(("cpu_percent", "run_rss_bytes"), _COLUMN), "time": _TIMES}},
    "predicted": RUN["predicted"], "peak_memory_bytes": [5, None], "restarts": 0,
    "lines_skipped": 0, "findings": [FINDING], "attempt": 1,
    "attempts": [{"attempt": 1, "event": "start", "time": 1e9, "first_step": 0}],
    "attempts_before": {"count": 1, "clock": [[1e9 - 9, 0.0], [1e9, 5.0]]},
    "checkpoints": [{"step": 2, "path": "/x", "name": "x", "bytes": 5, "saved_at": 1e9,
                     "kind": "recipe", "sealed": True, "problem": ""}],
    "timeline": {"step": [1, 2], "ranks": [{"rank": 0, "entered": [0, 1], "ended": [1, 2], "data": [0, 0]}]},
}  # fmt: skip
COMPARISON: dict[str, Any] = {
    "final": True, "steady_steps": 5, "source": "catalog", "explanation": "e",
    "rows": [{"what": "step", "group": "time", "unit": "s", "predicted": 1.0, "low": 0.9,
              "high": 1.1, "measured": 1.2, "ratio": 1.2}],
}  # fmt: skip
VIEW["comparison"] = COMPARISON
METRIC: dict[str, Any] = {
    "step": 1, "time": 1e9, "step_seconds": 0.1, "backward_at": 1e9, "loss": 1.0, "lr": 0.1,
    "grad_norm": 1.0, "data_seconds": 0.0, "tokens": 5, "memory_bytes": 5,
}  # fmt: skip
SYSTEM: dict[str, Any] = {
    "time": 1e9, "cpu_percent": 5.0, "memory_used_bytes": 5, "run_rss_bytes": 5,
    "run_cpu_percent": 5.0, "disk_free_bytes": 5, "net_bytes_per_second": 5.0, "gpus": [],
}  # fmt: skip
ATTEMPT: dict[str, Any] = {
    "attempt": 1, "event": "end", "time": 1e9, "first_step": 0, "checkpoint": None, "why": None,
    "last_step": 4, "message": "m",
}  # fmt: skip
SAVED: dict[str, Any] = {
    "time": 1e9, "step": 2, "path": "/nowhere/checkpoint-2", "kind": "trainer", "seconds": 0.1,
    "world_size": 2,
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "schema": 1, "step": 20, "saved_at": 1e9, "world_size": 2, "kind": "recipe", "strategy": "ddp",
    "loss": 1.0, "total_bytes": 5, "files": {"model.bin": {"bytes": 5, "sha256": "0" * 64}},
}  # fmt: skip
pulses = st.binary(max_size=80) | st.builds(
    lambda *parts: struct.pack(schema.PULSE_FORMAT, schema.PULSE_MAGIC, *parts),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.floats(),
    st.floats(),
)
