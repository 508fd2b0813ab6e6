"""When this rank entered each collective, from torch's flight recorder, in a small file.

The recorder is a ring that torch fills in any case (gloo and NCCL). The thread that answers
requests reads it every few seconds, what it takes decides how often: never more than one part in
three hundred of the time. The moments are whole seconds of the clock, so that the ranks' files
overlap. On GPUs nothing is read: an entry there tells when the CPU queued the work, not when the
GPU came to it.

The same file has what kept the rank from computing (`core_time`), and what this reading costs.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from typing import Any

from .core_time import CoreTime
from .flight_recorder import SIZE_VARIABLES, FlightRecorder
from .writers import write_json

_MAX_CALLS = 2048  # calls; the file has 40 kB at most
_RING = "512"  # entries of torch's ring; its 2000 cost 30 ms to read
_LEAST_SECONDS = 1.0
_SHARE = 1 / 300
_MOST_COST = 0.2  # seconds of CPU
_LAST_SECONDS = 10.0  # at the end, for a look that has begun


def prepare() -> None:
    """Ask for a small ring, before torch makes it; not where there may be GPUs."""
    if not os.path.exists("/dev/nvidiactl") and not any(
        ring_variable in os.environ for ring_variable in SIZE_VARIABLES
    ):
        os.environ[SIZE_VARIABLES[0]] = _RING


class Arrivals:
    """The latest collectives of one rank. It never raises."""

    def __init__(self, folder: str, rank: int, ring: FlightRecorder) -> None:
        self._ring = ring
        self._path = os.path.join(folder, "metrics", f"rank-{rank}.arrivals.json")
        self._calls: collections.deque[tuple[str, int, int, int]] = collections.deque(
            maxlen=_MAX_CALLS
        )
        self._seen = -1
        self._seconds = _LEAST_SECONDS
        self._due = self._cost = 0.0
        self._reading = threading.Lock()
        self._over = False
        self._looks, self._spent = 0, 0.0
        self.core_time = CoreTime()

    def end(self) -> None:
        """Look for the last time; then the ring is not read again."""
        over, self._over = self._over, True
        if not over and self._reading.acquire(timeout=_LAST_SECONDS):
            self._look(time.time())
            self._reading.release()
        self._ring.end()

    def look(self) -> None:
        """Take in what is new, if it is time to."""
        now = time.time()
        if now >= self._due:
            with self._reading:
                if not self._over:
                    self._look(now)

    def _look(self, now: float) -> None:
        with contextlib.suppress(Exception):
            begun = time.thread_time()
            self._take(now)
            before, self._cost = self._cost, time.thread_time() - begun
            self._looks, self._spent = self._looks + 1, self._spent + self._cost
            self._seconds = _LEAST_SECONDS  # of two costs the smaller: one high one is no rule
            while self._seconds * _SHARE < min(before, self._cost, _MOST_COST):
                self._seconds *= 2
        self._due = (now // self._seconds + 1) * self._seconds

    def _take(self, now: float) -> None:
        torch = sys.modules.get("torch")
        if torch is None or torch.cuda.is_initialized():
            return
        stepped = self.core_time.look(now)
        if self._read() or stepped:
            self._write(now)

    def _read(self) -> bool:
        """Whether there was anything new."""
        before = self._seen
        content = self._ring.dump("_dump_fr_trace_json", includeCollectives=True, onlyActive=False)
        for entry in json.loads(content or b"{}").get("entries", ()):
            if entry["record_id"] > self._seen:
                self._seen = entry["record_id"]
                if not entry["is_p2p"]:
                    self._calls.append(_call(entry))
        return self._seen > before

    def _write(self, now: float) -> None:
        groups = list(dict.fromkeys(call[0] for call in self._calls))
        base = self._calls[0][3] if self._calls else 0
        steps = list(self.core_time.steps)
        document = {
            "written_at": now,
            "base": base / 1e9,
            "groups": groups,
            "group": [groups.index(call[0]) for call in self._calls],
            "number": [call[1] for call in self._calls],
            "waits": [call[2] for call in self._calls],
            "micros": [(call[3] - base) // 1000 for call in self._calls],
            "core_time": _differences(steps),
            "turns": list(self.core_time.looks),
            "looks": self._looks,
            "reading_seconds": round(self._spent, 6),
        }
        write_json(self._path, document)


def _differences(steps: list[tuple[int, ...]]) -> list[list[int]]:
    """Each row less the one before: shorter to write."""
    before = [(0,) * len(steps[0]), *steps] if steps else []
    return [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(before)]


def _call(entry: dict[str, Any]) -> tuple[str, int, int, int]:
    """Group, number, whether ranks wait in it, and when it was entered.

    Sums of flat buffers (DDP's buckets, gradients of FSDP) overlap with the backward pass.
    """
    sizes = entry["input_sizes"]
    name = entry["profiling_name"].partition(":")[2]
    flat = len(sizes) == 1 and len(sizes[0]) == 1 and sizes[0][0] > 1
    is_overlapped = flat and name.lstrip("_").startswith(
        ("all_reduce", "allreduce", "reduce_scatter")
    )
    number = entry["collective_seq_id"]
    return str(entry["process_group"][0]), number, int(not is_overlapped), entry["time_created_ns"]
